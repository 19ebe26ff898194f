"""Parallel SeRRa in virtual time: speed-up on emulated devices by the number of workers, like table 4 of the
paper.

    .venv/bin/python bench/serra_parallel.py [--file-mb 1200] [--ssd-file-mb 1200] [--only CLASS] [--json
    FILE]

As in the paper: 2 points of each interval, whole tests. Every worker has its own device of the same kind;
speed-up is relative to the sequential profiler. Exit status 1 if the SSD class with 4 repetitions and 16
workers is below the paper's best.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import checkout  # noqa: F401 - finds the packages of this checkout

from lab.parallel.coordinator import Coordinator
from papers.serra.devices import VirtualNodes, measure_as_the_paper
from papers.serra.profiles import CLASSES, make_device
from slo_ctl.base.progress import Silent
from slo_ctl.decide.profile_fit import Analysis, Fit, analyse
from slo_ctl.decide.request_sizes import DEFAULT_INTERVALS, draw_points
from slo_ctl.model.measurement import ACCESSES, Benchmark, Direction
from slo_ctl.profile.sweep import StoppingRule, SweepPlan

WORKERS = (1, 2, 4, 8, 16)
REPETITIONS = (1, 2, 4)
BAR = 8.7
PAPER_BEST = {
    # Machado et al., table 4: speed-up with the best number of processes, by repetitions.
    "HDD": {1: "1.37-1.47", 2: "2.59-2.76", 4: "4.83-5.34"},
    "RAID-0": {1: "1.31", 2: "2.6", 4: "5.08"},
    "SSD": {1: "2.29", 2: "4.51", 4: "8.71"},
}
OVERHEAD_S = 1.0
"""Real overhead of each piece of work: fio starts four times, and a message is exchanged."""


@dataclass
class Row:
    """Results for one number of workers."""

    device: str
    repetitions: int
    workers: int
    time_s: float
    speed_up: float
    busy_share: float
    """Share of the workers' time in which they are busy."""
    median_difference: float
    """Median difference of the ratios from those of the sequential profile."""


def speed_ups(
    name: str, make: Callable[[int, bool], Benchmark], span_bytes: int, repetitions: int
) -> list[Row]:
    plan = SweepPlan(
        draw_points(DEFAULT_INTERVALS, 2, 1), ACCESSES, StoppingRule(0, repetitions, repetitions), None
    )
    alone = make(0, False)
    sequential = measure_as_the_paper(alone, plan.sizes_bytes, repetitions)
    tasks = len(plan.sizes_bytes) * repetitions
    sequential_s = alone.now_s() + tasks * OVERHEAD_S
    expected = analyse(DEFAULT_INTERVALS, sequential, Fit.LEAST_SQUARES)
    rows = []
    for workers in WORKERS:
        nodes = VirtualNodes([make(seed, False) for seed in range(workers)], OVERHEAD_S)
        coordinator = Coordinator(plan, span_bytes, [], nodes)
        found = coordinator.run(range(workers), Silent(), lambda _all, _node: None)
        analysis = analyse(DEFAULT_INTERVALS, found.measurements, Fit.LEAST_SQUARES)
        if found.left_out:
            raise RuntimeError(f"{name}: {found.left_out}")
        took_s = nodes.now_s()
        rows.append(
            Row(
                name,
                repetitions,
                workers,
                took_s,
                sequential_s / took_s,
                sum(nodes.busy_s) / (workers * took_s),
                _difference(analysis, expected),
            )
        )
    return rows


def _difference(found: Analysis, expected: Analysis) -> float:
    differences = []
    for direction in Direction:
        ours, theirs = found.summary(direction), expected.summary(direction)
        if ours is None or theirs is None:
            raise RuntimeError(f"no {direction} ratios")
        differences += [
            abs((mine.value or 0.0) / (other.value or 1.0) - 1)
            for mine, other in zip(ours.ratios, theirs.ratios, strict=True)
        ]
    return median(differences)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--file-mb", type=int, default=1200, help="of the disks; the paper's largest")
    parser.add_argument("--ssd-file-mb", type=int, default=1200, help="every page is simulated")
    parser.add_argument("--only", choices=CLASSES)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    for name in CLASSES if options.only is None else (options.only,):
        file_mb = options.ssd_file_mb if name == "SSD" else options.file_mb
        make = make_device(name, file_mb)
        for repetitions in REPETITIONS:
            begun = time.monotonic()
            found = speed_ups(name, make, file_mb * 1_000_000, repetitions)
            _print(name, repetitions, found, time.monotonic() - begun)
            rows += found
    if options.json is not None:
        plain = {"format_version": 1, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(plain, indent=2) + "\n")
    judged = [row for row in rows if (row.device, row.repetitions, row.workers) == ("SSD", 4, WORKERS[-1])]
    for row in judged:
        print(f"SSD, 4 repetitions, 16 workers: {row.speed_up:.2f}, the paper's best {BAR}")
    return 1 if any(row.speed_up < BAR for row in judged) else 0


def _print(name: str, repetitions: int, rows: list[Row], took_s: float) -> None:
    print(
        f"{name} (EMULATED), {repetitions} repetition{'s' if repetitions > 1 else ''}; the paper's best "
        f"with up to 16 workers: {PAPER_BEST[name][repetitions]}; computed in {took_s:.0f} s"
    )
    print(f"  {'workers':>7} {'time':>9} {'speed-up':>9} {'busy':>6} {'ratios differ':>14}")
    for row in rows:
        print(
            f"  {row.workers:7} {row.time_s:7.1f} s {row.speed_up:9.2f} {row.busy_share:6.0%} "
            f"{row.median_difference:14.1%}"
        )
    print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
