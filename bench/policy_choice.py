"""The same VMs under every I/O scheduler of a device: is what `device policy` chooses the best?

    .venv/bin/python bench/policy_choice.py [--seconds 6] [--repeat 3] [--objective weights] [--json]
    python bench/policy_choice.py --device /dev/vdb --allow-write /dev/vdb      # any device: overwritten
    python bench/policy_choice.py --device URI --allow-write URI                # an NBD export, by nbdfuse

Without --device a loop device over a file is made, for an NBD URI one over the file that nbdfuse shows: so
the kernel's own schedulers order what a modelled device then serves in its own time. The device is profiled
first (`slo-ctl device profile`), then three groups of fio load it, each in a cgroup of its own, under every
scheduler that the kernel offers, with the parameters and weights that would go with it; rounds are
interleaved. Objectives:

- throughput: nothing is promised; total IOPS.
- weights: 1:3:6; total IOPS among those that keep every share within 15 %.
- p99: one VM of three has a latency target; its 99th percentile.

Exit code 1 where the chosen one is more than 5 % worse than the best. Needs root, fio and losetup.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from slo_ctl.act.block_queue import BlockQueueActuator
from slo_ctl.act.capabilities import probe
from slo_ctl.act.cgroup import CgroupActuator
from slo_ctl.act.journal import Journal
from slo_ctl.act.keeper import SettingKeeper
from slo_ctl.decide.levers import settings_for
from slo_ctl.decide.scheduler_choice import Needs
from slo_ctl.device.places import places
from slo_ctl.model import FoundBy, OutcomeState, Setting, Slo, Vm
from slo_ctl.observe.cgroup import CgroupTree, find_tree
from slo_ctl.serra.block_facts import block_facts, device_number, has_io_cost
from slo_ctl.serra.identity import Surroundings
from slo_ctl.serra.store import ProfileStore
from slo_ctl.serra.suited import Suited, suited

SYS = Path("/sys")
WEIGHTS = (1.0, 3.0, 6.0)
NAMES = ("a", "b", "c")
SHARE_BAR, BEST_BAR = 0.15, 0.05
P99_TARGET_US = 20_000.0
START_S = 10.0
NBDFUSE = shutil.which("nbdfuse") or "nbdfuse"
_SMALL = ("--rw=randrw", "--rwmixread=70", "--bs=4k", "--iodepth=16")
_LOADS = {
    "throughput": (
        _SMALL,
        ("--rw=read", "--bs=64k", "--iodepth=4"),
        ("--rw=randwrite", "--bs=16k", "--iodepth=8"),
    ),
    "weights": (_SMALL,) * 3,
    "p99": (
        ("--rw=randread", "--bs=4k", "--iodepth=1"),
        ("--rw=write", "--bs=256k", "--iodepth=8"),
        ("--rw=randwrite", "--bs=16k", "--iodepth=16"),
    ),
}
_NEEDS = {
    "throughput": Needs(),
    "weights": Needs(weights=True),
    "p99": Needs(p99_target_us=P99_TARGET_US),
}


@dataclass(frozen=True)
class Round:
    """What the three groups got, in IOPS; the first one's p99 in microseconds."""

    iops: tuple[float, ...]
    p99_us: float

    @property
    def worst_share(self) -> float:
        """How far a share is from its weight's, relative to it."""
        total = sum(self.iops) or 1.0
        wanted = [weight / sum(WEIGHTS) for weight in WEIGHTS]
        return max(abs(each / total / share - 1) for each, share in zip(self.iops, wanted, strict=True))


@dataclass(frozen=True)
class Row:
    """A scheduler, medians over its rounds."""

    scheduler: str
    weights: str
    total_iops: float
    worst_share: float
    p99_us: float
    spread: float
    """Of the total between rounds: largest over smallest, less 1. A lag below it says little."""

    def score(self, objective: str) -> float | None:
        """More is better; None: it does not do what is asked."""
        if objective == "p99":
            return 1 / self.p99_us
        return None if objective == "weights" and self.worst_share > SHARE_BAR else self.total_iops


