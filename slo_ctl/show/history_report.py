"""The history of a host as one HTML file, in the style of the report of a replay."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from slo_ctl import tool_version
from slo_ctl.base import numbers
from slo_ctl.base.text import printable
from slo_ctl.model.slo import Slo
from slo_ctl.show.history import DAY_S, HistoryEvent, clock, folded_events
from slo_ctl.show.history_summary import (
    HostReport,
    Summary,
    covered,
    headline,
    interval_text,
    met_percent,
    met_text,
    recommendations,
    settings_in_force,
    worst_text,
)
from slo_ctl.show.html import Axis, Curve, Curves, Table, render_page, short_name
from slo_ctl.show.status import device_columns, device_lines, setting_value

if TYPE_CHECKING:
    from slo_ctl.record.history_reader import Point, VmHistory


_P99_FIELDS = {"reads": "p99_read_us", "writes": "p99_write_us"}
_DISTRIBUTION_POINTS = 100
_TIME_SHARES = (0.5, 0.9, 0.99, 1.0)


def vm_charts(history: VmHistory, summary: Summary, slo: Slo | None) -> list[Curves]:
    """Share, IOPS, WAF and p99 of one VM on one device, where measured.

    `slo` is the SLO that is in force now, if known.
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
    shaded = [(each.since - history.since, each.until - history.since) for each in summary.missed]
    drawn = []
    for title, text, fields, levels in charts:
        curves = [
            Curve(name, _values(history, points, field, x), index, dashed=index > 0)
            for index, (name, field) in enumerate(fields.items())
        ]
        measured = [curve for curve in curves if curve.known_values()]
        known_levels = [(name, value) for name, value in levels.items() if value is not None]
        if measured:
            drawn.append(
                _chart(history, history.vm, title, text, x, measured, shaded=shaded, levels=known_levels)
            )
    return [*drawn, *_p99_distribution(points, target.get("target"))]


def _p99_distribution(points: Sequence[Point], target_us: float | None) -> Iterator[Curves]:
    """The part of the time in which the p99 was at most that; nothing if it was always the same."""
    weighted_p99 = {
        name: sorted(
            (value, point.samples) for point in points if (value := getattr(point, field)) is not None
        )
        for name, field in _P99_FIELDS.items()
    }
    measured = [value for pairs in weighted_p99.values() for value, _ in pairs]
    smallest, largest = min(measured, default=0.0), max(measured, default=0.0)
    if not 0 < smallest < largest:
        return
    x = [float(at) for at in np.geomspace(smallest, largest, _DISTRIBUTION_POINTS)]
    curves, rows = [], []
    for index, (name, pairs) in enumerate(weighted_p99.items()):
        if not pairs:
            continue
        values, samples = [value for value, _ in pairs], list(accumulate(samples for _, samples in pairs))
        shares = [0.0, *(count / samples[-1] for count in samples)]
        curve = [shares[bisect_right(values, at)] for at in x]
        curves.append(Curve(name, curve, index, dashed=index > 0))
        quantiles = [values[bisect_left(shares, share) - 1] for share in _TIME_SHARES]
        rows.append((name, [numbers.latency(value) for value in quantiles]))
    yield Curves(
        "Distribution of the p99",
        "Part of the time in which the p99 was at most that. Further to the left is faster.",
        x,
        curves,
        "percent",
        Axis("p99 latency", "latency", log=True),
        x_text=numbers.latency,
        top=1.0,
        marks=[(target_us, "target")] if target_us is not None and smallest <= target_us <= largest else [],
        numbers=Table([f"{share:.0%} OF THE TIME" for share in _TIME_SHARES], rows),
    )


def ops_chart(histories: Sequence[VmHistory], device: str, name: str) -> Curves | None:
    """OPS of these VMs on one device; None if it was not measured."""
    points = [[point for point in history.points if point.device == device] for history in histories]
    x = _times(histories, points)
    curves = [
        Curve(short_name(history.vm), _values(history, own_points, "ops_blocks", x), index)
        for index, (history, own_points) in enumerate(zip(histories, points, strict=True))
    ]
    if not any(curve.known_values() for curve in curves):
        return None
    return _chart(histories[0], name, "OPS in blocks", "count", x, curves)


def _chart(
    history: VmHistory, owner: str, title: str, text: str, x: list[float], curves: list[Curve], **options: Any
) -> Curves:
    """Curves over the interval of a history. `options`: further fields."""
    offset_s = time.localtime(history.until).tm_gmtoff
    dated = history.until - history.since > DAY_S
    return Curves(
        title,
        "",
        x,
        curves,
        text,
        since=history.since + offset_s,
        x_text=lambda at: clock(history.since + at, dated),
        owner=printable(owner),
        group="history",
        **options,
    )


def _spans(history: VmHistory, points: Sequence[Point]) -> list[tuple[float, float]]:
    """The time that each point is a mean of, in seconds after the start of the history."""
    spans = covered(points, history.bucket_s, history.since, history.until)
    return [(round(since - history.since, 2), round(until - history.since, 2)) for since, until in spans]


