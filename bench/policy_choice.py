"""The same VMs under every I/O scheduler of a device: is what `device policy` chooses the best?

    .venv/bin/python bench/policy_choice.py [--seconds 8] [--rounds 5] [--objective weights] [--json]
    python bench/policy_choice.py --device /dev/vdb --allow-write /dev/vdb      # any device: overwritten
    python bench/policy_choice.py --emulated name=hdd0,preset=cheetah-15k7,size=24GiB    # served, by nbdfuse

Without a device a loop device over a file is created. An emulated device is served with `--latency real`, and
the loop device is over the file of nbdfuse, so that the kernel's own schedulers order requests which a
modelled device serves at its own speed. The device is profiled first (`slo-ctl device profile`), then three
groups of fio load it, each in its own cgroup, under every scheduler that the kernel offers, with the matching
parameters and weights; rounds are interleaved. Objectives:

- throughput: no SLO is set; total IOPS.
- weights: 1:3:6; total IOPS among those that keep every share within 15 %.
- p99: one VM of three has a latency target; its 99th percentile.

In the first two every VM has the same mixture of sequential and random reads and writes, so that IOPS can be
added up and shares are comparable. The difference between the choice and the best is reported for the medians
of rounds, and for each round. Exit code 1 if that of the medians exceeds 5 %. Needs root, fio and losetup,
for an emulated device nbdfuse and nbdinfo.

The devices of docs/profiling.md: name=hdd0,preset=cheetah-15k7,size=24GiB;
name=raid0,class=raid0,disks=4,stripe=64KiB,size=24GiB; name=ssd0,preset=tlc,size=16GiB,op=28% with
`--time-scale 40`. 13 minutes each.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import checkout
from nbd_block import EXPORT_PROGRAMS, over_export, over_file
from policy_rounds import (
    LOADS,
    NAMES,
    WEIGHTS,
    Compared,
    Round,
    Row,
    add_options,
    compare,
    interleaved,
    one_round,
)
from served import Served

from slo_ctl.act.cgroup import CgroupActuator
from slo_ctl.act.journal import Journal
from slo_ctl.act.keeper import Actuator, SettingKeeper
from slo_ctl.act.queue import BlockQueueActuator
from slo_ctl.base.termination import terminable
from slo_ctl.decide.device_use import HostState
from slo_ctl.decide.levers import ManagedDevices, settings_for
from slo_ctl.decide.scheduler import Needs
from slo_ctl.drives.places import places
from slo_ctl.host.block_device import probe
from slo_ctl.host.cgroup import CgroupTree, CounterReader, find_tree
from slo_ctl.model.host import FoundBy, Vm
from slo_ctl.model.setting import OutcomeState, Setting
from slo_ctl.model.slo import Slo
from slo_ctl.profile.identity import IdentitySources, block_facts, has_io_cost, named_device
from slo_ctl.profile.store import ProfileStore, SchedulerAdvice, advise_scheduler

SYS = Path("/sys")


class Bench:
    """One device, three groups."""

    def __init__(self, stack: ExitStack, path: str, seconds: float) -> None:
        self.path = path
        self._seconds = seconds
        self._number = named_device(path, SYS)
        tree = find_tree()
        if tree is None or not tree.io:
            sys.exit("no cgroup tree with block I/O here")
        self._tree: CgroupTree = tree
        self._io_cost = tree.version == 2 and has_io_cost(tree.root)
        state = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._around = IdentitySources(places(state))
        self._store = ProfileStore(self._around.places.state / "profiles")
        self._root = state
        actuators: list[Actuator[Any]] = [
            BlockQueueActuator(SYS, tree.root if tree.version == 2 else None),
            CgroupActuator(tree),
        ]
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
        """Profile the device with the command that an operator would use."""
        command = [sys.executable, "-m", "slo_ctl.cli", "device", "profile", self.path, "--budget", budget]
        # Within the default 256 MiB seeks are so short that a fast disk hardly differs from flash.
        command += ["--file-size", f"{min(self._size, 4 << 30) >> 20}MiB"]
        subprocess.run(
            [*command, "--allow-write", self.path, "--root", str(self._root), "--quiet", "--json"],
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def suits(self, needs: Needs, given: str | None = None) -> SchedulerAdvice:
        """The choice of `device policy`; `given`: the parameters for that scheduler."""
        facts = block_facts(self._number, self._around, self._io_cost)
        return advise_scheduler(facts, needs, self._store.of_device(self._number, self._around), given)

    def set_to(self, choice: SchedulerAdvice, needs: Needs) -> None:
        """Set the device, then the weights that it supports."""
        settings = list(choice.settings)
        self._apply(settings)
        if needs.weights:
            slos = {vm.name: Slo(weight) for vm, weight in zip(self._vms, WEIGHTS, strict=True)}
            numbers = {"it": self._number}
            managed = ManagedDevices(numbers, probe(self._tree, SYS, numbers.values()))
            wanted = settings_for(HostState(self._vms, (), slos, slos), managed)
            self._apply([*settings, *wanted.settings])

    def _apply(self, settings: list[Setting]) -> None:
        for outcome in self._keeper.apply(settings):
            if outcome.state is OutcomeState.UNAPPLIED:
                sys.exit(f"{outcome.setting.knob}: {outcome.reason}")

    def round(self, objective: str) -> Round:
        """One run of the three groups at once."""
        part = self._size // len(self._vms) // (1 << 20) << 20

        def start(seconds: float) -> list[subprocess.Popen[str]]:
            loads = enumerate(zip(self._vms, LOADS[objective], strict=True))
            return [self._fio(vm, load, number * part, part, seconds) for number, (vm, load) in loads]

        return one_round(start, self._counted, self._seconds)

    def _counted(self) -> list[int]:
        """Requests of each group on the device so far."""
        with closing(CounterReader(self._tree)) as reader:
            found = [reader.read(vm.cgroup or "", print).get(self._number) for vm in self._vms]
        return [(each.reads or 0) + (each.writes or 0) if each else 0 for each in found]

    def _fio(
        self, vm: Vm, load: tuple[str, ...], offset: int, size: int, seconds: float
    ) -> subprocess.Popen[str]:
        procs = self._tree.folder(vm.cgroup or "") / "cgroup.procs"
        common = (
            *("--name=load", f"--filename={self.path}", "--direct=1", "--ioengine=libaio", "--ramp_time=1"),
            *(f"--offset={offset}", f"--size={size}", "--time_based", f"--runtime={seconds - 1:g}"),
            "--output-format=json",
        )
        enter = f"echo $$ > '{procs}' && exec fio \"$@\""
        command = ["/bin/sh", "-c", enter, "fio", *common, *load]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def compared(bench: Bench, objective: str, needs: Needs, rounds: int) -> Compared:
    """Run all offered schedulers, and determine the choice."""
    chosen = bench.suits(needs)
    own = chosen.choice.scheduler
    settings = {name: chosen if name == own else bench.suits(needs, name) for name in chosen.facts.offered}

    def one(scheduler: str, _number: int) -> Round:
        bench.set_to(settings[scheduler], needs)
        return bench.round(objective)

    found = interleaved(settings, one, rounds)
    rows = [Row(name, settings[name].choice.weights.value, each) for name, each in found.items()]
    first = chosen.choice.choices[0]
    return Compared(rows, own, chosen.choice, f"{first.value}, {first.reason}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", help="a block device, instead of a file")
    parser.add_argument("--allow-write", help="the same device: it is overwritten")
    parser.add_argument("--emulated", help="as for `slo-ctl device create`, instead of a file")
    parser.add_argument("--time-scale", type=float, default=1.0, help="time scale of an emulated device")
    parser.add_argument("--p99-target", type=float, default=20_000.0, help="in microseconds")
    parser.add_argument("--budget", default="30s", help="of the profile")
    add_options(parser)
    options = parser.parse_args()
    checkout.require("fio", "losetup", *(EXPORT_PROGRAMS if options.emulated is not None else ()), root=True)
    if options.device != options.allow_write:
        sys.exit(f"{options.device} would be overwritten: --allow-write {options.device} says that it may be")
    with ExitStack() as stack:
        if options.emulated is not None:
            path = over_export(stack, Served(stack, options.emulated, ["all"], options.time_scale).uri("all"))
        else:
            path = options.device or over_file(stack, 600 << 20)
        bench = Bench(stack, path, options.seconds)
        bench.profile(options.budget)

        def of_objective(objective: str) -> Compared:
            needs = Needs(objective == "weights", options.p99_target if objective == "p99" else None)
            return compared(bench, objective, needs, options.rounds)

        return compare(options, of_objective)


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
