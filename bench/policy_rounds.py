"""Service of three VMs under one scheduler in rounds of the same load, and how far a choice is from the
best.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

WEIGHTS = (1.0, 3.0, 6.0)
NAMES = ("a", "b", "c")
SHARE_BAR, BEST_BAR = 0.15, 0.05
LEAD_S, TAIL_S = 2.0, 2.0
_MIXED = ("--rw=randrw", "--rwmixread=70", "--percentage_random=50", "--bs=16k", "--iodepth=16")
LOADS = {
    "throughput": (_MIXED,) * 3,
    "weights": (_MIXED,) * 3,
    "p99": (
        ("--rw=randread", "--bs=4k", "--iodepth=1"),
        ("--rw=rw", "--rwmixread=50", "--bs=64k", "--iodepth=8"),
        ("--rw=randrw", "--rwmixread=50", "--bs=16k", "--iodepth=16"),
    ),
}


@dataclass(frozen=True)
class Round:
    """Service of the three groups, in IOPS; p99 of the first one in microseconds."""

    iops: tuple[float, ...]
    p99_us: float

    @property
    def worst_share(self) -> float:
        """Largest deviation of a share from its weight's, relative to it."""
        total = sum(self.iops) or 1.0
        wanted = [weight / sum(WEIGHTS) for weight in WEIGHTS]
        return max(abs(each / total / share - 1) for each, share in zip(self.iops, wanted, strict=True))


@dataclass(frozen=True)
class Row:
    """A scheduler with its rounds."""

    scheduler: str
    weights: str
    rounds: tuple[Round, ...]

    @property
    def total_iops(self) -> float:
        """Median of the total IOPS."""
        return statistics.median(sum(each.iops) for each in self.rounds)

    @property
    def worst_share(self) -> float:
        """Largest deviation of a share from its weight's over all rounds, relative to it."""
        return Round(tuple(map(sum, zip(*(each.iops for each in self.rounds), strict=True))), 0).worst_share

    @property
    def p99_us(self) -> float:
        """Median of the p99 in microseconds."""
        return statistics.median(each.p99_us for each in self.rounds)

    def scores(self, objective: str) -> list[float] | None:
        """Score of each round, more is better; None if the objective is not met."""
        if objective == "p99":
            return [1 / each.p99_us for each in self.rounds]
        if objective == "weights" and self.worst_share > SHARE_BAR:
            return None
        return [sum(each.iops) for each in self.rounds]


@dataclass(frozen=True)
class Lag:
    """How far the chosen scheduler is behind the best; negative: ahead."""

    best: str
    behind: float
    """Lag by the medians."""
    by_round: tuple[float, ...]
    """Lag in each round, which shows the spread of `behind`."""


def lag(rows: list[Row], chosen: str, objective: str) -> Lag | None:
    """How far the chosen scheduler is behind the best; None if it misses the objective.

    By medians, because other work on the host sometimes affects a round.
    """
    by_name = {row.scheduler: scores for row in rows if (scores := row.scores(objective)) is not None}
    if chosen not in by_name:
        return None
    best = max(by_name, key=lambda name: (statistics.median(by_name[name]), name == chosen))
    mine, theirs = by_name[chosen], by_name[best]
    behind = 1 - statistics.median(mine) / statistics.median(theirs)
    return Lag(best, behind, tuple(1 - a / b for a, b in zip(mine, theirs, strict=True)))


def one_round(
    start: Callable[[float], list[subprocess.Popen[str]]],
    counted: Callable[[], Sequence[int]],
    seconds: float,
) -> Round:
    """Run the fio of each VM, in the order of NAMES; `start` starts one for the given number of seconds.

    Requests are counted in one window in which all run: processes start and end at different times.
    """
    running = start(LEAD_S + seconds + TAIL_S)
    try:
        time.sleep(LEAD_S)
        began, before = time.monotonic(), counted()
        time.sleep(seconds)
        window_s, after = time.monotonic() - began, counted()
        outputs = [process.communicate()[0] for process in running]
    finally:
        for process in running:
            process.terminate()
            process.wait()
    # fio's nbd engine may print something before the JSON.
    first = json.loads(outputs[0][outputs[0].index("{") :])["jobs"][0]["read"]
    iops = tuple((b - a) / window_s for a, b in zip(before, after, strict=True))
    return Round(iops, first["clat_ns"]["percentile"]["99.000000"] / 1e3)


def interleaved(
    schedulers: Iterable[str], one: Callable[[str, int], Round], rounds: int
) -> dict[str, tuple[Round, ...]]:
    """Rounds of every scheduler in turn; `one` runs a round of a scheduler, by its number."""
    found: dict[str, list[Round]] = {name: [] for name in schedulers}
    for number in range(rounds):
        for name, of_it in found.items():
            of_it.append(one(name, number))
    return {name: tuple(of_it) for name, of_it in found.items()}


@dataclass(frozen=True)
class Compared:
    """The rounds of all schedulers under one objective, and the one that was chosen for it."""

    rows: list[Row]
    chosen: str
    choice: Any
    """The whole choice, a dataclass."""
    reason: str


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `compare` reads, and those of rounds."""
    parser.add_argument("--objective", choices=[*LOADS], action="append")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")


def compare(options: argparse.Namespace, of_objective: Callable[[str], Compared]) -> int:
    """Print how far choices are behind the best. Returns 1 if one misses its objective, or the bar."""
    lags: dict[str, Lag | None] = {}
    reply = {}
    for objective in options.objective or LOADS:
        found = of_objective(objective)
        behind = lags[objective] = lag(found.rows, found.chosen, objective)
        reply[objective] = {
            "chosen": asdict(found.choice),
            "rows": [asdict(row) for row in found.rows],
            "lag": None if behind is None else asdict(behind),
        }
        if not options.json:
            print(f"{objective}: {found.reason}")
            _show_rows(found.rows, found.chosen, behind)
    if options.json:
        print(json.dumps(reply, indent=1))
    else:
        parts = [f"{name} {each.behind:.1%}" if each else f"{name} not met" for name, each in lags.items()]
        print(f"behind the best: {', '.join(parts)}; at most {BEST_BAR:.0%} is wanted")
    return int(any(behind is None or behind.behind > BEST_BAR for behind in lags.values()))


def _show_rows(rows: Sequence[Row], chosen: str, behind: Lag | None) -> None:
    """Print a line for each scheduler, and the verdict on the chosen one."""
    for row in rows:
        mark = "*" if row.scheduler == chosen else " "
        totals = [sum(each.iops) for each in row.rounds]
        each_ms = [each.p99_us / 1e3 for each in row.rounds]
        by_vm = zip(*(each.iops for each in row.rounds), strict=True)
        shares = ":".join(f"{statistics.median(each):.0f}" for each in by_vm)
        print(
            f" {mark} {row.scheduler:12} weights {row.weights:8} {row.total_iops:8.0f} IOPS "
            f"({min(totals):.0f} to {max(totals):.0f}), {shares}, 1:3:6 {row.worst_share:4.0%} off, p99 "
            f"{row.p99_us / 1e3:7.1f} ms ({min(each_ms):.1f} to {max(each_ms):.1f})"
        )
    verdict = "which does not meet the objective"
    if behind is not None:
        noise = f"rounds {min(behind.by_round):.0%} to {max(behind.by_round):.0%}"
        verdict = f"{behind.behind:.1%} ({noise}) behind {behind.best}"
    print(f"   chosen: {chosen}, {verdict}", flush=True)
