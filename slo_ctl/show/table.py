"""Results of a replay as tables on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from slo_ctl.model import Verdict
from slo_ctl.show import numbers
from slo_ctl.show.columns import NAME_WIDTH
from slo_ctl.show.merges import MERGE_HEADINGS, NARROW_CELLS, merge_rows
from slo_ctl.show.story import foreign_pages
from slo_ctl.show.text import printable
from slo_ctl.show.verdict import verdict, worst_share_error
from slo_ctl.show.verdict_style import verdict_text

if TYPE_CHECKING:
    from rich.console import Console

    from slo_ctl.replay.result import DeviceResult, Result, RunResult, VmResult

WIDE = 112
"""From here on there is room for OPS in bytes and for the latency of reads."""


def print_result(console: Console, result: Result) -> None:
    """Header, one table per run, the comparison when there is one, and the notes."""
    console.print(Text(device_line(result), style="bold"))
    if not result.complete:
        console.print(
            Text("PARTIAL: interrupted before the end; numbers stand for less time than asked.", "yellow")
        )
    for run in result.runs:
        console.print()
        console.print(Text(run_line(run)))
        console.print(vm_table(result, run, wide=console.width >= WIDE))
        merged = merge_rows(run)
        if merged:
            console.print(merge_table(merged, wide=console.width >= WIDE))
    if len(result.runs) > 1:
        console.print()
        console.print(Text("All policies, whole device"))
        console.print(comparison_table(result))
    for note in [*result.notes, *(f"{run.policy}: {note}" for run in result.runs for note in run.notes)]:
        console.print(Text(f"note: {printable(note)}"))


def device_line(result: Result) -> str:
    """Label, device and timing model in one line."""
    workloads = ", synthetic workloads" if is_synthetic(result) else ""
    return f"{result.label.upper()} SSD{workloads}: {headline(result)}"


def headline(result: Result) -> str:
    """Device, timing model and seed."""
    device = result.device
    return (
        f"{printable(device.preset)}, {numbers.size(device.logical_bytes)} logical, "
        f"OP {numbers.percent(device.op)}, timing {device.timing.model}, seed {result.seed}"
    )


def is_synthetic(result: Result) -> bool:
    """Some VM's requests are synthetic."""
    return any("synthetic" in vm.workload for run in result.runs for vm in run.vms)


def run_line(run: RunResult) -> str:
    """Policy and measured window in one line."""
    window = run.window
    times = f"{window.from_drive_writes:.3g}x to {window.to_drive_writes:.3g}x drive writes"
    if window.from_virtual_s is not None and window.to_virtual_s is not None:
        times += f" ({window.to_virtual_s - window.from_virtual_s:,.1f} virtual s)"
    return f"policy {run.policy}, measured {times}{'' if run.complete else ', PARTIAL'}"


def vm_table(result: Result, run: RunResult, wide: bool = True) -> Table:
    """One row per VM; without `wide` it fits 80 columns and leaves out what it must."""
    table = _table(wide)
    table.add_column("VM", max_width=NAME_WIDTH, overflow="fold")
    for heading in vm_headings(wide):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("VERDICT", no_wrap=True)
    for vm in run.vms:
        table.add_row(
            Text(printable(vm.name)),
            *(Text(cell) for cell in vm_cells(vm, result.device, wide)),
            verdict_text(verdict(vm)),
        )
    return table


def vm_headings(wide: bool = True) -> list[str]:
    """What `vm_cells` are."""
    headings = ["WEIGHT" if wide else "W", "TARGET", "SHARE", "OFF BY", "IOPS", "u", "WAF", "OPS"]
    return [*headings, "P99 READ", "P99 WRITE"] if wide else [*headings, "P99 WR"]


def vm_cells(vm: VmResult, device: DeviceResult, wide: bool = True) -> list[str]:
    """The numbers of one VM, as `vm_table` has them between name and verdict."""
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


def merge_table(rows: list[tuple[str, list[str]]], wide: bool = True) -> Table:
    """One row per VM: the merges that its writes caused."""
    table = _table(wide)
    columns = len(MERGE_HEADINGS) if wide else NARROW_CELLS
    table.add_column("MERGES", max_width=NAME_WIDTH, overflow="fold")
    for heading in MERGE_HEADINGS[:columns]:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, cells in rows:
        table.add_row(Text(printable(name)), *(Text(cell) for cell in cells[:columns]))
    return table


def ops_text(ops_blocks: int | None, device: DeviceResult) -> str:
    """OPS in blocks, bytes and per cent of all OPS there is."""
    if ops_blocks is None:
        return numbers.UNKNOWN
    part = ops_blocks / device.ops_blocks if device.ops_blocks else None
    return f"{ops_blocks:,} ({numbers.size(ops_blocks * device.block_bytes)}, {numbers.percent(part, 0)})"


def comparison_table(result: Result) -> Table:
    """One row per policy."""
    table = _table(wide=True)
    table.add_column("POLICY")
    for heading in ("IOPS", "WAF", "WORST SHARE ERROR", "FOREIGN GC PAGES", "VMS SHORT"):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in result.runs:
        table.add_row(Text(printable(run.policy)), *(Text(cell) for cell in comparison_cells(run)))
    return table


def comparison_cells(run: RunResult) -> list[str]:
    """The numbers of one policy, as `comparison_table` has them."""
    foreign = None
    if run.gc_pages_moved is not None:
        others, total = foreign_pages(run.gc_pages_moved)
        foreign = others / total if total else None
    short = sum(verdict(vm) is Verdict.INSUFFICIENT for vm in run.vms)
    return [
        numbers.count(run.iops),
        numbers.decimal(run.waf),
        numbers.signed_percent(worst_share_error(run)),
        numbers.percent(foreign),
        f"{short} of {len(run.vms)}",
    ]


def _table(wide: bool) -> Table:
    return Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1 if wide else 0, 0, 0))
