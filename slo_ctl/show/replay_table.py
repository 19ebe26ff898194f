"""Results of a replay: verdicts, a summary in sentences, and tables on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from slo_ctl.base import numbers
from slo_ctl.base.text import and_list, printable
from slo_ctl.model.status import Verdict
from slo_ctl.replay.result import TOLERANCE
from slo_ctl.show.status import verdict_text
from slo_ctl.show.terminal import NAME_WIDTH, empty_table, print_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from slo_ctl.replay.result import DeviceResult, GcPagesMoved, Merges, Result, RunResult, VmResult

_US_PER_S = 1e6

MERGE_HEADINGS = ("SWITCH", "PARTIAL", "FULL", "PER 1000", "TIME", "BLOCKS/FULL", "MEAN FULL")
"""Headings of `_merge_cells`; a narrow terminal shows the first five."""
_NARROW_CELLS = 5
_VERDICT = "VERDICT"
COMPARISON_HEADINGS = ("IOPS", "WAF", "SHARE ERROR", "P99 WRITE", "FOREIGN GC PAGES", "BELOW TARGET")
"""Headings of `comparison_cells`."""
MERGE_LEGEND = (
    "Merges caused by the writes of each VM in the measured window. PER 1000: merges of all kinds per 1000 "
    "host page writes. TIME: of dies and channels. BLOCKS/FULL: logical blocks per full merge."
)


def merge_rows(run: RunResult) -> list[tuple[str, list[str]]]:
    """VMs with their cells; empty for a mapping without log blocks."""
    return [
        (vm.name, _merge_cells(vm.merges, vm.host_page_writes)) for vm in run.vms if vm.merges is not None
    ]


def _merge_cells(merges: Merges, host_page_writes: int) -> list[str]:
    """The numbers of one VM."""
    merged = merges.switch + merges.partial + merges.full
    times_s = [merges.switch_s, merges.partial_s, merges.full_s]
    known_s = [each for each in times_s if each is not None]
    mean_us = merges.full_s * _US_PER_S / merges.full if merges.full_s is not None and merges.full else None
    return [
        numbers.count(merges.switch),
        numbers.count(merges.partial),
        numbers.count(merges.full),
        numbers.decimal(1000 * merged / host_page_writes) if host_page_writes else numbers.UNKNOWN,
        numbers.latency(sum(known_s) * _US_PER_S) if known_s else numbers.UNKNOWN,
        numbers.decimal(merges.merged_blocks / merges.full) if merges.full else numbers.UNKNOWN,
        numbers.latency(mean_us),
    ]


def worst_share_error(run: RunResult) -> float | None:
    """The share error furthest from 0, with its sign; None when no VM has one."""
    errors = (vm.share_error for vm in run.vms)
    return max((error for error in errors if error is not None), key=abs, default=None)


def story(result: Result) -> list[str]:
    """A summary in sentences: each run, then the last compared with the first."""
    overall = (_gain(result), recommendation(result))
    return [*run_sentences(result), *(sentence for sentence in overall if sentence)]


def run_sentences(result: Result) -> list[str]:
    """One or two sentences for each run: whose pages GC moved, and deviations of shares."""
    if not result.runs:
        return ["No run reached the measured window."]
    return [f"{run.policy}: {_interference(run)} {_shares(run)}".rstrip() for run in result.runs]


def gain_tiles(result: Result) -> list[tuple[str, str, str]]:
    """The changes as name, value and previous value, as far as both runs measured them."""
    if len(result.runs) < 2:
        return []
    first, last = result.runs[0], result.runs[-1]
    tiles = []
    if first.iops and last.iops:
        change = numbers.signed_percent(last.iops / first.iops - 1)
        tiles.append(("Total IOPS", change, f"{numbers.count(first.iops)} to {numbers.count(last.iops)}"))
    before, after = worst_share_error(first), worst_share_error(last)
    if before is not None and after is not None:
        previous = f"{numbers.signed_percent(before)} with {first.policy}"
        tiles.append(("Worst share error", numbers.signed_percent(after), previous))
    if first.waf and last.waf:
        tiles.append(("WAF", numbers.decimal(last.waf), f"{numbers.decimal(first.waf)} with {first.policy}"))
    below = [f"{len(_below_target(run))} of {len(run.vms)}" for run in (first, last)]
    tiles.append(("VMs below target", below[1], f"{below[0]} with {first.policy}"))
    return tiles


def recommendation(result: Result) -> str:
    """The policy with the fewest VMs below their targets, and of those the one with the highest total."""
    runs = [run for run in result.runs if run.complete and run.iops]
    if len(runs) < 2:
        return ""
    # Of equal ones the last, as those to compare with come first.
    best = min(reversed(runs), key=lambda run: (len(_below_target(run)), -(run.iops or 0.0)))
    below_target = _below_target(best)
    result_text = (
        f"the fewest VMs are below their targets ({and_list(below_target)})"
        if below_target
        else "no VM is below its target"
    )
    equal_runs = [run for run in runs if len(_below_target(run)) == len(below_target)]
    total = f"the total is the highest of the {len(equal_runs)} policies with that" if equal_runs[1:] else ""
    return f"Recommended here: {best.policy}: {result_text}{f', and {total}' if total else ''}."


def _below_target(run: RunResult) -> list[str]:
    return [vm.name for vm in run.vms if vm.judged().verdict is Verdict.INSUFFICIENT]


def foreign_pages(moved: GcPagesMoved) -> tuple[int, int]:
    """Pages that GC moved for a VM other than their owner, and all pages it moved."""
    total = sum(map(sum, moved.pages))
    own_pages = sum(row[index] for index, row in enumerate(moved.pages))
    return total - own_pages, total


def _interference(run: RunResult) -> str:
    layout = (
        "every VM has its own flash blocks and OPS" if run.isolated else "the pages of all VMs share one pool"
    )
    if run.gc_pages_moved is None:
        return f"{layout}."
    foreign, total = foreign_pages(run.gc_pages_moved)
    if total == 0:
        return f"{layout}; GC moved no pages."
    if foreign == 0:
        return f"{layout}; all {numbers.count(total)} pages moved by GC belonged to the VM that caused it."
    return (
        f"{layout}; {numbers.percent(foreign / total, 0)} of the {numbers.count(total)} pages moved by GC "
        "belonged to a VM other than the one that caused it."
    )


def _shares(run: RunResult) -> str:
    worst = worst_share_error(run)
    if worst is None:
        return ""
    if abs(worst) <= TOLERANCE:
        return f"Every VM's share of the {_unit(run)} is within {numbers.percent(abs(worst))} of its target."
    furthest = max(run.vms, key=lambda vm: abs(vm.share_error or 0.0))
    deviation = (
        f"{furthest.name} deviates most: entitled to {numbers.percent(furthest.target_share)} of "
        f"the {_unit(run)} and received {numbers.percent(furthest.share)} ({numbers.signed_percent(worst)})."
    )
    below_target = _below_target(run)
    return f"{deviation} Below their target: {', '.join(below_target)}." if below_target else deviation


def _unit(run: RunResult) -> str:
    return run.share_by.replace("-", " ")


def notes_of(run: RunResult) -> list[str]:
    """The run's notes; which minimums and p99 were missed and why, which VMs are entitled to less than their
    share by weight, and which ran at a rate limit when the window ended."""
    notes = [*run.notes]
    for vm in run.vms:
        judged = vm.judged(_unit(run))
        bounded = vm.min_iops is not None or vm.p99_target_us is not None
        if bounded and judged.verdict is Verdict.INSUFFICIENT:
            notes.append(f"{vm.name} is {judged.verdict}: {judged.reason}")
    weights = sum(vm.weight for vm in run.vms if vm.target_share)
    modest = [
        vm.name
        for vm in run.vms
        if not vm.wants_more
        and vm.judged().verdict is Verdict.OK
        and 0 < (vm.target_share or 0.0) * weights < (1 - TOLERANCE) * vm.weight
    ]
    if modest:
        notes.append(
            "below their share by weight because of their own queue depth or request rate: "
            f"{and_list(modest)}; TARGET is what they used"
        )
    limited = [f"{vm.name} ({numbers.count(vm.limit_iops)} IOPS)" for vm in run.vms if vm.limited]
    if limited:
        notes.append(f"VMs at a rate limit: {and_list(limited)}")
    return notes


def _gain(result: Result) -> str:
    """What the last policy changed against the first; empty for a single run."""
    if len(result.runs) < 2:
        return ""
    first, last = result.runs[0], result.runs[-1]
    changes = []
    if first.iops and last.iops:
        changes.append(
            f"the total went from {numbers.count(first.iops)} to {numbers.count(last.iops)} IOPS "
            f"({numbers.signed_percent(last.iops / first.iops - 1)})"
        )
    before, after = worst_share_error(first), worst_share_error(last)
    if before is not None and after is not None:
        changes.append(
            f"the worst share error from {numbers.signed_percent(before)} to {numbers.signed_percent(after)}"
        )
    if first.waf and last.waf:
        changes.append(f"WAF from {numbers.decimal(first.waf)} to {numbers.decimal(last.waf)}")
    return f"From {first.policy} to {last.policy}: {', '.join(changes)}." if changes else ""


_WIDE = 112
"""Width from which OPS in bytes and read latency fit."""


def print_result(console: Console, result: Result) -> None:
    """Header, one table per run, the comparison of several runs, and notes."""
    wide = console.width >= _WIDE
    console.print(Text(device_line(result), style="bold"))
    if not result.complete:
        console.print(Text("PARTIAL: interrupted; the results cover less time than requested.", "yellow"))
    for run in result.runs:
        console.print()
        console.print(Text(run_line(run)))
        vms: list[tuple[str, list[str | Text]]] = [
            (vm.name, [*vm_cells(vm, result.device, wide), verdict_text(vm.judged().verdict)])
            for vm in run.vms
        ]
        console.print(_table("VM", [*vm_headings(wide), _VERDICT], vms, wide))
        merged = merge_rows(run)
        if merged:
            console.print(_table("MERGES", MERGE_HEADINGS[: None if wide else _NARROW_CELLS], merged, wide))
    if len(result.runs) > 1:
        console.print()
        console.print(Text("All policies, whole device; SHARE ERROR and P99 WRITE are those of the worst VM"))
        policies = [(run.policy, comparison_cells(run)) for run in result.runs]
        console.print(_table("POLICY", COMPARISON_HEADINGS, policies, wide))
    for note in [*result.notes, *(f"{run.policy}: {note}" for run in result.runs for note in notes_of(run))]:
        print_line(console, f"note: {note}")


def device_line(result: Result) -> str:
    """Label, device and timing model in one line."""
    label = ", ".join(part for part in (f"{result.label.upper()} SSD", workloads_label(result)) if part)
    return f"{label}: {headline(result)}"


def headline(result: Result) -> str:
    """Device, timing model and seed."""
    device = result.device
    return (
        f"{printable(device.preset)}, {numbers.size(device.logical_bytes)} logical, "
        f"OP {numbers.percent(device.op)}, timing {device.timing.model}, seed {result.seed}"
    )


def workloads_label(result: Result) -> str:
    """Whether the requests of all or of some VMs are synthetic; empty if they are all from traces."""
    are_synthetic = {"synthetic" in vm.workload for run in result.runs for vm in run.vms}
    if are_synthetic == {True, False}:
        return "some workloads synthetic"
    return "synthetic workloads" if are_synthetic == {True} else ""


def run_line(run: RunResult) -> str:
    """Policy and measured window in one line."""
    window = run.window
    times = f"{window.from_drive_writes:.3g}x to {window.to_drive_writes:.3g}x drive writes"
    if window.from_virtual_s is not None and window.to_virtual_s is not None:
        times += f" ({window.to_virtual_s - window.from_virtual_s:,.1f} virtual s)"
    return f"policy {run.policy}, measured {times}{'' if run.complete else ', PARTIAL'}"


def _table(
    first: str, headings: Sequence[str], rows: Sequence[tuple[str, Sequence[str | Text]]], wide: bool
) -> Table:
    """One row per name, with as many of its cells as there are headings."""
    table = empty_table(1 if wide else 0)
    table.add_column(first, max_width=NAME_WIDTH, overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == _VERDICT else "right", no_wrap=True)
    for name, cells in rows:
        shown = cells[: len(headings)]
        table.add_row(
            Text(printable(name)), *(each if isinstance(each, Text) else Text(each) for each in shown)
        )
    return table


def vm_headings(wide: bool = True) -> list[str]:
    """Headings of `vm_cells`."""
    headings = ["WEIGHT" if wide else "W", "TARGET", "SHARE", "ERROR", "IOPS", "u", "WAF", "OPS"]
    return [*headings, "P99 READ", "P99 WRITE"] if wide else [*headings, "P99 WR"]


def vm_cells(vm: VmResult, device: DeviceResult, wide: bool = True) -> list[str]:
    """The numbers of one VM, between its name and verdict."""
    cells = [
        numbers.weight(vm.weight),
        numbers.percent(vm.target_share),
        numbers.percent(vm.share),
        numbers.signed_percent(vm.share_error),
        numbers.count(vm.iops),
        numbers.decimal(vm.victim_u, 3),
        numbers.decimal(vm.waf),
        ops_text(vm.ops_blocks, device) if wide else numbers.count(vm.ops_blocks),
        numbers.latency(vm.latency_us.read.p99),
        numbers.latency(vm.latency_us.write.p99),
    ]
    if not wide:
        del cells[-2]
    return cells


def ops_text(ops_blocks: int | None, device: DeviceResult) -> str:
    """OPS in blocks, bytes and percent of all OPS."""
    if ops_blocks is None:
        return numbers.UNKNOWN
    part = ops_blocks / device.ops_blocks if device.ops_blocks else None
    return f"{ops_blocks:,} ({numbers.size(ops_blocks * device.block_bytes)}, {numbers.percent(part, 0)})"


def comparison_cells(run: RunResult) -> list[str]:
    """The numbers of one policy; share error and p99 are those of the worst VM."""
    foreign = None
    if run.gc_pages_moved is not None:
        others, total = foreign_pages(run.gc_pages_moved)
        foreign = others / total if total else None
    return [
        numbers.count(run.iops),
        numbers.decimal(run.waf),
        numbers.signed_percent(worst_share_error(run)),
        numbers.latency(max((each for vm in run.vms if (each := vm.latency_us.write.p99)), default=None)),
        numbers.percent(foreign),
        f"{len(_below_target(run))} of {len(run.vms)}",
    ]
