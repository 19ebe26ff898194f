"""Shares of three fio processes on a loop device under bfq, by weights that the actuator set.

    .venv/bin/python bench/blkio_shares.py [--weights 1,3,6] [--seconds 8] [--size 600M] [--json]

Each process writes 4 KiB blocks at random, past the page cache, from a cgroup of its own (v1's blkio). The
weights go the way of the daemon: levers, keeper, read back, restored in the end. Needs root, fio, losetup
and cgroup-tools. Exit code 1 where a share is farther than 15 % from its weight's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import checkout  # noqa: F401 - finds the packages of this checkout

from slo_ctl.act.cgroup import CgroupActuator
from slo_ctl.act.journal import Journal
from slo_ctl.act.keeper import SettingKeeper
from slo_ctl.base.termination import terminable
from slo_ctl.decide.device_use import HostState
from slo_ctl.decide.levers import ManagedDevices, settings_for
from slo_ctl.host.block_device import probe
from slo_ctl.host.cgroup import CgroupTree, find_tree, read_counters
from slo_ctl.model.host import DeviceNumber, FoundBy, Vm
from slo_ctl.model.setting import OutcomeState
from slo_ctl.model.slo import Slo

BAR = 0.15
SYS = Path("/sys")
NAMES = ("a", "b", "c")
START_S, END_S = 2.0, 2.0
UNITS = {"M": 1 << 20, "G": 1 << 30}


def loop_device(stack: ExitStack, size_bytes: int) -> str:
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="slo-ctl-bench-", dir="/var/tmp"))
    image = Path(folder) / "image"
    # Written, not sparse: the first writes to a hole are the host file system's work, not the device's.
    with image.open("wb") as file:
        for _ in range(0, size_bytes, 1 << 20):
            file.write(bytes(1 << 20))
    command = ["losetup", "--find", "--show", "--direct-io=on", str(image)]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    stack.callback(subprocess.run, ["losetup", "--detach", path], check=False)
    queue = SYS / "block" / Path(path).name / "queue"
    (queue / "scheduler").write_text("bfq")
    (queue / "iosched" / "low_latency").write_text("0")
    (queue / "iosched" / "slice_idle").write_text("8")
    # Turns of a set size: those that bfq tunes by itself come out so long that shares differ from run to run.
    (queue / "iosched" / "max_budget").write_text("512")
    return path


def make_groups(stack: ExitStack, tree: CgroupTree) -> list[Vm]:
    parent = tree.root / f"slo-ctl-bench-{os.getpid()}"
    for folder in (parent, *(parent / name for name in NAMES)):
        folder.mkdir()
        stack.callback(folder.rmdir)
    return [Vm(name, FoundBy.OPTION, cgroup=f"/{parent.name}/{name}") for name in NAMES]


def load(cgroup: str, path: str, offset: int, size: int, seconds: float) -> subprocess.Popen[str]:
    command = [
        *("cgexec", "-g", f"blkio:{cgroup.lstrip('/')}"),
        *("fio", "--name=load", f"--filename={path}", "--rw=randwrite", "--bs=4k", "--direct=1"),
        *("--ioengine=libaio", "--iodepth=16", f"--offset={offset}", f"--size={size}"),
        *("--time_based", f"--runtime={seconds}", "--output-format=json"),
    ]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True)


def completed(tree: CgroupTree, vms: list[Vm], device: DeviceNumber) -> tuple[float, list[int]]:
    """Time of a reading, and the writes of each group on the device so far."""
    counted = [read_counters(tree, vm.cgroup or "", print).get(device) for vm in vms]
    return time.monotonic(), [(c.writes or 0) if c else 0 for c in counted]


def measure(weights: list[float], seconds: float, size_bytes: int) -> tuple[list[float], list[str]]:
    """IOPS by VM, and the messages of the levers."""
    tree = find_tree()
    if tree is None or tree.version != 1:
        sys.exit("this bench is for hosts with v1's blkio")
    with ExitStack() as stack:
        path = loop_device(stack, size_bytes)
        number = Path(path).stat().st_rdev
        devices = {"loop": DeviceNumber(os.major(number), os.minor(number))}
        vms = make_groups(stack, tree)
        state = stack.enter_context(tempfile.TemporaryDirectory())
        keeper = SettingKeeper([CgroupActuator(tree)], Journal(Path(state) / "journal.json"))
        slos = {vm.name: Slo(weight) for vm, weight in zip(vms, weights, strict=True)}
        managed = ManagedDevices(devices, probe(tree, SYS, devices.values()))
        wanted = settings_for(HostState(vms, (), slos, slos), managed)
        stack.callback(keeper.undo)
        for outcome in keeper.apply(wanted.settings):
            if outcome.state is OutcomeState.UNAPPLIED:
                sys.exit(f"{outcome.setting.knob}: {outcome.state}: {outcome.reason}")
        part = size_bytes // len(vms)
        # Count within one window in which all run: processes start and end at different times.
        length = START_S + seconds + END_S
        running = [load(vm.cgroup or "", path, i * part, part, length) for i, vm in enumerate(vms)]
        for process in running:
            stack.callback(process.wait)
            stack.callback(process.terminate)
        time.sleep(START_S)
        began, before = completed(tree, vms, devices["loop"])
        time.sleep(seconds)
        ended, after = completed(tree, vms, devices["loop"])
        if any(process.poll() is not None for process in running):
            sys.exit("fio ended early")
        reply = [*(setting.reason for setting in wanted.settings), *wanted.notes]
        return [(b - a) / (ended - began) for a, b in zip(before, after, strict=True)], reply


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--weights", default="1,3,6")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--size", default="600M", help="of the device, such as 600M or 2G")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    missing = [name for name in ("fio", "losetup", "cgexec") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        sys.exit(f"not installed: {', '.join(missing)}" if missing else "run it as root")
    weights = [float(word) for word in options.weights.split(",")]
    if len(weights) != len(NAMES):
        parser.error(f"--weights: {len(NAMES)} of them")
    size_bytes = int(options.size[:-1]) * UNITS[options.size[-1]]
    iops, reply = measure(weights, options.seconds, size_bytes)
    shares = [each / sum(iops) for each in iops]
    targets = [weight / sum(weights) for weight in weights]
    worst = max(abs(share / target - 1) for share, target in zip(shares, targets, strict=True))
    if options.json:
        print(
            json.dumps({"iops": iops, "shares": shares, "targets": targets, "worst": worst, "reasons": reply})
        )
    else:
        print("\n".join(reply))
        for name, target, share, each in zip(NAMES, targets, shares, iops, strict=True):
            print(f"{name}  target {target:6.1%}  share {share:6.1%}  {each:8.0f} IOPS")
        print(f"worst {worst:.1%} off, at most {BAR:.0%} is wanted")
    return 0 if worst <= BAR else 1


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