def _times(histories: Sequence[VmHistory], points: Sequence[Sequence[Point]]) -> list[float]:
    """Start and end of each point and of the interval. A time just after an end is in a gap."""
    spans = [
        span
        for history, own_points in zip(histories, points, strict=True)
        for span in _spans(history, own_points)
    ]
    begins, ends = {since for since, _ in spans}, {until for _, until in spans}
    gaps = {until + 0.01 for until in ends - begins}
    return sorted({0.0, histories[0].until - histories[0].since} | begins | ends | gaps)


def _values(
    history: VmHistory, points: Sequence[Point], field: str, x: Sequence[float]
) -> list[float | None]:
    """The value at each time; at the end of the time of a point, still its value."""
    values: list[float | None] = [None] * len(x)
    index_of = {at: index for index, at in enumerate(x)}
    for point, (since, until) in zip(points, _spans(history, points), strict=True):
        value = getattr(point, field)
        values[index_of[since] : index_of[until] + 1] = [value] * (index_of[until] + 1 - index_of[since])
    return values


_MAX_PLOTTED = 20
"""VMs with plots: a page with the plots of hundreds would be too large to open."""
_MAX_CURVES = 12
_MAX_EVENTS = 500
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


# Values of the template.


def render_history_report(report: HostReport) -> str:
    """The HTML of `report`; all texts are escaped."""
    summaries = report.summaries
    events = folded_events(report.histories)
    settings = settings_in_force(report.histories)
    dated = report.until - report.since > DAY_S
    return render_page(
        "history.html.j2",
        title=_title(report),
        headline=printable(headline(report)),
        recommendations=[printable(sentence) for sentence in recommendations(report)],
        interval=interval_text(report),
        clock_note=_clock_note(report),
        emulated=bool({each.device for each in summaries} & report.emulated),
        bucket=numbers.duration(report.histories[0].bucket_s),
        headings=_HEADINGS,
        vms=[_vm(report, each, index) for index, each in enumerate(summaries)],
        most_plotted=_MAX_PLOTTED,
        devices=_devices(report, summaries),
        settings=[
            (
                clock(each.since, dated),
                *map(printable, (each.vm, each.knob, setting_value(each.value), each.why)),
            )
            for each in settings
        ],
        events=[_event(report, each, dated) for each in events[-_MAX_EVENTS:]],
        left_out=max(0, len(events) - _MAX_EVENTS),
        slos_known=report.now is not None,
        version=tool_version(),
    )


def _title(report: HostReport) -> str:
    names = [printable(history.vm) for history in report.histories]
    return f"SLOs of {', '.join(names)}" if len(names) <= 3 else f"SLOs of {len(names):,} VMs"


def _clock_note(report: HostReport) -> str:
    """That summer time began or ended in the interval, which axes do not show; else empty."""
    begin, end = time.localtime(report.since), time.localtime(report.until)
    if begin.tm_gmtoff == end.tm_gmtoff:
        return ""
    return f"Clocks changed in this time: the axes of plots have the time at its end, {end.tm_zone}."


def _vm(report: HostReport, summary: Summary, index: int) -> dict[str, Any]:
    plots: list[Curves] = []
    if index < _MAX_PLOTTED:
        history = next(each for each in report.histories if each.vm == summary.vm)
        plots = vm_charts(history, summary, _slo(report, summary))
    return {
        "name": printable(summary.vm),
        "device": printable(report.device_name(summary.device)) or numbers.UNKNOWN,
        "verdict": printable(summary.verdict),
        "met_share": met_percent(summary.met),
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


def _devices(report: HostReport, summaries: tuple[Summary, ...]) -> list[dict[str, Any]]:
    """Devices that the VMs used, by name."""
    values = []
    for device in sorted({summary.device for summary in summaries if summary.device}):
        names = [
            summary.vm for summary in summaries if summary.device == device and summary.ops_blocks is not None
        ]
        by_name = {history.vm: history for history in report.histories}
        drawn = [by_name[name] for name in sorted(names[:_MAX_CURVES])]
        plot = ops_chart(drawn, device, report.device_name(device)) if drawn else None
        facts, lines = _device_facts(report, device)
        note = f"{_MAX_CURVES} of {len(names):,} VMs are drawn." if len(names) > _MAX_CURVES else ""
        if plot or facts:
            values.append(
                {
                    "name": printable(report.device_name(device)),
                    "facts": facts,
                    "lines": lines,
                    "plots": [plot] if plot else [],
                    "note": note,
                }
            )
    return values


def _device_facts(report: HostReport, name: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Present properties of a device with their headings, and lines about it; empty for a past report."""
    status = report.now
    device = next((each for each in status.devices if each.name == name), None) if status else None
    if status is None or device is None:
        return [], []
    cells = [(column.heading, column.text(device).plain) for column in device_columns(status)[1:]]
    return [cell for cell in cells if cell[1] != numbers.UNKNOWN], [
        str(line) for line in device_lines(device)
    ]


def _event(report: HostReport, event: HistoryEvent, dated: bool) -> dict[str, str]:
    time_text = clock(event.last, dated)
    if event.count > 1:
        time_text = f"{clock(event.first, dated)} to {time_text}"
    places = [", ".join(event.vms)] + ([report.device_name(event.device)] if event.device else [])
    return {
        "time": time_text,
        "count": f"{event.count:,}",
        "where": printable(" on ".join(places)),
        "text": printable(event.text),
    }
