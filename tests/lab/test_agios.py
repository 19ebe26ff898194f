"""AGIOS's file."""

from __future__ import annotations

import pytest
from made_up import measured

from lab.report import to_agios
from slo_ctl.base.errors import UserError
from slo_ctl.decide.profile_fit import analyse
from slo_ctl.decide.request_sizes import DEFAULT_INTERVALS, draw_points
from slo_ctl.model.measurement import SEQ_READ

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


def test_all_four_tests_are_needed() -> None:
    only_reads = [each for each in MEASURED if each.access == SEQ_READ]
    with pytest.raises(UserError, match="no times of sequential write"):
        to_agios(analyse(DEFAULT_INTERVALS, only_reads), DEFAULT_INTERVALS)
