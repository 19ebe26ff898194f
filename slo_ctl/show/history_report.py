"""The history of a host as one HTML file, in the style of the report of a replay."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from slo_ctl.base import numbers
from slo_ctl.base.text import printable
from slo_ctl.base.version import tool_version
from slo_ctl.model import Slo
from slo_ctl.show.charts import Axis, Curve, Curves, Table, short_name
from slo_ctl.show.history import DAY_S, HistoryEvent, clock, folded_events
from slo_ctl.show.history_summary import (
    HostReport,
    Summary,
    covered,
    headline,
    interval_text,
    met_text,
    recommendations,
    settings_in_force,
    worst_text,
)
from slo_ctl.show.html import render_page
from slo_ctl.show.status import device_columns, device_lines, setting_value

if TYPE_CHECKING:
    from slo_ctl.record.history_reader import Point, VmHistory


_P99_FIELDS = {"reads": "p99_read_us", "writes": "p99_write_us"}
_DISTRIBUTION_POINTS = 100
_PARTS_OF_TIME = (0.5, 0.9, 0.99, 1.0)


def vm_charts(history: VmHistory, summary: Summary, slo: Slo | None) -> list[Curves]:
    """Share, IOPS, WAF and p99 of one VM on one device; what was never measured has no chart.

    `slo` is the one in force now, if known.
    """
    limits = {"min": slo.min_iops, "max": slo.max_iops} if slo else {}
    target = {"target": slo.p99_latency_us} if slo else {}
    charts: tuple[tuple[str, str, Mapping[str, str], dict[str, float | None]], ...] = (
        ("Share against entitlement", "percent", {"share": "share", "entitled": "target_share"}, {}),
        ("IOPS", "count", {"IOPS": "iops", "target": "target_iops"}, limits),
        ("WAF", "decimal", {"WAF": "waf"}, {}),
        ("p99 latency", "latency", _P99_FIELDS, target),
    )
    points = [point for point in history.points if point.device == summary.device]
    x = _times([history], [points])
    drawn = []
    for title, text, fields, levels in charts:
        found = [
            Curve(name, _values(history, points, field, x), index, dashed=index > 0)
            for index, (name, field) in enumerate(fields.items())
        ]
        if curves := [curve for curve in found if curve.known()]:
            drawn.append(
                _chart(
                    (history, history.vm),
                    (title, text),
                    (x, curves),
                    shaded=[
                        (each.since - history.since, each.until - history.since) for each in summary.missed
                    ],
                    levels=[(name, value) for name, value in levels.items() if value is not None],
                )
            )
    return [*drawn, *_p99_distribution(points, target.get("target"))]


def _p99_distribution(points: Sequence[Point], target_us: float | None) -> Iterator[Curves]:
    """For which part of the time the p99 was at most that; nothing where it was always the same."""
    known = {
        name: sorted(
            (value, point.samples) for point in points if (value := getattr(point, field)) is not None
        )
        for name, field in _P99_FIELDS.items()
    }
    measured = [value for each in known.values() for value, _ in each]
    least, most = min(measured, default=0.0), max(measured, default=0.0)
    if not 0 < least < most:
        return
    x = [float(at) for at in np.geomspace(least, most, _DISTRIBUTION_POINTS)]
    curves, rows = [], []
    for index, (name, each) in enumerate(known.items()):
        if each:
            values, ends = [value for value, _ in each], list(accumulate(samples for _, samples in each))
            shares = [0.0, *(end / ends[-1] for end in ends)]
            curves.append(
                Curve(name, [shares[bisect_right(values, at)] for at in x], index, dashed=index > 0)
            )
            rows.append(
                (name, [numbers.latency(values[bisect_left(shares, part) - 1]) for part in _PARTS_OF_TIME])
            )
    yield Curves(
        "Distribution of the p99",
        "For which part of the time the p99 was at most that. Further to the left is faster.",
        x,
        curves,
        "percent",
        Axis("p99 latency", "latency", log=True),
        x_text=numbers.latency,
        top=1.0,
        marks=[(target_us, "target")] if target_us is not None and least <= target_us <= most else [],
        numbers=Table([f"{part:.0%} OF THE TIME" for part in _PARTS_OF_TIME], rows),
    )


def ops_chart(histories: Sequence[VmHistory], device: str, name: str) -> Curves | None:
    """OPS of these VMs on one device; None when none has any."""
    points = [[point for point in history.points if point.device == device] for history in histories]
    x = _times(histories, points)
    curves = [
        Curve(short_name(history.vm), _values(history, own, "ops_blocks", x), index)
        for index, (history, own) in enumerate(zip(histories, points, strict=True))
    ]
    if not any(curve.known() for curve in curves):
        return None
    return _chart((histories[0], name), ("OPS in blocks", "count"), (x, curves))


def _chart(
    of: tuple[VmHistory, str], title: tuple[str, str], drawn: tuple[list[float], list[Curve]], **more: Any
) -> Curves:
    """Title and text; x and curves."""
    history, owner = of
    offset_s = time.localtime(history.until).tm_gmtoff
    dated = history.until - history.since > DAY_S
    return Curves(
        title[0],
        "",
        *drawn,
        title[1],
        since=history.since + offset_s,
        x_text=lambda at: clock(history.since + at, dated),
        owner=printable(owner),
        group="history",
        **more,
    )


def _spans(history: VmHistory, points: Sequence[Point]) -> list[tuple[float, float]]:
    """What each point stands for, in seconds from the beginning."""
    spans = covered(points, history.bucket_s, history.since, history.until)
    return [(round(since - history.since, 2), round(until - history.since, 2)) for since, until in spans]


def _times(histories: Sequence[VmHistory], points: Sequence[Sequence[Point]]) -> list[float]:
    """When any of the points begins or ends, and the whole interval. Just after an end there may be a gap."""
    spans = [span for history, own in zip(histories, points, strict=True) for span in _spans(history, own)]
    begins, ends = {since for since, _ in spans}, {until for _, until in spans}
    gaps = {until + 0.01 for until in ends - begins}
    return sorted({0.0, histories[0].until - histories[0].since} | begins | ends | gaps)


def _values(
    history: VmHistory, points: Sequence[Point], field: str, x: Sequence[float]
) -> list[float | None]:
    """The value that holds from each time on, and at the end of a span that of the span."""
    values: list[float | None] = [None] * len(x)
    place = {at: index for index, at in enumerate(x)}
    for point, (since, until) in zip(points, _spans(history, points), strict=True):
        value = getattr(point, field)
        values[place[since] : place[until] + 1] = [value] * (place[until] + 1 - place[since])
    return values


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
        headline=printable(headline(report)),
        recommendations=[printable(sentence) for sentence in recommendations(report)],
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
    plots: list[Curves] = []
    if index < _MOST_PLOTTED:
        history = next(each for each in report.histories if each.vm == summary.vm)
        plots = vm_charts(history, summary, _slo(report, summary))
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
    for device in sorted({each.device for each in found if each.device}):
        names = [each.vm for each in found if each.device == device and each.ops_blocks is not None]
        by_name = {history.vm: history for history in report.histories}
        drawn = [by_name[name] for name in sorted(names[:_MOST_CURVES])]
        plot = ops_chart(drawn, device, report.device_name(device)) if drawn else None
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
