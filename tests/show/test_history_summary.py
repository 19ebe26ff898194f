"""Summary of a history: epochs by verdict, periods of misses, folded events, plots, the page."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise

import pytest
from fake_status import host_status, vm_status
from hostile import HOSTILE
from test_report import Page

from slo_ctl.model.slo import Slo
from slo_ctl.model.status import Verdict
from slo_ctl.record.history_reader import PastDecision, PastOutcome, PastVerdict, Point, VmHistory
from slo_ctl.show import history_summary
from slo_ctl.show.history import curve, folded_events
from slo_ctl.show.history_report import render_history_report, vm_charts
from slo_ctl.show.history_summary import (
    HostReport,
    Summary,
    VerdictPeriod,
    headline,
    met_text,
    recommendations,
    report_json,
    report_lines,
    settings_in_force,
    summaries,
)

MOVE = "or of another VM on ssd0 with `slo-ctl vm set`, or move a VM to another device"
MEASURED = {"iops": 100.0, "p99_read_us": 200.0, "waf": 2.0}


def history(
    points: list[Point],
    verdicts: list[tuple[float, str, str]],
    vm: str = "web",
    decisions: tuple[PastDecision, ...] = (),
    outcomes: tuple[PastOutcome, ...] = (),
) -> VmHistory:
    """A history from 100 to 200, in buckets of 10 s, on ssd0."""
    changes = tuple(PastVerdict(at, "ssd0", verdict, reason) for at, verdict, reason in verdicts)
    return VmHistory(vm, 100.0, 200.0, 10.0, tuple(points), changes, decisions, outcomes)


def every_10_s(*starts: int, samples: int = 10, **values: float) -> list[Point]:
    return [Point(float(at), "ssd0", samples, **{**MEASURED, **values}) for at in starts]


def limit(at: float, state: str, value: float | None) -> PastOutcome:
    return PastOutcome(at, "cgroup limit /web", value, state, None, value, "its maximum", "")


def test_epochs_count_under_the_verdict_that_held() -> None:
    found = history(
        every_10_s(*range(100, 200, 10)),
        [(50.0, "ok", "well"), (120.0, "insufficient", "short"), (145.0, "settling", "woke up")],
    )
    (summary,) = summaries(found)
    assert summary.epochs == 100
    assert dict(summary.by_verdict) == pytest.approx({"settling": 0.55, "insufficient": 0.25, "ok": 0.2})
    assert [word for word, _ in summary.by_verdict] == ["settling", "insufficient", "ok"]
    assert summary.met == pytest.approx(0.2 / 0.45), "settling is not judged"
    assert "settling 55.0% not judged" in met_text(summary)
    assert summary.missed == (VerdictPeriod(120.0, 145.0, "insufficient", "short"),)
    assert (summary.verdict, summary.reason) == ("settling", "woke up")


def test_vm_has_no_summary_for_the_time_before_it_was_on_a_device() -> None:
    found = history(every_10_s(150, 160), [(150.0, "ok", "well")])
    before = PastVerdict(110.0, "", "unknown-vm", "named by slo-ctl.toml, but not on this host")
    (summary,) = summaries(replace(found, verdicts=(before, *found.verdicts)))
    assert summary.device == "ssd0"
    gone = replace(before, at=190.0)
    assert len(summaries(replace(found, verdicts=(*found.verdicts, gone)))) == 2


def test_epochs_have_equal_weight_in_all_buckets() -> None:
    points = every_10_s(100, iops=100.0, p99_read_us=300.0) + every_10_s(110, samples=30, iops=200.0)
    (summary,) = summaries(history(points, [(100.0, "idle", ""), (110.0, "unapplied", "read-only")]))
    assert dict(summary.by_verdict) == pytest.approx({"unapplied": 0.75, "idle": 0.25})
    assert (summary.iops, summary.p99_read_us, summary.share) == (175.0, 300.0, None)


def test_worst_period_is_the_longest_and_ends_at_gaps() -> None:
    found = history(
        every_10_s(100, 110, 120, 160, 170, 180, 190),
        [(105.0, "insufficient", "short"), (115.0, "unapplied", "read-only"), (190.0, "ok", "well")],
    )
    (summary,) = summaries(found)
    assert summary.missed == (
        VerdictPeriod(105.0, 130.0, "unapplied", "read-only"),
        VerdictPeriod(160.0, 190.0, "unapplied", "read-only"),
    )
    assert summary.worst == summary.missed[1]


def test_epochs_longer_than_a_bucket_leave_no_gaps() -> None:
    (summary,) = summaries(history(every_10_s(100, 130, 160, samples=1), [(100.0, "insufficient", "short")]))
    assert summary.missed == (VerdictPeriod(100.0, 190.0, "insufficient", "short"),)


def test_curve_of_epochs_longer_than_a_bucket_has_no_gaps() -> None:
    """Two of three bars were missing."""
    points = [*every_10_s(100, 130, iops=1.0), *every_10_s(160, 220, iops=2.0)]
    assert curve(history(points, []), "ssd0") == [1.0, 1.0, 2.0, None, 2.0]
    gap = curve(history(every_10_s(100, 110, 120, 140), []), "ssd0")
    assert gap == [100.0, 100.0, 100.0, None, 100.0]


def test_unmeasured_vm_is_not_judged() -> None:
    (summary,) = summaries(history([], [(50.0, "no-mechanism", "on no managed device")]))
    assert (summary.met, summary.by_verdict, summary.worst) == (None, (), None)
    (before,) = summaries(history(every_10_s(100), []))
    assert (before.met, before.verdict) == (None, "")


def test_repeated_events_are_merged() -> None:
    flips = [(110.0 + 10 * n, ("insufficient", "ok")[n % 2], f"{n} IOPS") for n in range(6)]
    shared = PastDecision(150.0, "ssd0", "moved 12 blocks of OPS from db2 to web")
    web = history(
        [],
        [(90.0, "ok", "well"), *flips],
        decisions=(PastDecision(140.0, "ssd0", "moved 3 blocks of OPS from db2 to web"), shared),
    )
    db2 = history([], [], "db2", decisions=web.decisions)
    db3 = history([], [], "db3", decisions=(PastDecision(151.0, "ssd0", "moved 3 blocks to db3"),))
    found = folded_events([web, db2, db3])
    assert [(each.first, each.last, each.count, each.vms, each.text) for each in found] == [
        (110.0, 150.0, 3, ("web",), "ok -> insufficient: 4 IOPS"),
        (140.0, 150.0, 2, ("db2", "web"), "moved 12 blocks of OPS from db2 to web"),
        (151.0, 151.0, 1, ("db3",), "moved 3 blocks to db3"),
        (120.0, 160.0, 3, ("web",), "insufficient -> ok: 5 IOPS"),
    ]


def test_merged_changes_of_a_setting_are_shown_from_the_first_value_to_the_last() -> None:
    values = [500.0, 400.0, 300.0, 450.0]
    changes = [
        replace(limit(110.0 + index, "applied", value), before=before)
        for index, (before, value) in enumerate(pairwise(values))
    ]
    found = folded_events([history([], [], outcomes=(*changes, limit(120.0, "restored", None)))])
    assert [(each.count, each.text) for each in found] == [
        (3, "applied: cgroup limit /web 500 -> 450: its maximum"),
        (1, "restored: cgroup limit /web unset: its maximum"),
    ]


def test_restored_and_unapplied_settings_are_not_in_force() -> None:
    def at_the_end(*outcomes: PastOutcome) -> list[tuple[float, object]]:
        return [(each.since, each.value) for each in settings_in_force([history([], [], outcomes=outcomes)])]

    first = limit(110.0, "applied", 500.0)
    assert at_the_end(first, limit(120.0, "applied", 400.0)) == [(120.0, 400.0)]
    assert at_the_end(first, limit(120.0, "unapplied", 400.0)) == [(110.0, 500.0)]
    assert at_the_end(first, limit(120.0, "restored", None)) == []
    assert at_the_end(first, limit(120.0, "applied", None)) == []


def test_charts_show_measured_values_only() -> None:
    found = history(every_10_s(100, 110, 120, 160), [(100.0, "ok", "well"), (160.0, "insufficient", "short")])
    (summary,) = summaries(found)
    iops, waf, p99 = vm_charts(found, summary, Slo(min_iops=50.0, p99_latency_us=5000.0))
    assert [chart.title for chart in (iops, waf, p99)] == ["IOPS", "WAF", "p99 latency"]
    assert (iops.levels, p99.levels) == ([("min", 50.0)], [("target", 5000.0)])
    assert p99.ranges() == "reads 200 µs; target 5 ms"
    (curve,) = iops.curves
    assert list(zip(iops.x, curve.values, strict=True)) == [
        (0.0, 100.0),
        (10.0, 100.0),
        (20.0, 100.0),
        (30.0, 100.0),
        (30.01, None),
        (60.0, 100.0),
        (70.0, 100.0),
        (70.01, None),
        (100.0, None),
    ]
    assert iops.shaded == [(60.0, 70.0)]


def test_p99_is_distributed_over_time() -> None:
    found = history(
        [
            *every_10_s(100, 110, p99_read_us=100.0),
            *every_10_s(120, p99_read_us=300.0, samples=20),
            *every_10_s(160, p99_read_us=900.0, p99_write_us=200.0),
        ],
        [(100.0, "ok", "well")],
    )
    (summary,) = summaries(found)
    *_, chart = vm_charts(found, summary, Slo(p99_latency_us=500.0))
    assert chart.title == "Distribution of the p99"
    assert (chart.x[0], chart.x[-1]) == (100.0, 900.0)
    reads, writes = (dict(zip(chart.x, curve.values, strict=True)) for curve in chart.curves)
    assert {at for at, part in reads.items() if part == 0.4} == {at for at in chart.x if at < 300}
    assert {at for at, part in reads.items() if part == 0.8} == {at for at in chart.x if 300 <= at < 900}
    assert reads[900.0] == 1.0
    assert {at for at, part in writes.items() if part == 0.0} == {at for at in chart.x if at < 200}
    assert set(writes.values()) == {0.0, 1.0}
    assert chart.marks == [(500.0, "target")]
    assert chart.table().rows == [
        ("reads", ["300 µs", "900 µs", "900 µs", "900 µs"]),
        ("writes", ["200 µs"] * 4),
    ]


def test_a_report_of_many_vms_calculates_each_summary_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calculated: list[str] = []

    def counted(past: VmHistory) -> tuple[Summary, ...]:
        calculated.append(past.vm)
        return summaries(past)

    monkeypatch.setattr(history_summary, "summaries", counted)
    report = HostReport((history(every_10_s(100), [(100.0, "insufficient", "short")]),), 100.0, 200.0)
    headline(report)
    list(report_lines(report))
    report_json(report)
    render_history_report(report)
    assert calculated == ["web"]


def test_report_has_missed_slos_and_recommendations() -> None:
    well = history(every_10_s(100), [(100.0, "ok", "well")], "db")
    short = history(every_10_s(100, 110), [(100.0, "ok", "well"), (110.0, "insufficient", "short")])
    gone = history([], [(100.0, "unknown-vm", "not there")], "my old")

    def shown(*histories: VmHistory) -> tuple[str, list[str]]:
        report = HostReport(histories, 100.0, 200.0)
        return headline(report), list(recommendations(report))

    assert shown(well) == ("Every SLO was met all of the time.", [])
    assert shown(history([], [])) == ("No SLO was judged.", [])
    assert shown(well, gone)[0] == (
        "Every SLO that was measured was met all of the time; 1 VM with an SLO was not measured."
    )
    assert shown(short)[0] == "web met its SLO for 50.0% of the time."
    on_sdb = [replace(each, device="sdb") for each in short.points]
    verdicts_on_sdb = tuple(replace(each, device="sdb") for each in short.verdicts)
    moved = replace(
        short, points=(*short.points, *on_sdb), verdicts=(*short.verdicts, *verdicts_on_sdb), vm="batch"
    )
    assert shown(well, moved)[0].startswith("1 of 2 VMs missed its SLO at times; batch met ")
    worse = replace(short, vm="batch")
    text, recommended = shown(well, short, worse)
    assert text.startswith("2 of 3 VMs missed their SLOs at times; batch met ")
    assert recommended == [f"lower the SLO of batch and web {MOVE}"]
    assert shown(well, short, gone) == (
        "1 of 2 VMs missed its SLO at times; web met its SLO for 50.0% of the time.",
        [
            f"lower the SLO of web {MOVE}",
            "start my old, or remove the SLO with `slo-ctl vm unset 'my old'` and from slo-ctl.toml",
        ],
    )


def test_an_slo_that_was_missed_for_a_moment_was_not_met_all_of_the_time() -> None:
    """`web met its SLO for 100.0% of the time` was the report of a miss of 10 s in a day."""
    found = history(
        every_10_s(100, samples=86_400) + every_10_s(110, samples=10),
        [(100.0, "ok", "well"), (110.0, "insufficient", "short")],
    )
    report = HostReport((found,), 100.0, 200.0)
    assert headline(report) == "web met its SLO for >99.9% of the time."
    assert met_text(report.summaries[0]).startswith("SLO met in >99.9% of 86,410 epochs")
    assert '<td role="cell" data-label="SLO MET">&gt;99.9%</td>' in render_history_report(report)
    settled = history(every_10_s(100, 110, 120), [(100.0, "settling", ""), (107.0, "ok", "well")])
    assert met_text(summaries(settled)[0]).startswith("SLO met in 100.0% ")


@pytest.mark.parametrize(("change_after_s", "is_told"), [(20.0, True), (200.0, False)])
def test_axes_of_an_interval_with_a_change_of_the_clock_are_explained(
    change_after_s: float, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of an axis has the offset of its end, unlike the table of events."""
    end_of_summer_time = 1_792_890_000.0  # 2026-10-25 01:00 UTC
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        since = end_of_summer_time - change_after_s
        found = history([Point(since, "ssd0", 10, **MEASURED)], [])
        page = render_history_report(HostReport((found,), since, since + 100.0))
    finally:
        monkeypatch.undo()
        time.tzset()
    note = "Clocks changed in this time: the axes of plots have the time at its end, CET."
    assert (note in page) is is_told


