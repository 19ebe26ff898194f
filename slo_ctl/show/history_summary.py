"""Summary of the history of VMs: how long each SLO was met, the worst period, recommendations."""

from __future__ import annotations

import shlex
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from slo_ctl.base import numbers
from slo_ctl.base.text import and_list, counted
from slo_ctl.model.setting import OutcomeState, SettingValue
from slo_ctl.model.status import DEGRADED, HostStatus, Verdict
from slo_ctl.model.status_json import plain
from slo_ctl.record.history_reader import PastVerdict, Point, VmHistory
from slo_ctl.show.history import DAY_S, clock, folded_events, usual_distance
from slo_ctl.show.status import EMULATED

MET = frozenset({Verdict.OK, Verdict.CAPPED, Verdict.IDLE})
"""Verdicts with which an SLO is met, also that of a VM at its own maximum or without requests."""


@dataclass(frozen=True, slots=True)
class VerdictPeriod:
    """A measured period with one verdict, or in which the SLO was missed without interruption."""

    since: float
    until: float
    verdict: str
    """The verdict that lasted longest."""
    reason: str
    """Reason when that verdict began."""

    @property
    def duration_s(self) -> float:
        return self.until - self.since


@dataclass(frozen=True, slots=True)
class Summary:
    """One VM on one device over an interval. None: unknown, or not applicable."""

    vm: str
    device: str
    epochs: int
    """Measured epochs in the interval."""
    verdict: str
    """The last verdict; empty if there is none."""
    reason: str
    by_verdict: tuple[tuple[str, float], ...]
    """Share of the epochs by verdict, the largest first."""
    met: float | None
    """Share of the judged epochs in which the SLO was met. It is not judged while settling."""
    missed: tuple[VerdictPeriod, ...]
    iops: float | None
    bandwidth_bytes_s: float | None
    p99_read_us: float | None
    """The worst value, also of writes; all other values are means."""
    p99_write_us: float | None
    share: float | None
    target_share: float | None
    ops_blocks: float | None
    waf: float | None

    @property
    def worst(self) -> VerdictPeriod | None:
        """The longest period in which the SLO was missed."""
        return max(self.missed, key=lambda period: period.duration_s, default=None)


@dataclass(frozen=True, slots=True)
class SettingInForce:
    """A setting that was changed in the interval and not restored by its end."""

    since: float
    vm: str
    knob: str
    value: SettingValue
    why: str


def summaries(history: VmHistory) -> tuple[Summary, ...]:
    """A summary for each device that the VM was on."""
    devices = dict.fromkeys(
        [each.device for each in history.points] + [each.device for each in history.verdicts]
    )
    if "" in devices and _had_no_device_at_first(history):
        del devices[""]
    return tuple(_summary(history, device) for device in devices)


def _had_no_device_at_first(history: VmHistory) -> bool:
    """Whether the VM had no device only before it had one."""
    without_device = [change.at for change in history.verdicts if not change.device]
    with_device = [change.at for change in history.verdicts if change.device]
    return bool(without_device and with_device) and max(without_device) < max(with_device)


def _summary(history: VmHistory, device: str) -> Summary:
    points = [point for point in history.points if point.device == device]
    changes = [change for change in history.verdicts if change.device == device]
    spans = list(covered(points, history.bucket_s, history.since, history.until))
    epochs_by_verdict: dict[str, float] = {}
    periods: list[VerdictPeriod] = []
    for point, (since, until) in zip(points, spans, strict=True):
        for period in _verdict_periods(changes, since, until):
            epochs = point.samples * (period.until - period.since) / (until - since)
            epochs_by_verdict[period.verdict] = epochs_by_verdict.get(period.verdict, 0.0) + epochs
            periods.append(period)
    total = sum(epochs_by_verdict.values())
    judged = total - epochs_by_verdict.get(Verdict.SETTLING, 0.0)
    met = sum(epochs for verdict, epochs in epochs_by_verdict.items() if verdict in MET)
    most_frequent_first = sorted(epochs_by_verdict.items(), key=lambda item: -item[1])
    last = changes[-1] if changes else None
    return Summary(
        vm=history.vm,
        device=device,
        epochs=sum(point.samples for point in points),
        verdict=last.verdict if last else "",
        reason=last.reason if last else "",
        by_verdict=tuple((verdict, epochs / total) for verdict, epochs in most_frequent_first if total),
        met=met / judged if judged else None,
        missed=tuple(_missed_periods(periods)),
        iops=_mean(points, "iops"),
        bandwidth_bytes_s=_mean(points, "bandwidth_bytes_s"),
        p99_read_us=_worst(points, "p99_read_us"),
        p99_write_us=_worst(points, "p99_write_us"),
        share=_mean(points, "share"),
        target_share=_mean(points, "target_share"),
        ops_blocks=_mean(points, "ops_blocks"),
        waf=_mean(points, "waf"),
    )


