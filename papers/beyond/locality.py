"""Greedy-Space with locality, the allocator `greedy-local`."""

from __future__ import annotations

from itertools import product

from fsim import experiment as fsim
from fsim.experiment import Experiment, preset
from papers.figure import (
    NOT_IN_QUICK,
    Cell,
    Figure,
    Judged,
    Panel,
    Results,
    Rule,
    Trial,
    interval,
)
from slo_ctl.drives.build import PAPER_DRIVES

_ALLOCATORS = ("ext", "greedy-space", "greedy-local")
_MAPPINGS = ("bast", "fast")
_QUICK_TRANSACTIONS = 4_000
"""In quick runs; the setting has 20,000."""


def allocation(trial: Trial) -> list[Panel]:
    """Elapsed time of Postmark by allocator, mapping and TRIM; each drive half full."""
    panels = []
    drives = {"cvfs-large": tuple(PAPER_DRIVES), "fsl": ("sandisk",)}
    if trial.quick:
        drives = {"cvfs-large": ("sandisk",)}
    for workload, names in drives.items():
        seconds = {}
        for mapping, trim, drive in product(_MAPPINGS, (False,) if trial.quick else (False, True), names):
            for allocator in _ALLOCATORS:
                row = f"{drive}, {mapping.upper()}{', TRIM' if trim else ''}"
                found = fsim.run(
                    Experiment(
                        allocator=allocator,
                        setting=workload,
                        drive=preset(drive, {"mapping": mapping}),
                        utilisation=0.5,
                        trim=trim,
                        seed=trial.seed,
                        transactions=_QUICK_TRANSACTIONS if trial.quick else None,
                    )
                )
                seconds[row, allocator] = found.elapsed_s
        panels.append(Panel(f"Postmark {workload}", "virtual s", seconds))
    return panels


def _ahead(workload: str, mapping: str, trim: bool) -> Rule:
    kind = f"{mapping.upper()}{', TRIM' if trim else ''}"

    def judge(results: Results) -> Judged:
        table = results.tables.get(f"Postmark {workload}")
        rows = [row for row in table.rows if row.partition(", ")[2] == kind] if table else []
        if table is None or not rows:
            return NOT_IN_QUICK
        found, holds = [], True
        for row in rows:
            *others, own = (table.cells[row, allocator].values for allocator in _ALLOCATORS)
            cell = Cell(tuple(mine / min(both) for mine, *both in zip(own, *others, strict=True)))
            low, high = interval(cell)
            found.append(f"{row.partition(', ')[0]} {cell.mean:.2f} ({low:.2f} to {high:.2f})")
            holds = holds and high < 1
        return Judged("; ".join(found), holds)

    return Rule(
        "faster than the better of ext and greedy-space",
        f"{workload}, {kind}: time / the better one's, 95 % interval below 1 on each drive",
        judge,
    )


ALLOCATION = Figure(
    "beyond:locality",
    "Greedy-Space with locality (greedy-local)",
    "Large writes, small writes and metadata in separate logical blocks take less time than both ext and "
    "Greedy-Space, also with FAST mapping and with TRIM, which the paper does not consider.",
    "Postmark CVFS-Large on the three emulated drives and FSL on the SanDisk, half full, BAST and "
    "FAST mapping, without TRIM and with. The allocator's rules were chosen on the SanDisk half full, "
    "without TRIM. Other utilisations: docs/fsim.md. A quick run takes CVFS-Large on the SanDisk "
    "without TRIM, with a fifth of the transactions.",
    ("emulated SSD with log blocks, after table I", "modelled file systems", "synthetic Postmark"),
    allocation,
    tuple(_ahead(*case) for case in product(("cvfs-large", "fsl"), _MAPPINGS, (False, True))),
    seeds=3,
    quick_seeds=3,
)
