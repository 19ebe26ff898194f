"""The result of a replay as one HTML file; its charts, by section, are in the order of the paper."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from slo_ctl.base import numbers
from slo_ctl.base.text import counted, printable
from slo_ctl.replay.result import CURVE_PERCENTILES, TOLERANCE
from slo_ctl.show.html import Axis, Bar, Bars, Chart, Curve, Curves, Table, key_class, render_page, short_name
from slo_ctl.show.replay_table import (
    COMPARISON_HEADINGS,
    MERGE_HEADINGS,
    MERGE_LEGEND,
    comparison_cells,
    gain_tiles,
    headline,
    merge_rows,
    notes_of,
    recommendation,
    run_line,
    run_sentences,
    vm_cells,
    vm_headings,
    workloads_label,
)

if TYPE_CHECKING:
    from slo_ctl.replay.result import Result, RunResult, VmResult


def render_report(result: Result) -> str:
    """The HTML of `result`; all texts are escaped."""
    scenario = json.dumps(result.scenario, indent=2, ensure_ascii=False)
    return render_page(
        "report.html.j2",
        result=result,
        title=_title(result),
        workloads=workloads_label(result),
        unit=result.runs[-1].share_by.replace("-", " ") if result.runs else "",
        gain=gain_tiles(result),
        recommendation=recommendation(result),
        story=run_sentences(result),
        subject=_run_values(result, result.runs[-1]) if result.runs else None,
        others=[_run_values(result, run) for run in result.runs[:-1]],
        headings=vm_headings(),
        merge_headings=MERGE_HEADINGS,
        merge_legend=MERGE_LEGEND,
        comparison_headings=COMPARISON_HEADINGS,
        comparison=[(run.policy, comparison_cells(run)) for run in result.runs],
        sections=list(_sections(result)),
        facts=_facts(result),
        headline=headline(result),
        tolerance=numbers.percent(TOLERANCE, 0),
        result_hash=result.result_hash(),
        scenario="\n".join(map(printable, scenario.splitlines())),
    )


def _title(result: Result) -> str:
    if not result.runs:
        return "SSD replay: nothing measured"
    *others, subject = (run.policy for run in result.runs)
    return f"SSD replay: {subject}{' against ' if others else ''}{', '.join(others)}"


def _run_values(result: Result, run: RunResult) -> dict[str, Any]:
    """Values of the template for a run; `merges` is empty for a mapping without log blocks."""
    return {
        "policy": run.policy,
        "line": run_line(run),
        "complete": run.complete,
        "rows": [
            {
                "key": key_class(index),
                "name": printable(vm.name),
                "workload": printable(vm.workload),
                "cells": vm_cells(vm, result.device),
                "verdict": vm.judged().verdict,
            }
            for index, vm in enumerate(run.vms)
        ],
        "merges": [(printable(name), cells) for name, cells in merge_rows(run)],
        "notes": [printable(note) for note in notes_of(run)],
    }


def _sections(result: Result) -> Iterator[dict[str, Any]]:
    """Sections with charts; the lead is the caption that all of them share."""
    for title, charts in sections(result):
        captions = {chart.caption for chart in charts}
        yield {"title": title, "lead": captions.pop() if len(captions) == 1 else "", "plots": charts}


def _facts(result: Result) -> list[tuple[str, str]]:
    """Properties of the device and the run."""
    device, timing = result.device, result.device.timing
    latencies = ", ".join(
        f"{name} {numbers.latency(value)}"
        for name, value in (
            ("read", timing.read_us),
            ("program", timing.program_us),
            ("erase", timing.erase_us),
            ("transfer", timing.transfer_us),
            ("suspend", timing.suspend_us),
        )
        if value is not None
    )
    spans = f", a block spans {device.cluster_dies} dies" if device.cluster_dies > 1 else ""
    facts = [
        ("Device", f"{device.preset} ({result.label})"),
        ("Logical size", numbers.size(device.logical_bytes)),
        ("Over-provisioning", f"{numbers.percent(device.op)}, {counted(device.ops_blocks, 'block')}"),
        ("Pages", f"{numbers.size(device.page_bytes)}, {device.pages_per_block:,} to a block"),
        ("Parallelism", f"{device.channels} channels, {device.dies} dies, planes per die: {device.planes}"),
        ("Mapping", f"{device.mapping}{spans}"),
        ("Victim policy", device.victim_policy),
        ("Timing", f"{timing.model}: {latencies}" if latencies else timing.model),
        ("Seed", str(result.seed)),
    ]
    if device.preconditioning_drive_writes is not None:
        facts.append(
            ("Preconditioning", f"{device.preconditioning_drive_writes:.3g} drive writes until WAF settled")
        )
    return [(name, printable(value)) for name, value in facts]


# Charts.

_CDF_POINTS = 100
_TABLE_PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)


def sections(result: Result) -> Iterator[tuple[str, list[Chart]]]:
    """Title and charts of each section that this result has data for."""
    runs = [run for run in result.runs if run.vms]
    if not runs:
        return
    unit = runs[-1].share_by.replace("-", " ")
    all_sections: tuple[tuple[str, list[Chart]], ...] = (
        ("Shares and bandwidth by weight", [*_proportionality(runs, unit), *_bandwidth(runs)]),
        ("Latency", [*_latencies(runs, "write"), *_latencies(runs, "read")]),
        ("Alone and together", [*_iops_alone_and_together(runs), *_u_alone_and_together(runs)]),
        ("Pages moved by GC", [*_pages_moved(runs)]),
        ("u over time", [*_over_time(runs, "u", "u of victim blocks", "decimal", _U_CAPTION)]),
        ("OPS over time", [*_over_time(runs, "ops_blocks", "OPS in blocks", "count", _OPS_CAPTION)]),
        ("Shares over time", [*_over_time(runs, "share", f"Share of the {unit}", "percent", _SHARE_CAPTION)]),
    )
    yield from ((title, charts) for title, charts in all_sections if charts)


# Over time.

_U_CAPTION = (
    "Figure 9 of the paper draws this for a static and for a dynamic split: the valid share of the blocks "
    "that GC collects, which sets what a VM's writes cost. Lower is faster. Shaded: the measured window."
)
_OPS_CAPTION = "Over-provisioning of each VM, by which the policy controls u. Shaded: the measured window."
_SHARE_CAPTION = "Dashed: the target of each VM in the measured window, which is shaded."


def _over_time(
    runs: Sequence[RunResult], column: str, title: str, text: str, caption: str
) -> Iterator[Curves]:
    """One column of the time series per run, all to one scale; runs without it are skipped."""
    drawn = [(run, curves) for run in runs if (curves := _series(run, column))]
    # Values oscillate in the first epochs after a start, which must not determine the scale.
    top = max((_high(curves) for _, curves in drawn), default=0.0) * 1.12
    for run, curves in drawn:
        span = run.window.from_drive_writes, run.window.to_drive_writes
        targets = [
            (index, vm.target_share, span)
            for index, vm in enumerate(run.vms)
            if column == "share" and vm.target_share
        ]
        yield Curves(
            f"{title}: {run.policy}",
            caption,
            run.series.drive_writes,
            curves,
            text,
            Axis("full drive writes"),
            x_text=lambda at: f"{at:.3g}",
            group="drive writes",
            top=top,
            shaded=[span],
            targets=targets,
            marks=[(event.drive_writes, short_name(f"{event.vm} {event.action}")) for event in run.events],
        )


def _series(run: RunResult, column: str) -> list[Curve]:
    curves = [
        Curve(short_name(series.name), getattr(series, column), index)
        for index, series in enumerate(run.series.vms)
    ]
    drawn = [curve for curve in curves if curve.values]
    return drawn if any(curve.known_values() for curve in drawn) else []


def _high(curves: Sequence[Curve]) -> float:
    """The 99th percentile of the values."""
    values = sorted(value for curve in curves for value in curve.known_values())
    return max(values[int(0.99 * (len(values) - 1))], 1e-9)


# Latency.


def _latencies(runs: Sequence[RunResult], kind: str) -> Iterator[Curves]:
    """The distribution of latencies of `kind`, `read` or `write`, one chart per run, all to one scale."""
    recorded = {run.policy: [getattr(vm.latency_us, kind).curve for vm in run.vms] for run in runs}
    known = [value for curves in recorded.values() for curve in curves for value in curve if value]
    if not known:
        return
    x = np.geomspace(min(known), max(max(known), 1.01 * min(known)), _CDF_POINTS)
    for run in runs:
        curves = recorded[run.policy]
        names = [short_name(vm.name) for vm in run.vms]
        at = [CURVE_PERCENTILES.index(each) for each in _TABLE_PERCENTILES]
        yield Curves(
            f"Latency of {kind}s: {run.policy}",
            "Cumulative distribution in the measured window, from issue to completion; at the dashed line is "
            "the p99. Further to the left is faster.",
            [float(each) for each in x],
            [
                Curve(name, _cdf(curve, x), index)
                for index, (name, curve) in enumerate(zip(names, curves, strict=True))
            ],
            "percent",
            Axis(f"latency of {kind}s", "latency", log=True),
            group="latency",
            top=1.0,
            levels=[("p99", 0.99)],
            numbers=Table(
                [f"P{percentile:g}" for percentile in _TABLE_PERCENTILES],
                [
                    (name, [numbers.latency(curve[i] if i < len(curve) else None) for i in at])
                    for name, curve in zip(names, curves, strict=True)
                ],
            ),
        )


def _cdf(curve: Sequence[float], x: np.ndarray) -> list[float | None]:
    """Shares of the requests up to these latencies, interpolated between the recorded percentiles.

    Above the highest percentile its share is a lower bound.
    """
    highest = {value: each for value, each in zip(curve, CURVE_PERCENTILES, strict=False) if value}
    if not highest:
        return [None] * len(x)
    shares = np.interp(np.log(x), np.log([*highest]), [*highest.values()], left=math.nan)
    return [None if math.isnan(share) else float(share) / 100 for share in shares]


# Bars.


def _iops_alone_and_together(runs: Sequence[RunResult]) -> Iterator[Bars]:
    """Figure 4a."""
    yield from _alone_and_together(
        runs,
        "IOPS alone and together",
        "Figure 4a of the paper: the cost of sharing the preconditioned drive. Outlined: the VM alone on the "
        "drive. Paler bars: the other policies.",
        (lambda vm: vm.alone_iops, lambda vm: vm.iops),
        numbers.count,
    )


def _u_alone_and_together(runs: Sequence[RunResult]) -> Iterator[Bars]:
    """Figure 4b."""
    yield from _alone_and_together(
        runs,
        "u alone and together",
        "Figure 4b of the paper: the valid share of the blocks that GC collects. The higher it is, the more "
        "pages GC copies for every page a VM writes.",
        (lambda vm: vm.alone_victim_u, lambda vm: vm.victim_u),
        numbers.decimal,
    )


_Figure = Callable[["VmResult"], float | None]


def _alone_and_together(
    runs: Sequence[RunResult],
    title: str,
    caption: str,
    figures: tuple[_Figure, _Figure],
    format_number: Callable[[float | None], str],
) -> Iterator[Bars]:
    alone, together = figures
    if not any(together(vm) is not None for run in runs for vm in run.vms):
        return
    groups = []
    for index, vm in enumerate(runs[-1].vms):
        bars = [
            Bar(
                run.policy,
                format_number(together(run.vms[index])),
                [(together(run.vms[index]) or 0.0, index)],
                pale=run is not runs[-1],
            )
            for run in runs
        ]
        if alone(vm) is not None:
            bars.insert(0, Bar("alone", format_number(alone(vm)), [(alone(vm) or 0.0, None)]))
        groups.append((short_name(vm.name), bars))
    yield Bars(title, caption, groups)


def _pages_moved(runs: Sequence[RunResult]) -> Iterator[Bars]:
    """Figure 5b, one chart per run, all to one scale."""
    moved = [(run.policy, run.gc_pages_moved) for run in runs if run.gc_pages_moved is not None]
    scale_top = max((sum(row) for _, moved_pages in moved for row in moved_pages.pages), default=0)
    for policy, moved_pages in moved if scale_top else ():
        bars = []
        for index, (name, row) in enumerate(zip(moved_pages.vms, moved_pages.pages, strict=True)):
            parts = [(pages, owner) for owner, pages in enumerate(row)]
            bars.append(Bar(short_name(name), numbers.count(sum(row)), parts, key=key_class(index)))
        yield Bars(
            f"Pages moved by owner: {policy}",
            "Figure 5b of the paper. A bar for each VM whose writes GC worked for; colour: whose pages. A "
            "bar in its own VM's colour alone means that GC moved no neighbour's pages.",
            [("", bars)],
            scale_top=scale_top,
        )


def _bandwidth(runs: Sequence[RunResult]) -> Iterator[Bars]:
    """Figure 8a."""
    if not any(vm.bandwidth_bytes_s for run in runs for vm in run.vms):
        return
    groups = []
    for run in runs:
        base = _lightest([vm for vm in run.vms if vm.bandwidth_bytes_s])
        bars = []
        for index, vm in enumerate(run.vms):
            rate = vm.bandwidth_bytes_s or 0.0
            ratio = rate / base.bandwidth_bytes_s if base and base.bandwidth_bytes_s else None
            text = f"{numbers.bandwidth(vm.bandwidth_bytes_s)} ({numbers.decimal(ratio, 1)})"
            bars.append(Bar(_name_and_weight(vm), text, [(rate, index)]))
        groups.append((run.policy, bars))
    vms = runs[-1].vms
    smallest = _lightest([vm for vm in vms if vm.bandwidth_bytes_s] or vms)
    ratios = " : ".join(numbers.decimal(vm.weight / smallest.weight, 1) for vm in vms if smallest)
    yield Bars(
        "Bandwidth by weight",
        "Figure 8a of the paper. In brackets: bandwidth relative to the VM with the smallest weight; the "
        f"weights' own ratios would be {ratios}.",
        groups,
    )


def _proportionality(runs: Sequence[RunResult], unit: str) -> Iterator[Bars]:
    """Figure 8b, in the unit that shares are kept in."""
    groups = []
    for run in runs:
        base = _lightest([vm for vm in run.vms if vm.share and vm.target_share])
        if base is None or not base.share or len(run.vms) < 2:
            continue
        bars = []
        for index, vm in enumerate(run.vms):
            share, target = (vm.share or 0.0) / base.share, vm.weight / base.weight
            text = f"{numbers.decimal(share)} of {numbers.decimal(target)}"
            bars.append(Bar(_name_and_weight(vm), text, [(share, index)], mark=target))
        groups.append((run.policy, bars))
    if groups:
        yield Bars(
            "Proportionality",
            f"Figure 8b of the paper, by shares of the {unit}, relative to the VM with the smallest weight. "
            "A bar that ends at its mark has exactly the share of its weight.",
            groups,
        )


def _lightest(vms: Sequence[VmResult]) -> VmResult | None:
    return min(vms, key=lambda vm: vm.weight, default=None)


def _name_and_weight(vm: VmResult) -> str:
    return f"{short_name(vm.name)} (w {numbers.weight(vm.weight)})"
