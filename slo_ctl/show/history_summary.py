"""Summary of the history of VMs: how long each SLO was met, the worst period, and folded events."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from slo_ctl.base import numbers
from slo_ctl.model import DEGRADED, HostStatus, OutcomeState, SettingValue, Verdict
from slo_ctl.model.status_json import plain
from slo_ctl.record.history_reader import PastVerdict, Point, VmHistory
from slo_ctl.show.history import DAY_S, clock, folded_events
from slo_ctl.show.status import EMULATED

MET = frozenset({Verdict.OK, Verdict.CAPPED, Verdict.IDLE})
"""With these an SLO is met: a VM at its own maximum, or without requests, misses nothing."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time without interruption in which the SLO was missed."""

    since: float
    until: float
    verdict: str
    """The verdict that lasted longest."""
    reason: str
    """Reason when that verdict began."""

    @property
    def duration_s(self) -> float:
        """How long it lasted."""
        return self.until - self.since


@dataclass(frozen=True, slots=True)
class Summary:
    """One VM on one device over an interval. None: not known, or has no meaning there."""

    vm: str
    device: str
    epochs: int
    """Measured in the interval."""
    verdict: str
    """The last one; empty when there is none."""
    reason: str
    by_verdict: tuple[tuple[str, float], ...]
    """Share of the epochs, the most frequent first."""
    met: float | None
    """Share of the epochs in which the SLO was met, of those in which it was judged: not while settling."""
    missed: tuple[Stretch, ...]
    iops: float | None = None
    bandwidth_bytes_s: float | None = None
    p99_read_us: float | None = None
    """The worst, as that of writes; all others are means."""
    p99_write_us: float | None = None
    share: float | None = None
    target_share: float | None = None
    ops_blocks: float | None = None
    waf: float | None = None

    @property
    def worst(self) -> Stretch | None:
        """The longest period in which the SLO was missed."""
        return max(self.missed, key=lambda stretch: stretch.duration_s, default=None)


@dataclass(frozen=True, slots=True)
class SettingInForce:
    """A setting that was changed in the interval and not restored by its end."""

    since: float
    vm: str
    knob: str
    value: SettingValue
    why: str


@dataclass(frozen=True, slots=True)
class _Piece:
    """A time with one verdict in which the VM was measured."""

    since: float
    until: float
    verdict: str
    reason: str


def summaries(history: VmHistory) -> tuple[Summary, ...]:
    """A summary for each device that the VM was on."""
    devices = dict.fromkeys(
        [each.device for each in history.points] + [each.device for each in history.verdicts]
    )
    if "" in devices and _is_over(history):
        del devices[""]
    return tuple(_summary(history, device) for device in devices)


def _is_over(history: VmHistory) -> bool:
    """Whether the VM was on no device for a while only, before it was on one."""
    latest = {
        elsewhere: max((each.at for each in history.verdicts if bool(each.device) is elsewhere), default=None)
        for elsewhere in (False, True)
    }
    nowhere, somewhere = latest[False], latest[True]
    return nowhere is not None and somewhere is not None and nowhere < somewhere


