"""Merges of a run as rows, for the tables of terminal and report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.show import numbers

if TYPE_CHECKING:
    from slo_ctl.replay.result import Merges, RunResult

_US_PER_S = 1e6

MERGE_HEADINGS = ("SWITCH", "PARTIAL", "FULL", "PER 1000", "TIME", "BLOCKS/FULL", "MEAN FULL")
"""What `merge_cells` are; the first five where there is little room."""
NARROW_CELLS = 5
MERGE_LEGEND = (
    "Merges that each VM's writes caused in the measured window. PER 1000: merges of all kinds for each 1000 "
    "host page writes. TIME: of dies and channels. BLOCKS/FULL: logical blocks that a full merge joins."
)


def merge_rows(run: RunResult) -> list[tuple[str, list[str]]]:
    """VMs with their cells; empty where the mapping has no log blocks."""
    return [(vm.name, merge_cells(vm.merges, vm.host_page_writes)) for vm in run.vms if vm.merges is not None]


def merge_cells(merges: Merges, host_page_writes: int) -> list[str]:
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
