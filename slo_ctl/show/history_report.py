"""The history of a host as one self-contained HTML file, in the style of the report of a replay."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matplotlib.ticker import FixedLocator, FuncFormatter

from slo_ctl.base import numbers
from slo_ctl.base.text import printable
from slo_ctl.base.version import tool_version
from slo_ctl.model import Slo
from slo_ctl.show.history import DAY_S, HistoryEvent, clock, folded_events
from slo_ctl.show.history_summary import (
    HostReport,
    Summary,
    covered,
    interval_text,
    met_text,
    settings_in_force,
    worst_text,
)
from slo_ctl.show.plot_parts import (
    GRID,
    MUTED,
    Plot,
    headroom,
    inline_svg,
    legend_place,
    plot_figure,
    short_name,
    vm_colour,
    vm_dashes,
)
from slo_ctl.show.report import render_page
from slo_ctl.show.status import device_columns, device_lines, setting_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from slo_ctl.model import Slo
    from slo_ctl.record.history_reader import Point, VmHistory


_TICKS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_MOST_TICKS = 6


@dataclass(frozen=True, slots=True)
class _Curve:
    label: str
    points: Sequence[Point]
    field: str
    colour: str
    style: Any = "solid"


@dataclass(frozen=True, slots=True)
class _Level:
    """A line across the plot."""

    label: str
    value: float | None


def vm_plots(history: VmHistory, summary: Summary, slo: Slo | None, key: str) -> list[Plot]:
    """Share, IOPS, p99 and WAF of one VM on one device; what was never measured has no plot.

    `slo` is the one in force now, if known; `key` keeps the ids of plots on a page apart.
    """
    points = [point for point in history.points if point.device == summary.device]
    blue, orange = vm_colour(0).stand_in, vm_colour(1).stand_in
    dotted = (0, (1, 1.6))
    minimum, maximum, latency = (
        (slo.min_iops, slo.max_iops, slo.p99_latency_us) if slo else (None, None, None)
    )
    drawn = [
        _plot(
            (history, summary, f"share-{key}"),
            "Share against entitlement",
            "Of the work that the device delivered: ",
            [
                _Curve("share", points, "share", blue),
                _Curve("entitled", points, "target_share", MUTED.stand_in, dotted),
            ],
            text=lambda value: f"{value * 100:g}%",
            say=numbers.percent,
        ),
        _plot(
            (history, summary, f"iops-{key}"),
            "IOPS",
            "",
            [
                _Curve("IOPS", points, "iops", blue),
                _Curve("target", points, "target_iops", MUTED.stand_in, dotted),
            ],
            [_Level("min", minimum), _Level("max", maximum)],
            say=numbers.count,
        ),
        _plot(
            (history, summary, f"p99-{key}"),
            "p99 latency",
            "The worst of each interval: ",
            [
                _Curve("reads", points, "p99_read_us", blue),
                _Curve("writes", points, "p99_write_us", orange, vm_dashes(6)),
            ],
            [_Level("target", latency)],
            text=lambda value: f"{value / 1000:g} ms",
            say=numbers.latency,
        ),
        _plot(
            (history, summary, f"waf-{key}"),
            "WAF",
            "",
            [_Curve("WAF", points, "waf", blue)],
            say=numbers.decimal,
        ),
    ]
    return [plot for plot in drawn if plot is not None]


def ops_plot(histories: Sequence[VmHistory], device: str, key: str) -> Plot | None:
    """OPS of these VMs on one device; None when none has any."""
    curves = []
    for index, history in enumerate(histories):
        points = [point for point in history.points if point.device == device]
        curves.append(
            _Curve(short_name(history.vm), points, "ops_blocks", vm_colour(index).stand_in, vm_dashes(index))
        )
    return _plot((histories[0], None, f"ops-{key}"), "OPS in blocks", "", curves, say=numbers.count)


def _plot(
    of: tuple[VmHistory, Summary | None, str],
    title: str,
    caption: str,
    curves: Sequence[_Curve],
    levels: Sequence[_Level] = (),
    text: Callable[[float], str] | None = None,
    say: Callable[[float | None], str] = numbers.count,
) -> Plot | None:
    history, summary, key = of
    known = [curve for curve in curves if _values(curve)]
    if not known:
        return None
    with plot_figure() as (figure, axes):
        for stretch in summary.missed if summary else ():
            axes.axvspan(stretch.since, stretch.until, color=GRID.stand_in, alpha=0.6, linewidth=0)
        handles = [_draw(axes, curve, history) for curve in known]
        labels = [curve.label for curve in known]
        for level in levels:
            if level.value is not None:
                handles.append(
                    axes.axhline(
                        level.value,
                        color=MUTED.stand_in,
                        linewidth=1.1,
                        linestyle=(0, (5, 2)) if level is levels[0] else (0, (5, 2, 1, 2)),
                    )
                )
                labels.append(f"{level.label} {say(level.value)}")
        axes.set_xlim(history.since, history.until)
        _time_axis(axes, history.since, history.until)
        axes.set_ylim(bottom=0)
        headroom(axes)
        if text is not None:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
        if len(labels) > 1:
            legend = axes.legend(handles, ["." for _ in labels], **legend_place(axes, labels))
            # A label given to `legend` loses a leading underscore's entry.
            for entry, label in zip(legend.get_texts(), labels, strict=True):
                entry.set_text(label)
        svg = inline_svg(figure, key)
    return Plot(key, title, f"{caption}{_latest_values(known, say)}", svg)


def _draw(axes: Axes, curve: _Curve, history: VmHistory) -> Any:
    """A step for each bucket, with a gap where nothing was measured."""
    times: list[float] = []
    values: list[float] = []
    spans = covered(curve.points, history.bucket_s, history.since, history.until)
    for point, (since, until) in zip(curve.points, spans, strict=True):
        value = getattr(point, curve.field)
        number = float("nan") if value is None else float(value)
        if times and since > times[-1] + 1e-3:
            times.append(times[-1])
            values.append(float("nan"))
        times += [since, until]
        values += [number, number]
    (line,) = axes.plot(times, values, color=curve.colour, linestyle=curve.style, linewidth=1.4)
    return line


def _values(curve: _Curve) -> list[float]:
    return [value for point in curve.points if (value := getattr(point, curve.field)) is not None]


def _latest_values(curves: Sequence[_Curve], say: Callable[[float | None], str]) -> str:
    """Latest values in words, for screen readers."""
    parts = []
    for curve in curves:
        values = _values(curve)
        low, high = say(min(values)), say(max(values))
        parts.append(f"{curve.label} {low}" if low == high else f"{curve.label} {low} to {high}")
    return f"{'; '.join(parts)}."


def _time_axis(axes: Axes, since: float, until: float) -> None:
    """Ticks at full minutes, hours or days of local time."""
    span = until - since
    step = next((each for each in _TICKS_S if span / each <= _MOST_TICKS), 86400 * -(-int(span) // 518400))
    form = (
        "%H:%M:%S" if step < 60 else "%H:%M" if span <= DAY_S else "%d %b" if step >= 86400 else "%d. %H:%M"
    )
    offset = time.localtime(since).tm_gmtoff
    first = -(-(since + offset) // step) * step - offset
    ticks = [first + number * step for number in range(int((until - first) // step) + 1)]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: time.strftime(form, time.localtime(at))))


_MOST_PLOTTED = 20
"""VMs with plots; a page of hundreds of them would be too large to open."""
_MOST_CURVES = 12
_MOST_EVENTS = 500
_HEADINGS = (
    "SLO MET",
    "LAST VERDICT",
    "SHARE",
    "ENTITLED",
    "IOPS",
    "BANDWIDTH",
    "P99 R",
    "P99 W",
    "OPS BLOCKS",
    "WAF",
)


# Values of the template: what it writes of a VM, a device and an event.


def render_history_report(report: HostReport) -> str:
    """The HTML of `report`; all texts are escaped."""
    found = report.summaries()
    events = folded_events(report.histories)
    settings = settings_in_force(report.histories)
    dated = report.until - report.since > DAY_S
    return render_page(
        "history.html.j2",
        title=_title(report),
        interval=interval_text(report),
        emulated=bool({each.device for each in found} & report.emulated),
        bucket=numbers.duration(report.histories[0].bucket_s),
        headings=_HEADINGS,
        vms=[_vm(report, each, index) for index, each in enumerate(found)],
        most_plotted=_MOST_PLOTTED,
        devices=_devices(report, found),
        settings=[
            (
                clock(each.since, dated),
                *map(printable, (each.vm, each.knob, setting_value(each.value), each.why)),
            )
            for each in settings
        ],
        events=[_event(report, each, dated) for each in events[-_MOST_EVENTS:]],
        left_out=max(0, len(events) - _MOST_EVENTS),
        slos_known=report.now is not None,
        version=tool_version(),
    )


def _title(report: HostReport) -> str:
    names = [printable(history.vm) for history in report.histories]
    return f"SLOs of {', '.join(names)}" if len(names) <= 3 else f"SLOs of {len(names):,} VMs"


def _vm(report: HostReport, summary: Summary, index: int) -> dict[str, Any]:
    plots = []
    if index < _MOST_PLOTTED:
        history = next(each for each in report.histories if each.vm == summary.vm)
        plots = vm_plots(history, summary, _slo(report, summary), str(index))
    return {
        "name": printable(summary.vm),
        "device": printable(report.device_name(summary.device)) or numbers.UNKNOWN,
        "verdict": printable(summary.verdict),
        "met_share": numbers.percent(summary.met),
        "met": printable(met_text(summary)),
        "worst": printable(worst_text(summary, report)),
        "reason": printable(summary.reason),
        "cells": [
            numbers.percent(summary.share),
            numbers.percent(summary.target_share),
            numbers.count(summary.iops),
            numbers.bandwidth(summary.bandwidth_bytes_s),
            numbers.latency(summary.p99_read_us),
            numbers.latency(summary.p99_write_us),
            numbers.count(summary.ops_blocks),
            numbers.decimal(summary.waf),
        ],
        "plots": plots,
    }


def _slo(report: HostReport, summary: Summary) -> Slo | None:
    vms = report.now.vms if report.now else ()
    return next((vm.slo for vm in vms if (vm.vm, vm.device) == (summary.vm, summary.device)), None)


def _devices(report: HostReport, found: tuple[Summary, ...]) -> list[dict[str, Any]]:
    """Devices that the VMs were on, by name."""
    views = []
    for number, device in enumerate(sorted({each.device for each in found if each.device})):
        names = [each.vm for each in found if each.device == device and each.ops_blocks is not None]
        by_name = {history.vm: history for history in report.histories}
        drawn = [by_name[name] for name in sorted(names[:_MOST_CURVES])]
        plot = ops_plot(drawn, device, str(number)) if drawn else None
        facts, lines = _device_facts(report, device)
        note = f"{_MOST_CURVES} of {len(names):,} VMs are drawn." if len(names) > _MOST_CURVES else ""
        if plot or facts:
            views.append(
                {
                    "name": printable(report.device_name(device)),
                    "facts": facts,
                    "lines": lines,
                    "plots": [plot] if plot else [],
                    "note": note,
                }
            )
    return views


def _device_facts(report: HostReport, name: str) -> tuple[list[tuple[str, str]], list[str]]:
    """What is known of one device at the moment, with headings, and lines about it; none of a past report."""
    status = report.now
    device = next((each for each in status.devices if each.name == name), None) if status else None
    if status is None or device is None:
        return [], []
    cells = [(column.heading, str(column.cell(device))) for column in device_columns(status)[1:]]
    return [cell for cell in cells if cell[1] != numbers.UNKNOWN], [
        str(line) for line in device_lines(device)
    ]


def _event(report: HostReport, event: HistoryEvent, dated: bool) -> dict[str, str]:
    when = clock(event.last, dated)
    if event.count > 1:
        when = f"{clock(event.first, dated)} to {when}"
    where = [", ".join(event.vms)] + ([report.device_name(event.device)] if event.device else [])
    return {
        "time": when,
        "count": f"{event.count:,}",
        "where": printable(" on ".join(where)),
        "text": printable(event.text),
    }