class Bench:
    """One device, three groups."""

    def __init__(self, stack: ExitStack, path: str, seconds: float) -> None:
        self.path = path
        self._seconds = seconds
        self._number = device_number(path, SYS)
        tree = find_tree()
        if tree is None or not tree.io:
            sys.exit("no cgroup tree with block I/O here")
        self._tree: CgroupTree = tree
        self._io_cost = tree.version == 2 and has_io_cost(tree.root)
        state = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._around = Surroundings(places(state))
        self._store = ProfileStore(self._around.places.state / "profiles")
        self._root = state
        actuators = [BlockQueueActuator(SYS, tree.root if tree.version == 2 else None), CgroupActuator(tree)]
        self._keeper = SettingKeeper(actuators, Journal(state / "journal.json"))
        self._size = int((SYS / "class" / "block" / Path(path).name / "size").read_text()) * 512
        self._vms = self._groups(stack)
        stack.callback(self._keeper.undo)

    def _groups(self, stack: ExitStack) -> list[Vm]:
        parent = self._tree.root / f"slo-ctl-bench-{os.getpid()}"
        for folder in (parent, *(parent / name for name in NAMES)):
            folder.mkdir()
            stack.callback(folder.rmdir)
            control = folder / "cgroup.subtree_control"
            if folder == parent and control.exists():
                control.write_text("+io")
        return [Vm(name, FoundBy.OPTION, cgroup=f"/{parent.name}/{name}") for name in NAMES]

    def profile(self, budget: str) -> None:
        """By the command that an operator would type."""
        command = [sys.executable, "-m", "slo_ctl.cli", "device", "profile", self.path, "--budget", budget]
        subprocess.run(
            [*command, "--allow-write", self.path, "--root", str(self._root), "--quiet", "--json"],
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def suits(self, needs: Needs, given: str | None = None) -> Suited:
        """What `device policy` chooses; `given`: what goes with that scheduler."""
        facts = block_facts(self._number, self._around, self._io_cost)
        return suited(facts, needs, self._store.of_device(self._number, self._around), given)

    def set_to(self, choice: Suited, needs: Needs) -> None:
        """The device, then the weights that it can keep."""
        settings = list(choice.settings)
        self._apply(settings)
        if needs.weights:
            slos = {vm.name: Slo(weight) for vm, weight in zip(self._vms, WEIGHTS, strict=True)}
            numbers = {"it": self._number}
            wanted = settings_for(self._vms, slos, (), numbers, probe(self._tree, SYS, numbers.values()))
            self._apply([*settings, *wanted.settings])

    def _apply(self, settings: list[Setting]) -> None:
        for outcome in self._keeper.apply(settings):
            if outcome.state is OutcomeState.UNAPPLIED:
                sys.exit(f"{outcome.setting.knob}: {outcome.reason}")

    def round(self, objective: str) -> Round:
        """One run of the three groups at once."""
        part = self._size // len(self._vms) // (1 << 20) << 20
        running = [
            self._fio(vm, load, number * part, part)
            for number, (vm, load) in enumerate(zip(self._vms, _LOADS[objective], strict=True))
        ]
        jobs = [json.loads(process.communicate()[0])["jobs"][0] for process in running]
        iops = tuple(job["read"]["iops"] + job["write"]["iops"] for job in jobs)
        latency = jobs[0]["read"]["clat_ns"].get("percentile", {})
        return Round(iops, latency.get("99.000000", 0.0) / 1e3)

    def _fio(self, vm: Vm, load: tuple[str, ...], offset: int, size: int) -> subprocess.Popen[str]:
        procs = self._tree.folder(vm.cgroup or "") / "cgroup.procs"
        common = (
            *("--name=load", f"--filename={self.path}", "--direct=1", "--ioengine=libaio", "--ramp_time=1"),
            *(f"--offset={offset}", f"--size={size}", "--time_based", f"--runtime={self._seconds}"),
            "--output-format=json",
        )
        enter = f"echo $$ > '{procs}' && exec fio \"$@\""
        command = ["/bin/sh", "-c", enter, "fio", *common, *load]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def loop_device(stack: ExitStack, size_bytes: int) -> str:
    """Over a file that is written, not sparse: first writes to a hole are the file system's work."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slo-ctl-bench-", dir="/var/tmp")))
    with (folder / "image").open("wb") as file:
        for _ in range(0, size_bytes, 1 << 20):
            file.write(bytes(1 << 20))
    return attached(stack, folder / "image")


def attached(stack: ExitStack, file: Path) -> str:
    """The loop device of a file."""
    command = ["losetup", "--find", "--show", "--direct-io=on", str(file)]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    stack.callback(subprocess.run, ["losetup", "--detach", path], check=False)
    return path


def nbd_device(stack: ExitStack, uri: str) -> str:
    """A loop device over an NBD export."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slo-ctl-bench-")))
    (folder / "disk").touch()
    server = subprocess.Popen([NBDFUSE, str(folder / "disk"), uri])
    stack.callback(server.wait)
    stack.callback(subprocess.run, ["fusermount3", "-u", "-z", str(folder / "disk")], check=False)
    deadline = time.monotonic() + START_S
    while (folder / "disk").stat().st_size == 0:
        if time.monotonic() > deadline or server.poll() is not None:
            sys.exit(f"nbdfuse shows nothing of {uri}")
        time.sleep(0.1)
    return attached(stack, folder / "disk")


