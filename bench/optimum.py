"""How far `proportional` is from the best static OPS split under the same fair queue.

    .venv/bin/python bench/optimum.py [--only A] [--quick] [--verify 20x] [--jobs 2] [--json]

For each scenario a search (grid, then coordinate descent, on runs of 6 drive writes; the best of them
verified with 20) finds the static OPS split with the highest total, with shares enforced by the fair queue of
`proportional`, whose OPS does not move. Compared are:

- total: of `proportional` over the best. Two bests are reported. The first harms nobody: shares are met,
  and no VM below its share by weight (limited by its own queue depth or pace, which no queue can change)
  gets less than it does from `proportional`, within 3 %. The other may take from such a VM. The bar (0.99)
  applies to the first.
- share error: that of the worst VM, relative to its entitlement. Bar 1 %. A VM below it runs once more with
  a thousandfold weight: a queue cannot give it more than it gets then.
- p99: of each VM, relative to OPS split by weight (`static`) under the same queue. Bar: 10 % longer. If it is
  missed, splits between that one and the best are searched for the highest total that meets it.

A bar that no split (or no weight) can meet together with the others is reported as a conflict, not as missed.
`proportional-strict` is shown for comparison, under the same queue, with its own unit (requests) and bars.
Totals are 4 KiB pages per second, for requests of different sizes. Everything is EMULATED, and synthetic
unless stated. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import checkout  # noqa: F401 - finds the packages of this checkout
from scenes import Scene, optimum_scenes
from split_search import Search, divided

from lab.parts import (
    PreparedDrive,
    Split,
    held,
    pages_per_s,
    share_error,
    total_pages_per_s,
)
from slo_ctl.base.workers import on_processes
from slo_ctl.decide.policies.proportional import Proportional
from slo_ctl.decide.policies.proportional_strict import ProportionalStrict
from slo_ctl.replay.result import RunResult

TOTAL_BAR, SHARE_BAR, P99_BAR = 0.99, 0.01, 0.10
NO_SHARE_LOST = 0.005
"""Error of a share, relative to the total, that counts as none when comparing splits: a VM of weight 1 beside
one of weight 1000 has too few requests for a relative bar.
"""
SEARCH_SHARE_BAR = 0.03
"""Bar for shares in the short runs of the search, which are noisier."""
UNHARMED = 0.97
"""Smallest rate of a VM below its share, relative to what `proportional` gives it."""
VERIFIED = 3
"""Number of splits that are run at full length."""
BETWEEN = 8
"""Steps from the static split to the best, if the p99 bar is missed."""
HEAVY = 1000.0
"""Factor for the weight of a VM below its share."""


@dataclass(frozen=True)
class VmFigures:
    """Figures of one VM in one run."""

    name: str
    weight: float
    pages_per_s: float
    iops: float
    target_share: float
    share_error: float
    ops_blocks: int
    waf: float
    p99_ms: float
    limited: bool = False
    """Whether it was at a rate limit of the policy."""


@dataclass(frozen=True)
class Figures:
    """Figures of one run."""

    total: float
    """In 4 KiB pages per second."""
    iops: float
    share_error: float
    waf: float
    vms: tuple[VmFigures, ...]

    @property
    def split(self) -> Split:
        """OPS blocks at the end."""
        return tuple(vm.ops_blocks for vm in self.vms)


def figures_of(run: RunResult) -> Figures:
    """The compared figures of a run."""
    return Figures(
        total=total_pages_per_s(run),
        iops=run.iops or 0.0,
        share_error=share_error(run),
        waf=run.waf or 1.0,
        vms=tuple(
            VmFigures(
                name=v.name,
                weight=v.weight,
                pages_per_s=pages_per_s(v),
                iops=v.iops or 0.0,
                target_share=v.target_share or 0.0,
                share_error=v.share_error or 0.0,
                ops_blocks=v.ops_blocks or 0,
                waf=v.waf or 1.0,
                p99_ms=v.p99_us / 1e3,
                limited=v.limited,
            )
            for v in run.vms
        ),
    )


def shares_kept(run: Figures, bar: float) -> bool:
    """Whether every share is within the bar, or hardly off at all."""
    return all(
        abs(vm.share_error) <= bar or abs(vm.share_error) * vm.target_share <= NO_SHARE_LOST for vm in run.vms
    )


@dataclass(frozen=True)
class Comparison:
    """Results of one scenario."""

    name: str
    what: str
    real: bool
    proportional: Figures
    best: Figures
    """The best split that harms no VM."""
    best_of_all: Figures
    """The best split of all; it may take from VMs limited by their own queue depth or pace."""
    static: Figures
    """OPS by weight, the same queue."""
    strict: Figures
    evaluated: int
    best_with_p99: Figures | None = None
    """The best split that keeps the p99 bar too, if `proportional` misses it; searched from `static` to
    `best`.
    """
    reach: Mapping[str, float] = field(default_factory=dict)
    """For each VM below its share: its rate with a thousandfold weight, relative to that with its own."""
    missed: tuple[str, ...] = field(default=())
    conflicts: tuple[str, ...] = field(default=())
    """Bars that cannot be kept together with the others."""
    notes: tuple[str, ...] = field(default=())

    @property
    def ratio(self) -> float:
        """Total relative to the best split's that harms no VM."""
        return self.proportional.total / self.best.total if self.best.total else 1.0

    @property
    def ratio_of_all(self) -> float:
        """Total relative to the best split's of all."""
        return self.proportional.total / self.best_of_all.total if self.best_of_all.total else 1.0

    @property
    def p99_worse(self) -> float:
        """The largest relative excess of a VM's p99 over that under a static split."""
        return max(p99_changes(self.proportional, self.static).values(), default=0.0)


