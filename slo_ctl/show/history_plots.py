"""The history of VMs as plots over the time of day, inline SVG as in the report of a replay."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matplotlib.ticker import FixedLocator, FuncFormatter

from slo_ctl.base import numbers
from slo_ctl.show.history import DAY_S
from slo_ctl.show.history_summary import Summary, covered
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
            "Of what the device delivered: ",
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
