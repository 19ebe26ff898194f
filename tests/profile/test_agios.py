"""AGIOS's file, there and back."""

from __future__ import annotations

import pytest
from made_up import measured, true_s

from slo_ctl.base.errors import UserError
from slo_ctl.decide.profile_fit import DEFAULT_INTERVALS, analyse, draw_points
from slo_ctl.model.measurement import ACCESSES, SEQ_READ, SEQ_WRITE
from slo_ctl.profile.agios import from_agios, to_agios

MEASURED = measured(draw_points(DEFAULT_INTERVALS, 2, 0), 2)


def test_agios_file_matches_one_made_by_hand() -> None:
    text = to_agios(analyse(DEFAULT_INTERVALS, MEASURED), DEFAULT_INTERVALS)
    lines = text.splitlines()
    assert lines[:2] == ["2", "8\t64"]
    # Sequential write: 1e-8 s/byte are 10240 ns/KB, and 1e-4 s are 100000 ns.
    slope, intercept = map(float, lines[2].split("\t"))
    assert slope == pytest.approx(10240)
    assert intercept == pytest.approx(100_000)
    assert lines[6] == "64\t4096"
    assert len(lines) == 11


def test_agios_file_reads_back_the_same() -> None:
    first, second = from_agios(to_agios(analyse(DEFAULT_INTERVALS, MEASURED), DEFAULT_INTERVALS))
    assert (first.low_kb, second.high_kb) == (8, 4096)
    for access in ACCESSES:
        assert second.lines[access].at_s(1 << 20) == pytest.approx(true_s(access, 1 << 20))
    assert not first.implausible()


def test_all_four_tests_are_needed() -> None:
    only_reads = [each for each in MEASURED if each.access == SEQ_READ]
    with pytest.raises(UserError, match="no times of sequential write"):
        to_agios(analyse(DEFAULT_INTERVALS, only_reads), DEFAULT_INTERVALS)


def test_negative_times_are_flagged_not_refused() -> None:
    (interval,) = from_agios("1\n8\t64\n10\t-100\n10\t0\n10\t5\n10\t5\n")
    assert interval.implausible() == [SEQ_WRITE]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "ends too early"),
        ("x\n", ":1:"),
        ("0\n", ":1:"),
        ("1\n8\n", ":2:"),
        ("1\n8\t64\n1\tnan\n", ":3:"),
    ],
)
def test_damage_is_told_with_its_line(text: str, where: str) -> None:
    with pytest.raises(UserError, match=where):
        from_agios(text)