def p99_changes(run: Figures, reference: Figures) -> dict[str, float]:
    """Relative increase of each VM's p99 over the reference."""
    before = {vm.name: vm.p99_ms for vm in reference.vms}
    return {vm.name: vm.p99_ms / before[vm.name] - 1.0 for vm in run.vms if before[vm.name] > 0.0}


def harmed(run: Figures, reference: Figures, kept: float = UNHARMED) -> list[str]:
    """VMs below their share by weight that get less than in the reference run."""
    level = run.total / sum(vm.weight for vm in run.vms)
    before = {vm.name: vm.pages_per_s for vm in reference.vms}
    return [
        vm.name
        for vm in run.vms
        if vm.pages_per_s < kept * level * vm.weight and vm.pages_per_s < kept * before[vm.name]
    ]


def judged(found: Comparison) -> Comparison:
    """Bars that were missed, and explanations of the other differences."""
    run = found.proportional
    missed: list[str] = []
    conflicts: list[str] = []
    notes: list[str] = []
    if found.ratio < TOTAL_BAR:
        missed.append(
            f"total {found.ratio:.3f} of the best: OPS {_blocks(run.split)}, best "
            f"{_blocks(found.best.split)}; WAF {run.waf:.2f}, best {found.best.waf:.2f}, paid by "
            f"{_payers(found.best, run, 1.0)}"
        )
    if found.ratio_of_all < TOTAL_BAR and found.best_of_all != found.best:
        notes.append(
            f"{1.0 / found.ratio_of_all - 1.0:.1%} more with OPS {_blocks(found.best_of_all.split)}, paid by "
            f"{_payers(found.best_of_all, run, UNHARMED)}"
        )
    if run.share_error > SHARE_BAR:
        text, reachable = _share_off(found)
        (missed if reachable else conflicts).append(text)
    slower, kept = _slower(found), found.best_with_p99
    if slower and kept is not None and kept.total < TOTAL_BAR * found.best.total:
        part = kept.total / found.best.total
        conflicts += slower
        conflicts.append(f"the best split that keeps p99, {_blocks(kept.split)}, has {part:.3f} of the total")
    else:
        missed += slower
    if not shares_kept(found.strict, SHARE_BAR):
        missed.append(f"proportional-strict: a share is off by {found.strict.share_error:.1%}")
    limited = [vm.name for vm in found.strict.vms if vm.limited]
    if limited:
        notes.append(f"proportional-strict: at a rate limit: {', '.join(limited)}")
    return replace(found, missed=tuple(missed), conflicts=tuple(conflicts), notes=tuple(notes))


