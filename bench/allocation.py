"""Elapsed time of Postmark by utilisation for every allocator, like figures 4 and 5 of C. Hyun et al.

    .venv/bin/python bench/allocation.py [--setting cvfs-large,fsl] [--drive sandisk,samsung,mtron]
    [--allocator NAMES] [--utilisation 10,30,50,70,90] [--trim] [--mapping bast|fast] [--churn .3]
    [--sync-mib 16] [--log-blocks 32] [--layout ext|reiser] [--jobs 2] [--plot FOLDER] [--json FILE]

All times are virtual, of emulated drives. The paper gives its results as figures without numbers; what its
text says of them stands beside ours. Exit status 1 when Greedy-Space does not about halve CVFS-Large, or
greedy-local is slower than the better of ext and greedy-space anywhere.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from slo_ctl.allocation.drives import DRIVES, LOG_BLOCKS
from slo_ctl.allocation.experiment import SYNC_BYTES, Experiment, Outcome, run
from slo_ctl.allocation.layout import LAYOUTS
from slo_ctl.allocation.plot import save_plot
from slo_ctl.allocation.postmark import SETTINGS
from slo_ctl.allocation.registry import ALLOCATORS

ABOUT_HALF = 0.6
"""Of ext's time, the most that the median over utilisations may be for 'roughly half the time'."""
AS_GOOD = 1.02
PAPER = {
    # Section V, figures 4 and 5 as the text speaks of them.
    "cvfs-large": {
        "greedy-space / ext": "roughly half",
        "reiser-dirid / ext": "somewhat better",
        "greedy-space / reiser-dirid": "roughly half",
        "ext, 90 % / 10 %": "improves",
        "greedy-space, 90 % / 10 %": "not said",
    },
    "fsl": {
        "greedy-space / ext": "mostly better, in some cases worse",
        "greedy-space / reiser-dirid": "worse at high utilisation, most on SanDisk",
        "ext, 90 % / 10 %": "improves",
        "greedy-space, 90 % / 10 %": "stable, flat",
    },
}


@dataclass(frozen=True)
class Point:
    drive: str
    experiment: Experiment
    outcome: Outcome


def measure(task: tuple[str, Experiment]) -> Point:
    drive, experiment = task
    return Point(drive, experiment, run(experiment))


def arguments() -> argparse.Namespace:
    def names(known: object) -> object:
        return lambda text: [_known(name, known) for name in text.split(",")]

    def _known(name: str, known: object) -> str:
        if name not in known:  # type: ignore[operator]
            raise argparse.ArgumentTypeError(f"{name}: there are {', '.join(known)}")  # type: ignore[call-overload]
        return name

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--setting", type=names(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--drive", type=names(DRIVES), default=list(DRIVES))
    parser.add_argument("--allocator", type=names(ALLOCATORS), default=list(ALLOCATORS))
    parser.add_argument(
        "--utilisation",
        type=lambda text: [float(each) / 100 for each in text.split(",")],
        default=[0.1, 0.3, 0.5, 0.7, 0.9],
        help="percent",
    )
    parser.add_argument("--trim", action="store_true")
    parser.add_argument("--mapping", choices=("bast", "fast"), default="bast")
    parser.add_argument("--churn", type=float, default=0.0)
    parser.add_argument("--sync-mib", type=int, default=SYNC_BYTES >> 20)
    parser.add_argument("--log-blocks", type=int, default=LOG_BLOCKS)
    parser.add_argument("--layout", choices=tuple(LAYOUTS), help="metadata of every allocator, not its own")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--plot", type=Path, metavar="FOLDER")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def report(setting: str, points: list[Point], utilisations: list[float]) -> bool:
    """Print a setting's tables; whether it passes."""
    passed = True
    for drive in dict.fromkeys(point.drive for point in points):
        own = [point for point in points if point.drive == drive]
        print(f"\n{setting}, {drive}: elapsed s (blocks a sync writes to each logical block it touches: n)")
        print(f"  {'utilisation':13s}" + "".join(f"{each:>17.0%}" for each in utilisations))
        times: dict[str, dict[float, float]] = {}
        for point in own:
            at = times.setdefault(point.experiment.allocator, {})
            at[point.experiment.utilisation] = point.outcome.elapsed_s
        for name in times:
            row = {p.experiment.utilisation: p.outcome for p in own if p.experiment.allocator == name}
            cells = (
                f"{row[each].elapsed_s:9.0f} ({row[each].blocks_per_merge:5.1f})" for each in utilisations
            )
            print(f"  {name:13s}" + "".join(f"{cell:>17s}" for cell in cells))
        passed &= compare(setting, times, utilisations)
    return passed


