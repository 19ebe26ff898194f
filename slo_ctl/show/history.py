"""The history of a VM on a terminal: means, with events in between."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.segment import Segment, Segments
from rich.text import Text

from slo_ctl.base import numbers
from slo_ctl.base.text import printable
from slo_ctl.show.status import STYLES, setting_value
from slo_ctl.show.terminal import Column, print_line, sparkline, table_of

if TYPE_CHECKING:
    from rich.console import Console

    from slo_ctl.record.history_reader import PastOutcome, Point, VmHistory

DAY_S = 86400.0
"""Longer intervals are shown with dates."""
_NUMBER = re.compile(r"(?<!\S)\d[\d,.]*(?=[\s;:,%]|$)")


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """An event, which may have occurred several times."""

    first: float
    last: float
    count: int
    device: str
    vms: tuple[str, ...]
    text: str
    """Text of the last occurrence; of changes of a setting, from the value before the first."""
    verdict: str = ""
    """The new verdict of a change of verdict; otherwise empty."""


_MAX_CURVE_WIDTH, _MIN_CURVE_WIDTH = 80, 8


def history_lines(history: VmHistory, width: int | None) -> Iterator[Text]:
    """The interval, and the curve of IOPS on each device, within `width` unless that is None."""
    yield Text(
        f"{printable(history.vm)}: {clock(history.since, dated=True)} to {clock(history.until, dated=True)}, "
        f"means of {numbers.duration(history.bucket_s)}, P99 the worst of each",
        style="bold",
    )
    for device in devices(history):
        values = curve(history, device)
        known_values = [value for value in values if value is not None]
        if known_values:
            start = f"IOPS on {printable(device) or 'no device'}: "
            end = f"  {numbers.count(min(known_values))} to {numbers.count(max(known_values))}"
            room = _MAX_CURVE_WIDTH if width is None else width - cell_len(start + end)
            yield Text(f"{start}{sparkline(values, max(_MIN_CURVE_WIDTH, min(room, _MAX_CURVE_WIDTH)))}{end}")


def _history_columns(several_devices: bool, dated: bool) -> tuple[Column[Point], ...]:
    """Columns of the table of means."""
    columns: list[Column[Point]] = [
        Column("TIME", lambda point: clock(point.at, dated), 0, right=False),
        Column("TARGET", lambda point: numbers.count(point.target_iops), 2),
        Column("IOPS", lambda point: numbers.count(point.iops), 0),
        Column("BANDWIDTH", lambda point: numbers.bandwidth(point.bandwidth_bytes_s), 5),
        Column("P99 R", lambda point: numbers.latency(point.p99_read_us), 3),
        Column("P99 W", lambda point: numbers.latency(point.p99_write_us), 3),
        Column("THROTTLE-WAIT", lambda point: numbers.latency(point.throttle_wait_us), 8),
        Column("OPS BLOCKS", lambda point: numbers.count(point.ops_blocks), 6),
        Column("u", lambda point: numbers.decimal(point.u, 3), 7),
        Column("WAF", lambda point: numbers.decimal(point.waf), 4),
    ]
    if several_devices:
        columns.insert(1, Column("DEVICE", lambda point: point.device, 1, right=False))
    return tuple(columns)


def print_history(console: Console, history: VmHistory, width: int | None) -> None:
    """A row for each bucket and device, with events in between; repeated events once, at their last time."""
    dated = history.until - history.since > DAY_S
    table = table_of(_history_columns(len(devices(history)) > 1, dated), history.points, width)
    # Events span all columns, which a table cannot, so its lines are rendered first and interleaved.
    drawn = console.render_lines(table, console.options.update(no_wrap=True), pad=False)
    head, rows = drawn[: len(drawn) - len(history.points)], drawn[len(drawn) - len(history.points) :]
    pending = list(folded_events([history]))
    for line in head:
        console.print(Segments([*line, Segment.line()]), end="")
    for point, line in zip(history.points, rows, strict=True):
        while pending and pending[0].last < point.at:
            _print_event(console, pending.pop(0), dated)
        console.print(Segments([*line, Segment.line()]), end="")
    for event in pending:
        _print_event(console, event, dated)


def _print_event(console: Console, event: HistoryEvent, dated: bool) -> None:
    text = Text(f"{clock(event.last, dated)}  * ")
    if event.device:
        text.append(f"{printable(event.device)}: ")
    text.append("verdict " if event.verdict else "")
    text.append(printable(event.text), style=STYLES.get(event.verdict, ""))
    if event.count > 1:
        text.append(f" ({event.count:,} times since {clock(event.first, dated)})", style="dim")
    print_line(console, text, indent=len(f"{clock(event.last, dated)}  * "))


def folded_events(histories: Iterable[VmHistory]) -> tuple[HistoryEvent, ...]:
    """Verdict changes, decisions and settings of all VMs by their last time; repeated ones are one event.

    Verdict changes are repeated if both verdicts are the same, and other events if only numbers differ.
    """
    folded: dict[tuple[object, ...], HistoryEvent] = {}
    for key, event in sorted(_events(histories), key=lambda each: each[1].first):
        before = folded.get(key)
        folded[key] = replace(event, first=before.first, count=before.count + 1) if before else event
    return tuple(sorted(folded.values(), key=lambda event: (event.last, event.first)))


def _events(histories: Iterable[VmHistory]) -> Iterator[tuple[tuple[object, ...], HistoryEvent]]:
    decisions: dict[tuple[float, str, str], list[str]] = {}
    for history in histories:
        verdict_on: dict[str, str] = {}
        for change in history.verdicts:
            before = verdict_on.get(change.device, "")
            verdict_on[change.device] = change.verdict
            if change.at < history.since:
                continue
            transition = f"{before} -> {change.verdict}" if before else change.verdict
            event = _event(change.at, change.device, (history.vm,), f"{transition}: {change.reason}")
            yield (("verdict", history.vm, change.device, transition), replace(event, verdict=change.verdict))
        for decision in history.decisions:
            # A decision is in the history of every VM that it is about.
            decisions.setdefault((decision.at, decision.device, decision.reason), []).append(history.vm)
        first_of: dict[tuple[object, ...], PastOutcome] = {}
        for outcome in history.outcomes:
            reason = _pattern(outcome.reason or outcome.why)
            key = ("setting", history.vm, outcome.knob, outcome.state, reason)
            # Several changes together are one from the first value to the last.
            change_text = outcome_text(replace(outcome, before=first_of.setdefault(key, outcome).before))
            yield key, _event(outcome.at, "", (history.vm,), change_text)
        for slo in history.slo_changes:
            text = f"SLO: {slo.what} by {slo.user}"
            yield ("slo", history.vm, text), _event(slo.at, "", (history.vm,), text)
    for (at, device, reason), names in decisions.items():
        vms = tuple(sorted(set(names)))
        yield ("decision", device, vms, _pattern(reason)), _event(at, device, vms, reason)


def _event(at: float, device: str, vms: tuple[str, ...], text: str) -> HistoryEvent:
    return HistoryEvent(at, at, 1, device, vms, text)


def _pattern(text: str) -> str:
    """The text without its numbers."""
    return _NUMBER.sub("#", text)


def outcome_text(outcome: PastOutcome) -> str:
    """State, values and reason of a setting."""
    change = " -> ".join(dict.fromkeys([setting_value(outcome.before), setting_value(outcome.value)]))
    return f"{outcome.state}: {outcome.knob} {change}: {outcome.reason or outcome.why}"


def usual_distance(points: Sequence[Point], bucket_s: float) -> float:
    """Usual distance of the points of one device: with long epochs more than a bucket."""
    distances = [later.at - point.at for point, later in pairwise(points)]
    return max(bucket_s, statistics.median(distances)) if distances else bucket_s


def curve(history: VmHistory, device: str) -> list[float | None]:
    """IOPS from the first to the last known one, at the usual distance; None where unknown."""
    points = [point for point in history.points if point.device == device]
    if not points:
        return []
    step = usual_distance(points, history.bucket_s)
    values = {round((point.at - points[0].at) / step): point.iops for point in points}
    return [values.get(number) for number in range(max(values) + 1)]


def clock(at: float, dated: bool = False) -> str:
    """Local time, with the date if `dated`."""
    return time.strftime("%Y-%m-%d %H:%M:%S" if dated else "%H:%M:%S", time.localtime(at))


def devices(history: VmHistory) -> list[str]:
    """Devices with points, in order of appearance."""
    return list(dict.fromkeys(point.device for point in history.points))