def covered(
    points: Sequence[Point], bucket_s: float, since: float, until: float
) -> Iterator[tuple[float, float]]:
    """Start and end of the time that each point of one device is valid for, within the interval.

    It ends at the next point, which with long epochs is more than a bucket later; where points are missing,
    as without a daemon, after the usual distance.
    """
    step = usual_distance(points, bucket_s)
    for index, point in enumerate(points):
        end = point.at + step
        if index + 1 < len(points) and points[index + 1].at - point.at <= 2 * step:
            end = points[index + 1].at
        begin = min(max(point.at, since), until)
        # The first bucket may begin before the interval.
        yield begin, max(min(end, until), begin + 1e-3)


def _verdict_periods(changes: Sequence[PastVerdict], since: float, until: float) -> Iterator[VerdictPeriod]:
    """The verdicts between two times. Before the first change the verdict is unknown."""
    first = max(bisect_right(changes, since, key=lambda change: change.at) - 1, 0)
    for index, change in enumerate(islice(changes, first, None), first):
        begin = max(change.at, since)
        if begin >= until:
            return
        end = min(changes[index + 1].at if index + 1 < len(changes) else until, until)
        if begin < end:
            yield VerdictPeriod(begin, end, change.verdict, change.reason)


def _missed_periods(periods: Sequence[VerdictPeriod]) -> Iterator[VerdictPeriod]:
    """Periods of consecutive bad verdicts, merged."""
    joined: list[VerdictPeriod] = []
    for period in periods:
        if joined and (period.verdict not in DEGRADED or period.since > joined[-1].until + 1e-3):
            yield _missed_period(joined)
            joined = []
        if period.verdict in DEGRADED:
            joined.append(period)
    if joined:
        yield _missed_period(joined)


def _missed_period(periods: Sequence[VerdictPeriod]) -> VerdictPeriod:
    duration_s: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for period in periods:
        duration_s[period.verdict] = duration_s.get(period.verdict, 0.0) + period.duration_s
        reasons.setdefault(period.verdict, period.reason)
    verdict = max(duration_s, key=duration_s.__getitem__)
    return VerdictPeriod(periods[0].since, periods[-1].until, verdict, reasons[verdict])


def _mean(points: Iterable[Point], name: str) -> float | None:
    return numbers.weighted_mean((getattr(point, name), point.samples) for point in points)


def _worst(points: Iterable[Point], name: str) -> float | None:
    return numbers.max_known(getattr(point, name) for point in points)


def settings_in_force(histories: Iterable[VmHistory]) -> tuple[SettingInForce, ...]:
    """Settings for these VMs that were in force at the end of the interval."""
    latest: dict[tuple[str, str], SettingInForce] = {}
    for history in histories:
        for outcome in history.outcomes:
            key = history.vm, outcome.knob
            if outcome.state == OutcomeState.RESTORED or (
                outcome.state == OutcomeState.APPLIED and outcome.value is None
            ):
                latest.pop(key, None)
            elif outcome.state == OutcomeState.APPLIED:
                latest[key] = SettingInForce(outcome.at, history.vm, outcome.knob, outcome.value, outcome.why)
    return tuple(latest.values())


@dataclass(frozen=True)
class HostReport:
    """Report of a host over an interval."""

    histories: tuple[VmHistory, ...]
    since: float
    until: float
    emulated: frozenset[str] = frozenset()
    """Names of emulated devices."""
    now: HostStatus | None = None
    """Present status, with the SLOs; None for a report of the past, and without a daemon."""

    @cached_property
    def summaries(self) -> tuple[Summary, ...]:
        """Summaries of all VMs, sorted by the share of time in which the SLO was met.

        They take seconds for hundreds of VMs.
        """
        all_summaries = (summary for history in self.histories for summary in summaries(history))
        return tuple(sorted(all_summaries, key=lambda each: (1.0 if each.met is None else each.met, each.vm)))

    def device_name(self, device: str) -> str:
        """Name of a device; that of an emulated one with its label."""
        return f"{device} ({EMULATED})" if device in self.emulated else device


def has_records(history: VmHistory) -> bool:
    """Whether the history has records of the interval itself."""
    return bool(
        history.points
        or history.decisions
        or history.outcomes
        or any(change.at >= history.since for change in history.verdicts)
    )


def headline(report: HostReport) -> str:
    """How many VMs missed their SLOs, and which one missed it most."""
    judged = [summary for summary in report.summaries if summary.met is not None]
    missed = [summary for summary in judged if summary.missed]
    if not judged:
        return "No SLO was judged."
    if not missed:
        unmeasured = {each.vm for each in report.summaries if each.met is None and each.verdict in DEGRADED}
        if not unmeasured:
            return "Every SLO was met all of the time."
        return (
            "Every SLO that was measured was met all of the time; "
            f"{counted(len(unmeasured), 'VM')} with an SLO {'was' if len(unmeasured) == 1 else 'were'} "
            "not measured."
        )
    worst = f"{missed[0].vm} met its SLO for {met_percent(missed[0].met)} of the time"
    # A VM on several devices has several summaries.
    number_judged, number_missed = (len({each.vm for each in some}) for some in (judged, missed))
    if number_judged == 1:
        return f"{worst}."
    whose = "their SLOs" if number_missed > 1 else "its SLO"
    return f"{number_missed:,} of {number_judged:,} VMs missed {whose} at times; {worst}."