def compare(setting: str, times: dict[str, dict[float, float]], utilisations: list[float]) -> bool:
    passed = True
    low, high = min(utilisations), max(utilisations)
    lines: dict[str, list[float]] = {}
    pairs = [("greedy-space", "ext"), ("reiser", "ext"), ("reiser-dirid", "ext")]
    for name, to in (*pairs, ("greedy-space", "reiser-dirid")):
        if name in times and to in times:
            lines[f"{name} / {to}"] = [times[name][each] / times[to][each] for each in utilisations]
    lines |= {f"{n}, {high:.0%} / {low:.0%}": [times[n][high] / times[n][low]] for n in times if high > low}
    for label, ratios in lines.items():
        said = PAPER[setting].get(label.replace("%", " %"), "")
        print(
            f"  {label:27s}"
            + " ".join(f"{each:5.2f}" for each in ratios)
            + (f"   paper: {said}" if said else "")
        )
    halved = lines.get("greedy-space / ext")
    if setting == "cvfs-large" and halved:
        good = median(halved) <= ABOUT_HALF
        print(f"  * greedy-space takes about half of ext's time: {'yes' if good else 'NO'}")
        passed &= good
    if {"ext", "greedy-space", "greedy-local"} <= set(times):
        over = {
            each: times["greedy-local"][each] / min(times[name][each] for name in ("ext", "greedy-space"))
            for each in utilisations
        }
        worse = [f"{each:.0%} ({ratio:.2f})" for each, ratio in over.items() if ratio > AS_GOOD]
        verdict = "NO at " + ", ".join(worse) if worse else "yes"
        print(f"  * greedy-local at least as good as ext and greedy-space: {verdict}")
        passed &= not worse
    if "greedy-local" in times:
        best = (min(times[name][each] for name in times if name != "greedy-local") for each in utilisations)
        ratios = [times["greedy-local"][each] / other for each, other in zip(utilisations, best, strict=True)]
        print(f"  {'greedy-local / best other':27s}" + " ".join(f"{each:5.2f}" for each in ratios))
    return passed


def main() -> int:
    given = arguments()
    tasks = [
        (
            drive,
            Experiment(
                allocator=allocator,
                setting=setting,
                drive=f"{DRIVES[drive].replace('mapping=bast', f'mapping={given.mapping}')}",
                utilisation=utilisation,
                trim=given.trim,
                layout=given.layout,
                churn=given.churn,
                sync_bytes=given.sync_mib << 20,
                log_blocks=given.log_blocks,
                seed=given.seed,
            ),
        )
        for setting in given.setting
        for drive in given.drive
        for allocator in given.allocator
        for utilisation in given.utilisation
    ]
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        points = []
        for point in pool.imap(measure, tasks):
            points.append(point)
            print(f"\r{len(points)} of {len(tasks)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    passed = True
    for setting in given.setting:
        own = [point for point in points if point.experiment.setting == setting]
        passed &= report(setting, own, given.utilisation)
        if given.plot:
            given.plot.mkdir(parents=True, exist_ok=True)
            drives: dict[str, dict[str, dict[float, float]]] = {}
            for point in own:
                curve = drives.setdefault(point.drive, {}).setdefault(point.experiment.allocator, {})
                curve[point.experiment.utilisation] = point.outcome.elapsed_s
            save_plot(f"Postmark, {setting}", drives, given.plot / f"allocation-{setting}.svg")
    if given.json:
        given.json.write_text(json.dumps([asdict(point) for point in points], indent=1) + "\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
