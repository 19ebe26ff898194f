"""The evidence of docs/fsim.md: greedy-space against ext, and greedy-local against the better of both.

    .venv/bin/python bench/allocation.py [--workload cvfs-large,fsl] [--drive sandisk,samsung,mtron]
    [--mapping bast,fast] [--trim off,on] [--utilisation 10,50,90] [--seeds 3] [--allocator NAME]
    [--against ext,greedy-space] [--churn .3] [--sync-mib 16] [--log-blocks 32] [--jobs 2] [--save FOLDER]

Prints a comparison of `slo-ctl fsim` for each workload, mapping and TRIM, and a line for each drive and
utilisation as soon as it is finished. Ratios are computed seed by seed; +- is half the 95 % interval of
Student's t. All times are virtual, of emulated drives. With --save each comparison is stored as JSON, and one
that is already stored is not run again. Exit status 1 if greedy-space does not about halve ext's time for
CVFS-Large on BAST, the mapping of the drives, or if the allocator is slower than the better of the others by
more than the interval at any point.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median

import checkout  # noqa: F401 - finds the packages of this checkout

from fsim.allocators import ALLOCATORS
from fsim.experiment import SYNC_BYTES, AllocationResult, Mean, Sweep, compare, mean_of, preset
from fsim.workloads import SETTINGS
from lab.paper_drives import LOG_BLOCKS, PAPER_DRIVES
from slo_ctl.base.files import replace_file
from slo_ctl.show.terminal import progress_on_stderr

ABOUT_HALF = 0.6
"""Largest median of time relative to ext that counts as "roughly half the time"."""
TRIM = {"off": False, "on": True}


def names(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Type of an option: names from `known`, separated by commas."""
    allowed = list(known)

    def read(text: str) -> list[str]:
        found = text.split(",")
        for name in found:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name}: there are {', '.join(allowed)}")
        return found

    return read


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workload", type=names(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--drive", type=names(PAPER_DRIVES), default=list(PAPER_DRIVES))
    parser.add_argument("--mapping", type=names(("bast", "fast")), default=["bast", "fast"])
    parser.add_argument("--trim", type=names(TRIM), default=list(TRIM))
    parser.add_argument("--utilisation", type=lambda text: [int(each) for each in text.split(",")])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--allocator", choices=list(ALLOCATORS), default="greedy-local")
    parser.add_argument("--against", type=names(ALLOCATORS), default=["ext", "greedy-space"])
    parser.add_argument("--churn", type=float, default=0.0)
    parser.add_argument("--sync-mib", type=int, default=SYNC_BYTES >> 20)
    parser.add_argument("--log-blocks", type=int, default=LOG_BLOCKS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--save", type=Path, metavar="FOLDER")
    parser.set_defaults(utilisation=[10, 50, 90])
    return parser.parse_args()


def compared(given: argparse.Namespace, workload: str, mapping: str, trim: str) -> AllocationResult:
    """Result of one comparison, run now or loaded from the folder."""
    sweep = Sweep(
        allocators=tuple(dict.fromkeys((*given.against, given.allocator))),
        drives={name: preset(name, {"mapping": mapping}) for name in given.drive},
        workload=workload,
        utilisations=tuple(each / 100 for each in given.utilisation),
        trim=TRIM[trim],
        seeds=tuple(range(1, given.seeds + 1)),
        churn=given.churn,
        sync_bytes=given.sync_mib << 20,
        log_blocks=given.log_blocks,
    )
    # A result does not have these three.
    others = f"churn-{sweep.churn:g}-sync-{given.sync_mib}-logs-{sweep.log_blocks}"
    kept = given.save / f"{workload}-{mapping}-trim-{trim}-{others}.json" if given.save else None
    if kept is not None and kept.exists():
        return of_sweep(AllocationResult.model_validate_json(kept.read_text()), sweep, kept)
    with progress_on_stderr() as progress:
        result = compare(sweep, " ".join(sys.argv), progress, given.jobs)
    if not result.complete:
        sys.exit(f"{workload}, {mapping}, TRIM {trim}: interrupted")
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        replace_file(kept, f"{result.to_json()}\n".encode())
    return result


def of_sweep(found: AllocationResult, sweep: Sweep, path: Path) -> AllocationResult:
    """The stored result; exits if it is of other allocators, drives, utilisations or seeds."""
    drives = [each.name for each in found.drives]
    stored = found.allocators, drives, found.utilisations, found.seeds
    if stored != tuple(map(list, (sweep.allocators, sweep.drives, sweep.utilisations, sweep.seeds))):
        sys.exit(f"{path} is of other options: remove it, or name another --save folder")
    return found


def ratios(
    result: AllocationResult, own: str, others: list[str]
) -> Iterator[tuple[str, float, dict[str, float], Mean]]:
    """Drive, utilisation, mean seconds by allocator, and own time over that of the best other allocator."""
    for drive in result.drives:
        for utilisation in result.utilisations:
            points = {p.allocator: p for p in drive.points if p.utilisation == utilisation}
            best = [min(times) for times in zip(*(points[name].elapsed_s for name in others), strict=True)]
            each = [mine / other for mine, other in zip(points[own].elapsed_s, best, strict=True)]
            elapsed_s = {name: point.elapsed.mean for name, point in points.items()}
            yield drive.name, utilisation, elapsed_s, mean_of(each)


def main() -> int:
    given = arguments()
    columns = list(dict.fromkeys((*given.against, given.allocator)))
    print(
        "| workload | mapping | TRIM | drive | full | " + " | ".join(f"{name}, s" for name in columns), end=""
    )
    print(f" | greedy-space / ext | {given.allocator} / better of {' and '.join(given.against)} |")
    print("|" + "---|" * (len(columns) + 7))
    slower: list[str] = []
    not_settled: list[str] = []
    halves: dict[str, list[float]] = {}
    for workload, mapping, trim in itertools.product(given.workload, given.mapping, given.trim):
        result = compared(given, workload, mapping, trim)
        for drive, utilisation, elapsed_s, ratio in ratios(result, given.allocator, given.against):
            point = f"{workload} | {mapping} | {trim} | {drive} | {utilisation:.0%}"
            half = elapsed_s.get("greedy-space", float("nan")) / elapsed_s.get("ext", float("nan"))
            if workload == "cvfs-large" and mapping == "bast":
                halves.setdefault(f"{drive}, TRIM {trim}", []).append(half)
            spread = "" if ratio.half_width is None else f" +- {ratio.half_width:.3f}"
            cells = [f"{elapsed_s[name]:.0f}" for name in columns]
            print(f"| {point} | {' | '.join(cells)} | {half:.2f} | {ratio.mean:.3f}{spread} |", flush=True)
            if ratio.mean - (ratio.half_width or 0.0) > 1:
                slower.append(point)
            elif ratio.mean + (ratio.half_width or 0.0) > 1:
                not_settled.append(point)
    better = " and ".join(given.against)
    print(f"{given.allocator} slower than the better of {better}: {'; '.join(slower) or 'at no point'}")
    print(f"not settled by these seeds: {'; '.join(not_settled) or 'no point'}")
    halved = all(median(own) <= ABOUT_HALF for own in halves.values())
    if halves:
        print(halving(halves))
    return 0 if halved and not slower else 1


def halving(halves: dict[str, list[float]]) -> str:
    """Whether greedy-space takes about half of ext's time, by its parts of it at all utilisations."""
    lowest, highest = min(map(min, halves.values())), max(map(max, halves.values()))
    found = f"CVFS-Large on BAST: greedy-space takes {lowest:.2f} to {highest:.2f} of ext's time"
    more = [where for where, own in halves.items() if median(own) > ABOUT_HALF]
    return f"{found}; not about half on {'; '.join(more)}" if more else f"{found}, about half on every drive"


if __name__ == "__main__":
    sys.exit(main())