def _payers(better: Figures, run: Figures, kept: float) -> str:
    """VMs that get less than `kept` of what they have in `run`, and what they get."""
    parts = (vm.pages_per_s / max(now.pages_per_s, 1e-9) for vm, now in zip(better.vms, run.vms, strict=True))
    payers = [f"{vm.name} {part:.3f}" for vm, part in zip(run.vms, parts, strict=True) if part < kept]
    return f"{', '.join(payers) or 'nobody that shares protect'} (of what it has now)"


def _share_off(found: Comparison) -> tuple[str, bool]:
    """VMs that miss their share, and whether a greater weight could have given it."""
    run = found.proportional
    worst = max(run.vms, key=lambda vm: abs(vm.share_error))
    short = [vm for vm in run.vms if vm.name in found.reach]
    lacks = [
        f"{vm.name} lacks {-vm.share_error:.1%}, and with {HEAVY:g} times its weight it gets "
        f"{found.reach[vm.name] - 1.0:+.1%}"
        for vm in short
    ]
    reachable = any(found.reach[vm.name] * (1.0 + vm.share_error) >= 1.0 - SHARE_BAR for vm in short)
    text = f"share of {worst.name} is off by {worst.share_error:+.1%}"
    return "; ".join([text, *lacks]), reachable or not short


def _slower(found: Comparison) -> list[str]:
    """VMs that miss the p99 bar, with the reason."""
    changes = p99_changes(found.proportional, found.static)
    return [
        f"p99 of {vm.name} {before.p99_ms:.1f} -> {vm.p99_ms:.1f} ms: {why_slower(vm, before)}"
        for vm, before in zip(found.proportional.vms, found.static.vms, strict=True)
        if changes.get(vm.name, 0.0) > P99_BAR
    ]


def why_slower(vm: VmFigures, before: VmFigures) -> str:
    """The differences for the VM: its OPS, or the interference of others."""
    rates = f"{before.iops:.0f} -> {vm.iops:.0f} IOPS"
    if vm.ops_blocks < before.ops_blocks and vm.waf > 1.02 * before.waf:
        return (
            f"OPS {before.ops_blocks} -> {vm.ops_blocks}, its WAF {before.waf:.2f} -> {vm.waf:.2f}, {rates}: "
            "its own GC, as OPS went where it saves more"
        )
    return f"OPS {before.ops_blocks} -> {vm.ops_blocks}, its WAF {before.waf:.2f} -> {vm.waf:.2f}, {rates}"


def _blocks(split: Iterable[int]) -> str:
    return "/".join(str(blocks) for blocks in split)


@dataclass(frozen=True)
class Effort:
    """Effort of the search."""

    most: int
    grid_parts: int
    least_step: int
    search: tuple[str, tuple[str, str]]
    """Duration and window of a short run."""
    verify: str


FULL = Effort(30, 4, 2, ("6x", ("2x", "6x")), "20x")
QUICK = Effort(12, 3, 8, ("4x", ("2x", "4x")), "8x")
QUICK_SCENES = "ABFHIKQ"


