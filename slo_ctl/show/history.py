"""The history of a VM on a terminal: means, with events in between."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.segment import Segment, Segments
from rich.text import Text

from slo_ctl.base import numbers
from slo_ctl.base.text import printable
from slo_ctl.model import Verdict
from slo_ctl.show.status import STYLES, setting_value
from slo_ctl.show.terminal import Column, sparkline, table_of

if TYPE_CHECKING:
    from rich.console import Console

    from slo_ctl.record.history_reader import OutcomeSeen, Point, VmHistory

DAY_S = 86400.0
"""Longer intervals are shown with dates."""


@dataclass(frozen=True, slots=True)
class Event:
    """A line of text with its time."""

    at: float
    text: Text


def history_lines(history: VmHistory) -> Iterator[Text]:
    """The interval, and the curve of IOPS on each device."""
    yield Text(
        f"{printable(history.vm)}: {clock(history.since, dated=True)} to {clock(history.until, dated=True)}, "
        f"means of {numbers.duration(history.bucket_s)}, P99 the worst of each",
        style="bold",
    )
    for device in devices(history):
        values = curve(history, device)
        known = [value for value in values if value is not None]
        if known:
            yield Text(
                f"IOPS on {printable(device) or 'no device'}: {sparkline(values, 80)}  "
                f"{numbers.count(min(known))} to {numbers.count(max(known))}"
            )


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
        columns.insert(1, Column("DEVICE", lambda point: printable(point.device), 1, right=False))
    return tuple(columns)


def print_history(console: Console, history: VmHistory, width: int | None) -> None:
    """A row for each bucket and device, with verdicts, decisions and outcomes in order of time."""
    dated = history.until - history.since > DAY_S
    table = table_of(_history_columns(len(devices(history)) > 1, dated), history.points, width)
    # Events span all columns, which a table cannot, so its lines are rendered first and interleaved.
    drawn = console.render_lines(table, console.options.update(no_wrap=True), pad=False)
    head, rows = drawn[: len(drawn) - len(history.points)], drawn[len(drawn) - len(history.points) :]
    pending = events(history)
    for line in head:
        console.print(Segments([*line, Segment.line()]), end="")
    for point, line in zip(history.points, rows, strict=True):
        while pending and pending[0].at < point.at:
            _print_event(console, pending.pop(0), dated)
        console.print(Segments([*line, Segment.line()]), end="")
    for event in pending:
        _print_event(console, event, dated)


def _print_event(console: Console, event: Event, dated: bool) -> None:
    console.print(Text.assemble(f"{clock(event.at, dated)}  * ", event.text), soft_wrap=True)


def events(history: VmHistory) -> list[Event]:
    """Verdict changes, decisions, outcomes and changes of the SLO, in order of time."""
    found: list[Event] = []
    for change in history.verdicts:
        text = Text("verdict ")
        text.append(printable(change.verdict), style=_style(change.verdict))
        text.append(f" on {printable(change.device)}" if change.device else "")
        text.append(f": {printable(change.reason)}")
        found.append(Event(change.at, text))
    found += [Event(each.at, Text(printable(f"{each.device}: {each.reason}"))) for each in history.decisions]
    found += [Event(each.at, Text(printable(outcome_text(each)))) for each in history.outcomes]
    found += [
        Event(each.at, Text(printable(f"SLO: {each.what} by {each.user}"))) for each in history.slo_changes
    ]
    return sorted(found, key=lambda event: event.at)


def outcome_text(outcome: OutcomeSeen) -> str:
    """What became of a setting, and why."""
    change = f"{setting_value(outcome.before)} -> {setting_value(outcome.value)}"
    return f"{outcome.state}: {outcome.knob} {change}: {outcome.reason or outcome.why}"


def curve(history: VmHistory, device: str) -> list[float | None]:
    """IOPS in every bucket from the first to the last known one; None where unknown."""
    points = {
        round(point.at / history.bucket_s): point.iops for point in history.points if point.device == device
    }
    if not points:
        return []
    return [points.get(number) for number in range(min(points), max(points) + 1)]


def clock(at: float, dated: bool = False) -> str:
    """Local time, with the date if `dated`."""
    return time.strftime("%Y-%m-%d %H:%M:%S" if dated else "%H:%M:%S", time.localtime(at))


def devices(history: VmHistory) -> list[str]:
    """Devices with points, in order of appearance."""
    return list(dict.fromkeys(point.device for point in history.points))


def _style(verdict: str) -> str:
    try:
        return STYLES[Verdict(verdict)]
    except ValueError:  # of another release
        return ""