def _summary(history: VmHistory, device: str) -> Summary:
    points = [point for point in history.points if point.device == device]
    changes = [change for change in history.verdicts if change.device == device]
    spans = list(covered(points, history.bucket_s, history.since, history.until))
    weights: dict[str, float] = {}
    pieces: list[_Piece] = []
    for point, (since, until) in zip(points, spans, strict=True):
        for piece in _pieces(changes, since, until):
            part = (piece.until - piece.since) / (until - since)
            weights[piece.verdict] = weights.get(piece.verdict, 0.0) + point.samples * part
            pieces.append(piece)
    known = sum(weights.values())
    judged = known - weights.get(Verdict.SETTLING, 0.0)
    last = changes[-1] if changes else None
    return Summary(
        vm=history.vm,
        device=device,
        epochs=sum(point.samples for point in points),
        verdict=last.verdict if last else "",
        reason=last.reason if last else "",
        by_verdict=tuple(
            sorted(((word, part / known) for word, part in weights.items()), key=lambda each: -each[1])
        )
        if known
        else (),
        met=sum(part for word, part in weights.items() if word in MET) / judged if judged else None,
        missed=tuple(_stretches(pieces)),
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
    """From when to when each of the points of one device stands for the VM, within the interval.

    Up to the next point, which with long epochs is more than a bucket away; where points are missing, as
    without a daemon, only for the usual distance.
    """
    distances = [later.at - point.at for point, later in pairwise(points)]
    step = max(bucket_s, statistics.median(distances)) if distances else bucket_s
    for index, point in enumerate(points):
        end = point.at + step
        if index < len(distances) and distances[index] <= 2 * step:
            end = points[index + 1].at
        begin = min(max(point.at, since), until)
        # The first bucket may begin before the interval.
        yield begin, max(min(end, until), begin + 1e-3)


def _pieces(changes: Sequence[PastVerdict], since: float, until: float) -> Iterator[_Piece]:
    """The verdicts between two moments; before the first change none is known."""
    for index, change in enumerate(changes):
        begin = max(change.at, since)
        end = min(changes[index + 1].at if index + 1 < len(changes) else until, until)
        if begin < end:
            yield _Piece(begin, end, change.verdict, change.reason)


def _stretches(pieces: Sequence[_Piece]) -> Iterator[Stretch]:
    """Periods of consecutive bad verdicts, merged."""
    joined: list[_Piece] = []
    for piece in pieces:
        if joined and (piece.verdict not in DEGRADED or piece.since > joined[-1].until + 1e-3):
            yield _stretch(joined)
            joined = []
        if piece.verdict in DEGRADED:
            joined.append(piece)
    if joined:
        yield _stretch(joined)


def _stretch(pieces: Sequence[_Piece]) -> Stretch:
    lasted: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for piece in pieces:
        lasted[piece.verdict] = lasted.get(piece.verdict, 0.0) + piece.until - piece.since
        reasons.setdefault(piece.verdict, piece.reason)
    verdict = max(lasted, key=lambda word: lasted[word])
    return Stretch(pieces[0].since, pieces[-1].until, verdict, reasons[verdict])


def _mean(points: Iterable[Point], name: str) -> float | None:
    known = [(value, point.samples) for point in points if (value := getattr(point, name)) is not None]
    samples = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / samples if samples else None


def _worst(points: Iterable[Point], name: str) -> float | None:
    return max((value for point in points if (value := getattr(point, name)) is not None), default=None)


def settings_in_force(histories: Iterable[VmHistory]) -> tuple[SettingInForce, ...]:
    """Settings of slo-ctl for these VMs that were in force at the end of the interval."""
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


@dataclass(frozen=True, slots=True)
class HostReport:
    """Report of a host over an interval."""

    histories: tuple[VmHistory, ...]
    since: float
    until: float
    emulated: frozenset[str] = frozenset()
    """Names of emulated devices."""
    now: HostStatus | None = None
    """Of a report up to now whose daemon answered; it has the SLOs, which a history does not keep."""

    def summaries(self) -> tuple[Summary, ...]:
        """Summaries of all VMs, those that missed their SLOs most first."""
        found = [each for history in self.histories for each in summaries(history)]
        return tuple(sorted(found, key=lambda each: (1.0 if each.met is None else each.met, each.vm)))

    def device_name(self, device: str) -> str:
        """Name with its label, if it is emulated."""
        return f"{device} ({EMULATED})" if device in self.emulated else device


def has_records(history: VmHistory) -> bool:
    """Whether anything is known of the interval itself."""
    return bool(
        history.points
        or history.decisions
        or history.outcomes
        or any(change.at >= history.since for change in history.verdicts)
    )


def headline(report: HostReport) -> str:
    """How many VMs missed their SLOs, and which of them most."""
    judged = [each for each in report.summaries() if each.met is not None]
    missed = [each for each in judged if each.missed]
    if not judged:
        return "No SLO was judged."
    if not missed:
        return "Every SLO was met all of the time."
    worst = f"{missed[0].vm} met its SLO for {numbers.percent(missed[0].met)} of the time"
    if not judged[1:]:
        return f"{worst}."
    whose = "their SLOs" if missed[1:] else "its SLO"
    return f"{len(missed):,} of {len(judged):,} VMs missed {whose} at times; {worst}."


_WHAT_TO_DO: dict[str, str] = {
    Verdict.INSUFFICIENT: "lower the SLO of {vm} or of another VM on {device} with `slo-ctl vm set`, or move "
    "a VM to another device",
    Verdict.NO_MECHANISM: "see in `slo-ctl status {vm}` and `slo-ctl doctor` what the SLO of {vm} lacks",
    Verdict.UNAPPLIED: "see in `slo-ctl status {vm}` which setting of {vm} another program may be changing",
    Verdict.UNKNOWN_VM: "start {vm}, or remove it with `slo-ctl vm unset {vm}` and from slo-ctl.toml",
}


def recommendations(report: HostReport) -> Iterator[str]:
    """What to do about each VM that missed its SLO, by the verdict of its worst period, else the last."""
    for each in report.summaries():
        what = _WHAT_TO_DO.get(each.worst.verdict if each.worst else each.verdict)
        if what is not None:
            yield what.format(vm=each.vm, device=each.device or "its device")


def report_lines(report: HostReport) -> Iterator[str]:
    """The interval, a sentence for each VM, and what to do."""
    yield interval_text(report)
    for each in report.summaries():
        on = f" on {report.device_name(each.device)}" if each.device else ""
        yield f"{each.vm}{on}: {met_text(each)}; {worst_text(each, report)}"
    yield from (f"recommended: {sentence}" for sentence in recommendations(report))


def interval_text(report: HostReport) -> str:
    """Start, end and length of the interval."""
    return (
        f"{clock(report.since, dated=True)} to {clock(report.until, dated=True)} "
        f"({numbers.duration(report.until - report.since)})"
    )


def met_text(summary: Summary) -> str:
    """How much of the time the SLO was met, by verdict."""
    if summary.met is None:
        verdict = f"verdict {summary.verdict}: {summary.reason}" if summary.verdict else "no verdict"
        return f"not measured, {verdict}"
    parts = ", ".join(
        f"{word} {numbers.percent(part)}{' not judged' if word == Verdict.SETTLING else ''}"
        for word, part in summary.by_verdict
    )
    return f"SLO met in {numbers.percent(summary.met)} of {summary.epochs:,} epochs ({parts})"


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
    """The same with events and settings, as data; points are those of `slo-ctl history --json`."""
    return {
        "since": report.since,
        "until": report.until,
        "emulated_devices": sorted(report.emulated),
        "vms": [
            {
                **plain(each),
                "by_verdict": dict(each.by_verdict),
                "emulated": each.device in report.emulated,
                "worst": plain(each.worst),
            }
            for each in report.summaries()
        ],
        "recommendations": list(recommendations(report)),
        "settings": plain(settings_in_force(report.histories)),
        "events": plain(folded_events(report.histories)),
    }