def measure(bench: Bench, objective: str, repeat: int) -> tuple[list[Row], Suited]:
    """Every scheduler offered, and the choice."""
    needs = _NEEDS[objective]
    chosen = bench.suits(needs)
    rounds: dict[str, list[Round]] = {name: [] for name in chosen.facts.offered}
    for _ in range(repeat):
        for name, of_it in rounds.items():
            bench.set_to(chosen if name == chosen.choice.scheduler else bench.suits(needs, name), needs)
            of_it.append(bench.round(objective))
    rows = [
        Row(
            name,
            bench.suits(needs, name).choice.weights.value,
            statistics.median(sum(each.iops) for each in of_it),
            statistics.median(each.worst_share for each in of_it),
            statistics.median(each.p99_us for each in of_it),
            max(sum(each.iops) for each in of_it) / min(sum(each.iops) for each in of_it) - 1,
        )
        for name, of_it in rounds.items()
    ]
    return rows, chosen


def lag(rows: list[Row], chosen: str, objective: str) -> float | None:
    """By how much the chosen one is worse than the best; None where it does not do what is asked."""
    scores = {row.scheduler: row.score(objective) for row in rows}
    mine = scores[chosen]
    return None if mine is None else 1 - mine / max(score for score in scores.values() if score is not None)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", help="a block device or an NBD URI, instead of a file")
    parser.add_argument("--allow-write", help="the same device: it is overwritten")
    parser.add_argument("--objective", choices=[*_LOADS], action="append")
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--budget", default="30s", help="of the profile")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    missing = [name for name in ("fio", "losetup") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        sys.exit(f"not installed: {', '.join(missing)}" if missing else "run it as root")
    if options.device != options.allow_write:
        sys.exit(f"{options.device} would be overwritten: --allow-write {options.device} says that it may be")
    late, told = False, {}
    with ExitStack() as stack:
        if options.device is None:
            path = loop_device(stack, 600 << 20)
        else:
            path = nbd_device(stack, options.device) if options.device.startswith("nbd") else options.device
        bench = Bench(stack, path, options.seconds)
        bench.profile(options.budget)
        for objective in options.objective or _LOADS:
            rows, chosen = measure(bench, objective, options.repeat)
            behind = lag(rows, chosen.choice.scheduler, objective)
            late |= behind is None or behind > BEST_BAR
            told[objective] = {
                "chosen": asdict(chosen.choice),
                "rows": [asdict(row) for row in rows],
                "lag": behind,
            }
            if not options.json:
                show(objective, rows, chosen, behind)
    if options.json:
        print(json.dumps(told, indent=1))
    return int(late)


def show(objective: str, rows: list[Row], chosen: Suited, behind: float | None) -> None:
    print(f"{objective}: {chosen.choice.choices[0].value}, {chosen.choice.choices[0].reason}")
    for row in rows:
        mark = "*" if row.scheduler == chosen.choice.scheduler else " "
        print(
            f" {mark} {row.scheduler:12} weights {row.weights:8} {row.total_iops:9.0f} IOPS, "
            f"spread {row.spread:4.0%}  "
            f"worst share {row.worst_share:5.0%} off  p99 {row.p99_us:9.0f} us"
        )
    told = "does not do what is asked" if behind is None else f"{behind:.1%} behind the best"
    print(f"   chosen: {chosen.choice.scheduler}, {told}; at most {BEST_BAR:.0%} is wanted")


if __name__ == "__main__":
    sys.exit(main())