def compare(scene: Scene, effort: Effort) -> Comparison:
    """Search and compare."""
    with PreparedDrive(scene.drive) as drive:
        run = figures_of(drive.run(Proportional(), duration=effort.verify))
        strict = figures_of(drive.run(ProportionalStrict(), duration=effort.verify))
        floors, total = drive.floors, drive.total_blocks
        by_weight = divided([total * w / sum(drive.weights) for w in drive.weights], total, floors)
        even = divided([total * pages / sum(drive.sizes) for pages in drive.sizes], total, floors)
        static = figures_of(drive.run(held(by_weight), duration=effort.verify))
        duration, window = effort.search
        short = figures_of(drive.run(held(run.split), duration=duration, window=window))
        figures: dict[Split, Figures] = {}

        def score(split: Split) -> float:
            found = figures[split] = figures_of(drive.run(held(split), duration=duration, window=window))
            bar = max(SEARCH_SHARE_BAR, short.share_error)
            refused = not shares_kept(found, bar) or harmed(found, short)
            # Order by the total, but below all accepted ones.
            return found.total - (1e9 if refused else 0.0)

        search = Search(score, effort.most)
        search.run([run.split, by_weight, even, strict.split], floors, effort.grid_parts, effort.least_step)
        accepted = [split for split in search.best() if search.scores[split] > 0][:VERIFIED]
        boldest = max(
            figures, key=lambda split: (shares_kept(figures[split], SEARCH_SHARE_BAR), figures[split].total)
        )
        long = {
            split: figures_of(drive.run(held(split), duration=effort.verify))
            for split in dict.fromkeys((*accepted, boldest, run.split))
        }
        measured = [run, static, *long.values()]
        fair = [
            each for each in measured if each is run or shares_kept(each, max(SHARE_BAR, run.share_error))
        ]
        best = max((each for each in fair if not harmed(each, run)), key=lambda each: each.total)
        best_of_all = max(fair, key=lambda each: each.total)
        with_p99 = None
        if max(p99_changes(run, static).values(), default=0.0) > P99_BAR:
            with_p99 = keeping_p99(drive, static, best, effort)
        reach = reaches(drive, run, effort)
    return judged(
        Comparison(
            scene.name,
            scene.what,
            scene.real,
            run,
            best,
            best_of_all,
            static,
            strict,
            len(figures),
            with_p99,
            reach,
        )
    )


def keeping_p99(drive: PreparedDrive, static: Figures, best: Figures, effort: Effort) -> Figures:
    """The highest total between the static split and the best whose p99 is within the bar."""
    kept = static
    for step in range(1, BETWEEN):
        ideal = [a + (b - a) * step / BETWEEN for a, b in zip(static.split, best.split, strict=True)]
        split = divided(ideal, drive.total_blocks, drive.floors)
        found = figures_of(drive.run(held(split), duration=effort.verify))
        if max(p99_changes(found, static).values(), default=0.0) <= P99_BAR and found.total > kept.total:
            kept = found
    return kept


def reaches(drive: PreparedDrive, run: Figures, effort: Effort) -> dict[str, float]:
    """For each VM below its share: its rate with a thousandfold weight, relative to the present one."""
    found = {}
    for vm in run.vms:
        if vm.share_error < -SHARE_BAR and -vm.share_error * vm.target_share > NO_SHARE_LOST:
            heavy = drive.run(Proportional(), duration=effort.verify, weights={vm.name: HEAVY * vm.weight})
            rate = next(v.pages_per_s for v in figures_of(heavy).vms if v.name == vm.name)
            found[vm.name] = rate / vm.pages_per_s if vm.pages_per_s else 1.0
    return found


def lines(found: Comparison) -> Iterator[str]:
    """One scenario as lines of the table."""
    run, strict = found.proportional, found.strict
    yield (
        f"{found.name:2} {found.what[:44]:44} {run.total:7.0f} {found.best.total:7.0f} {found.ratio:6.3f} "
        f"{found.ratio_of_all:6.3f} {run.share_error:6.1%} {found.p99_worse:+6.0%}  "
        f"{strict.total:7.0f} {strict.total / found.best.total:6.3f} {strict.share_error:6.1%}  "
        f"{_blocks(run.split)} ({_blocks(found.best.split)})"
    )
    for text in found.missed:
        yield f"   MISSED: {text}"
    for text in found.conflicts:
        yield f"   CONFLICT: {text}"
    for text in found.notes:
        yield f"   note: {text}"


