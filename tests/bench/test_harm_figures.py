"""The figures that `bench/harm.py` computes from recorded data."""

from __future__ import annotations

from pathlib import Path

import pytest
from harm import CASES
from harm_figures import (
    Load,
    Space,
    compare,
    distinct,
    load_of,
    read_requests,
    space_of,
    spans,
    waf,
)
from harm_host import EpochFacts, Run, Stopped
from harm_report import Result

BEGAN_S = 1_700_000_000


def log_of(folder: Path, *requests: tuple[float, float], size: int = 4096) -> Path:
    """A log in fio's format, from (completed after s, latency in ms)."""
    path = folder / "web_lat.1.log"
    lines = (f"{round((BEGAN_S + at_s) * 1e3)}, {round(ms * 1e6)}, 1, {size}, 0" for at_s, ms in requests)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_requests_are_counted_in_the_second_of_completion(tmp_path: Path) -> None:
    requests = read_requests(log_of(tmp_path, (0.1, 1), (2.5, 4), (0.9, 2), (1.0, 3), (7.0, 5)))
    assert requests.began_s == pytest.approx(BEGAN_S + 0.1)
    assert requests.per_second(BEGAN_S, 4) == [2, 1, 1, 0]
    assert list(requests.latencies_ms(BEGAN_S + 0.5, 1)) == pytest.approx([2, 3])


def test_larger_requests_count_as_more_pages(tmp_path: Path) -> None:
    requests = read_requests(log_of(tmp_path, (0.1, 1), (0.2, 4), (1.5, 2), size=16384))
    assert requests.per_second(BEGAN_S, 2) == [8, 4]
    assert requests.pages_between(BEGAN_S + 0.15, BEGAN_S + 2) == 8


def test_a_client_without_requests_has_no_latency(tmp_path: Path) -> None:
    web = read_requests(log_of(tmp_path, *((0.01 * n, 1 + (n == 99)) for n in range(100))))
    load = load_of({"web": web, "db": read_requests(log_of(tmp_path))}, BEGAN_S, 2)
    assert load.pages == {"web": [100, 0], "db": [0, 0]}
    assert load.total == [100, 0]
    assert load.latency.keys() == {"web"}
    assert load.latency["web"].mean_ms == pytest.approx(1.01)
    assert load.latency["web"].max_ms == 2


def test_shares_are_of_the_last_seconds() -> None:
    load = Load({"web": [90, 10, 10], "db": [10, 30, 30]}, {})
    assert load.shares(2) == {"web": 0.25, "db": 0.75}
    assert Load({"web": [0], "db": [0]}, {}).shares(2) == {"web": 0.0, "db": 0.0}


@pytest.mark.parametrize(
    ("dip", "length_s", "kept"),
    [(100, 60, True), (86, 10, False), (91, 10, True), (94, 60, False), (0, 2, False)],
)
def test_case_is_judged_by_mean_and_worst_ten_seconds(dip: int, length_s: int, kept: bool) -> None:
    with_daemon = [100] * (60 - length_s) + [dip] * length_s
    found = compare([100] * 60, with_daemon)
    assert found.without_pages_s == 100
    assert found.kept is kept


def test_windows_are_compared_with_the_same_seconds_without_the_daemon() -> None:
    phases = [100] * 30 + [200] * 30
    assert compare(phases, phases).kept
    found = compare(phases, [100] * 30 + [200] * 10 + [160] * 20)
    assert found.ratio == pytest.approx(8200 / 9000)
    assert found.worst_from_s == 40
    assert found.worst_ratio == pytest.approx(0.8)
    assert not found.kept


def test_zero_without_daemon_gives_no_ratio() -> None:
    assert compare([0, 0], [1, 1]).ratio == 0


def test_reasons_that_differ_in_figures_only_are_one() -> None:
    verdicts = [
        (0, "idle", "no request in the window"),
        (1, "ok", "97.1 % of the device's IOPS, target 50.0 %"),
        (2, "ok", "100.0 % of the device's IOPS, target 50.0 %"),
        (3, "ok", "1,234 IOPS, minimum 50"),
        (4, "ok", "9 % of the device's IOPS, target 50.0 %"),
        (4, "ok", "9 % of the device's IOPS, target 50.0 %"),
        (5, "insufficient", "9 % of the device's IOPS, target 50.0 %"),
    ]
    assert [each.sentence for each in distinct(verdicts)] == [
        "0 s: idle: no request in the window",
        "1-2, 4 s: ok: 97.1 % of the device's IOPS, target 50.0 %",
        "3 s: ok: 1,234 IOPS, minimum 50",
        "5 s: insufficient: 9 % of the device's IOPS, target 50.0 %",
    ]


def test_spans_of_seconds_are_formatted() -> None:
    assert spans([3, -1, 0, 1, 3, 7, 8]) == "-1-1, 3, 7-8"
    assert spans([]) == ""


def told_of(host: int, gc: int) -> dict[str, object]:
    return {
        "weight": 1,
        "limit_iops": None,
        "space": {"ops_blocks": 10, "pending_out_blocks": 2},
        "flash": {"host_page_writes": host, "gc_page_writes": gc, "victims": 1},
    }


def test_waf_is_of_all_namespaces_between_two_moments() -> None:
    first = [space_of(told_of(1000, 5000)), space_of(told_of(0, 0))]
    last = [space_of(told_of(1100, 5100)), space_of(told_of(100, 300))]
    assert first[1] == Space(10, 2, 1.0, None, 0, 0, 1)
    assert waf(first, last) == 3.0
    assert waf(last, last) is None


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_scaled_case_keeps_the_order_of_its_events(scale: float) -> None:
    for case in CASES:
        scaled = case.scaled(scale)
        if case.daemon_at_s < 0:
            assert scaled.daemon_at_s == case.daemon_at_s, "the time before the load is longer than a window"
        else:
            assert scaled.daemon_at_s / scaled.from_s == case.daemon_at_s / case.from_s


def test_stop_that_takes_too_long_is_a_problem() -> None:
    space = Space(10, 0, 1.0, None, 0, 0, 0)
    moments = [EpochFacts(float(at_s), {"web": space}, 0, None) for at_s in range(100)]

    def problems(took_s: float) -> list[str]:
        run = Run(moments, stopped=Stopped(50.0, took_s, 0, []))
        result = Result("7a", 40, {}, {}, {}, {}, None, {}, {}, [], [])
        result.judge_stop(run)
        return result.problems

    assert problems(0.4) == []
    assert problems(12.0) == ["exit only after 12.0 s"]