def test_a_vm_on_two_devices_is_recommended_the_same_once() -> None:
    points = [Point(100.0, device, 10, **MEASURED) for device in ("ssd0", "ssd1")]
    verdicts = tuple(PastVerdict(100.0, device, "unapplied", "refused") for device in ("ssd0", "ssd1"))
    past = VmHistory("web", 100.0, 200.0, 10.0, tuple(points), verdicts)
    (recommended,) = recommendations(HostReport((past,), 100.0, 200.0))
    assert "`slo-ctl status web`" in recommended


@pytest.mark.parametrize(
    ("past", "present", "recommended"),
    [
        pytest.param(Verdict.INSUFFICIENT, Verdict.OK, True, id="a share may be insufficient again"),
        pytest.param(Verdict.INSUFFICIENT, None, False, id="gone with its SLO"),
        pytest.param(Verdict.UNKNOWN_VM, Verdict.UNKNOWN_VM, True, id="still unknown"),
        pytest.param(Verdict.UNKNOWN_VM, Verdict.OK, False, id="running again"),
        pytest.param(Verdict.UNKNOWN_VM, None, False, id="SLO unset"),
        pytest.param(Verdict.UNAPPLIED, Verdict.OK, False, id="applied meanwhile"),
    ],
)
def test_recommendations_need_a_cause_that_is_present_or_may_return(
    past: Verdict, present: Verdict | None, recommended: bool
) -> None:
    web = history(every_10_s(100), [(100.0, past, "because")])
    now = host_status(() if present is None else (vm_status("web", verdict=present),))
    assert bool(list(recommendations(HostReport((web,), 100.0, 200.0, now=now)))) is recommended


def test_hostile_names_are_escaped_on_the_page() -> None:
    histories = tuple(
        history(
            every_10_s(100, ops_blocks=5.0),
            [(100.0, "insufficient", text)],
            text,
            (PastDecision(100.0, "ssd0", text),),
            (limit(110.0, "applied", 5.0),),
        )
        for text in HOSTILE
    )
    report = HostReport(histories, 100.0, 200.0, frozenset({"ssd0"}))
    page = Page(render_history_report(report))
    assert not page.tags & {"img", "link", "iframe"}
    assert [kind for kind, _ in page.inline if kind != "application/json"] == ["style"] * 4 + ["script"] * 4
    assert not {name for name in page.attributes if name.startswith("on")}
    assert len(page.ids) == len(set(page.ids))
    assert "EMULATED devices" in page.text
    assert "ssd0 (EMULATED)" in page.text
    assert "\x1b" not in page.text
    assert HOSTILE[0] in page.text
    assert page.text.count("SLO met in 0.0% of 10 epochs (insufficient 100.0%)") == len(HOSTILE)