HEADER = (
    f"{'':2} {'total in 4 KiB pages/s':44} {'prop.':>7} {'best':>7} {'ratio':>6} {'of all':>6} {'share':>6} "
    f"{'p99':>6}  {'strict':>7} {'ratio':>6} {'share':>6}  OPS (best)"
)


def markdown(found: Sequence[Comparison]) -> Iterator[str]:
    """The table for docs."""
    yield (
        "| scenario | `proportional` | best split | ratio | ratio, whoever pays | share error | worst p99 "
        "| `strict` | its share error | OPS blocks (best) |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for each in found:
        run, strict = each.proportional, each.strict
        yield (
            f"| {each.name} {each.what} | {run.total:,.0f} | {each.best.total:,.0f} | {each.ratio:.3f} | "
            f"{each.ratio_of_all:.3f} | {run.share_error:.1%} | {each.p99_worse:+.0%} | {strict.total:,.0f} "
            f"| {strict.share_error:.1%} | {_blocks(run.split)} ({_blocks(each.best.split)}) |"
        )


def _compared(scene: Scene, effort: Effort) -> tuple[Comparison, float]:
    began = time.monotonic()
    return compare(scene, effort), time.monotonic() - began


def main() -> int:
    """Every scenario, one after the other or `--jobs` at a time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", metavar="NAME", action="append", help="a scenario's letter, repeatable")
    parser.add_argument("--quick", action="store_true", help="few scenarios, small effort: under 3 minutes")
    parser.add_argument("--verify", metavar="LENGTH", help="of the compared runs, such as 40x (drive writes)")
    parser.add_argument("--jobs", type=int, default=1, help="scenarios at a time")
    parser.add_argument("--json", action="store_true", help="JSON instead of the table")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also a table for the documentation")
    options = parser.parse_args()
    effort = QUICK if options.quick else FULL
    if options.verify:
        effort = replace(effort, verify=options.verify)
    with tempfile.TemporaryDirectory() as folder:
        scenes, skipped = [], 0
        for scene in optimum_scenes(Path(folder)):
            chosen = options.only or (QUICK_SCENES if options.quick else None)
            if chosen and not any(re.fullmatch(name, scene.name, re.IGNORECASE) for name in chosen):
                continue
            if scene.missing:
                print(f"{scene.name} skipped: no {', '.join(scene.missing)}", file=sys.stderr)
                skipped += 1
                continue
            scenes.append(scene)
        if not scenes:
            parser.error(f"no scenario was run, {skipped} skipped")
        out = sys.stderr if options.json else sys.stdout
        print(HEADER, file=out, flush=True)
        found = []
        results = on_processes(partial(_compared, effort=effort), scenes, options.jobs)
        for scene in scenes:
            print(f"{scene.name} {scene.what} ...", file=sys.stderr, flush=True)
            each, seconds = next(results)
            found.append(each)
            print(f"  {each.evaluated} splits in {seconds:.0f} s", file=sys.stderr, flush=True)
            print("\n".join(lines(each)), file=out, flush=True)
    missed = sum(bool(each.missed) for each in found)
    if options.markdown:
        options.markdown.write_text("\n".join(markdown(found)) + "\n")
    if options.json:
        rows = [asdict(each) | {"ratio": each.ratio, "ratio_of_all": each.ratio_of_all} for each in found]
        print(json.dumps({"label": "emulated", "scenarios": rows, "missed": missed}, indent=1))
    else:
        print(
            f"{len(found)} scenarios, {missed} with a bar missed"
            + (f", {skipped} skipped" if skipped else "")
            + ". EMULATED; synthetic unless marked as real"
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