_RECOMMENDATIONS: dict[str, str] = {
    Verdict.INSUFFICIENT: "lower the SLO of {vms} or of another VM on {device} with `slo-ctl vm set`, or "
    "move a VM to another device",
    Verdict.NO_MECHANISM: "see in `slo-ctl status {words}` and `slo-ctl doctor` what the SLO of {vms} lacks",
    Verdict.UNAPPLIED: "see in `slo-ctl status {words}` which setting of {vms} could not be applied, and why",
    Verdict.UNKNOWN_VM: "start {vms}, or remove the SLO with `slo-ctl vm unset {words}` and from "
    "slo-ctl.toml",
}


def recommendations(report: HostReport) -> Iterator[str]:
    """A recommendation for all VMs of a device that missed their SLOs with the same verdict."""
    vms: dict[tuple[str, str], list[str]] = {}
    for summary in report.summaries:
        verdict = summary.worst.verdict if summary.worst else summary.verdict
        recommendation = _RECOMMENDATIONS.get(verdict)
        if recommendation is not None and _is_current(report, summary.vm, verdict):
            vms.setdefault((recommendation, summary.device or "its device"), []).append(summary.vm)
    # Not all name the device: that of VMs with the same verdict on several is one.
    yield from dict.fromkeys(
        recommendation.format(
            vms=and_list(names), words=" ".join(shlex.quote(name) for name in names), device=device
        )
        for (recommendation, device), names in vms.items()
    )


def _is_current(report: HostReport, vm: str, verdict: str) -> bool:
    """Whether a verdict of the past still needs action, by the present status, where it is known.

    A share may be insufficient again as long as there is the VM; other causes are present or not.
    """
    if report.now is None:
        return True
    present = {row.verdict for row in report.now.vms if row.vm == vm}
    return verdict in present or (verdict == Verdict.INSUFFICIENT and bool(present))


def report_lines(report: HostReport) -> Iterator[str]:
    """The interval, a sentence for each VM, and recommendations."""
    yield interval_text(report)
    for summary in report.summaries:
        device_text = f" on {report.device_name(summary.device)}" if summary.device else ""
        yield f"{summary.vm}{device_text}: {met_text(summary)}; {worst_text(summary, report)}"
    yield from (f"recommended: {sentence}" for sentence in recommendations(report))


def interval_text(report: HostReport) -> str:
    """Start, end and length of the interval."""
    return (
        f"{clock(report.since, dated=True)} to {clock(report.until, dated=True)} "
        f"({numbers.duration(report.until - report.since)})"
    )


_ROUNDING = 1e-9


def met_percent(met: float | None) -> str:
    """The share of time in which an SLO was met: `100.0%` only if it was never missed."""
    text = numbers.percent(met)
    return ">99.9%" if met is not None and met < 1 - _ROUNDING and text == numbers.percent(1.0) else text


def met_text(summary: Summary) -> str:
    """How much of the time the SLO was met, by verdict."""
    if summary.met is None:
        verdict = f"verdict {summary.verdict}: {summary.reason}" if summary.verdict else "no verdict"
        return f"not measured, {verdict}"
    parts = ", ".join(
        f"{word} {numbers.percent(part)}{' not judged' if word == Verdict.SETTLING else ''}"
        for word, part in summary.by_verdict
    )
    return f"SLO met in {met_percent(summary.met)} of {counted(summary.epochs, 'epoch')} ({parts})"


def worst_text(summary: Summary, report: HostReport) -> str:
    """The worst period with its reason."""
    worst = summary.worst
    if worst is None:
        return "never missed" if summary.met is not None else "worst period unknown"
    dated = report.until - report.since > DAY_S
    return (
        f"worst: {clock(worst.since, dated)} to {clock(worst.until, dated)} "
        f"({numbers.duration(worst.duration_s)}) {worst.verdict}: {worst.reason}"
    )


def report_json(report: HostReport) -> dict[str, Any]:
    """The report as JSON, with events and settings; `slo-ctl history --json` has the points."""
    return {
        "since": report.since,
        "until": report.until,
        "emulated_devices": sorted(report.emulated),
        "vms": [
            {
                **plain(summary),
                "by_verdict": dict(summary.by_verdict),
                "emulated": summary.device in report.emulated,
                "worst": plain(summary.worst),
            }
            for summary in report.summaries
        ],
        "recommendations": list(recommendations(report)),
        "settings": plain(settings_in_force(report.histories)),
        "events": plain(folded_events(report.histories)),
    }
