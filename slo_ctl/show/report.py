"""The result of a replay as one HTML file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from slo_ctl.base import numbers
from slo_ctl.base.text import counted, printable
from slo_ctl.replay.result import TOLERANCE
from slo_ctl.show.charts import key_class
from slo_ctl.show.html import render_page
from slo_ctl.show.replay_charts import sections
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
    from slo_ctl.replay.result import Result, RunResult


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
