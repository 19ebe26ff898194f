"""Cost of weights for VMs that do not saturate the device, on a real loop device: without and with slo-ctl.

    .venv/bin/python bench/weights_cost.py [--rounds 3] [--seconds 8]

Three fio processes read 4 KiB at random, past the page cache, each in its own cgroup (v1's blkio) and at
most 2000, 700 and 2000 times a second; the weights are 1:3:6. `without`: the device has no scheduler.
`waiting`: bfq with the same weights that always waits up to 8 ms for the next request, without slo-ctl.
`with`: the daemon. Figures are the kernel's counters, medians of the rounds. Needs root, fio and losetup.
Exit code 1 if a VM has less than 95 % of its IOPS with slo-ctl.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import checkout
from cgroup_groups import loop_device
from daemon_host import Cgroups, cgroups, clients, running
from noisy_neighbours import let_the_kernel_count, rates

from slo_ctl.act.cgroup import CgroupActuator
from slo_ctl.act.queue import BlockQueueActuator
from slo_ctl.base.termination import terminable
from slo_ctl.decide.scheduler import scheduler_knob
from slo_ctl.decide.scheduler_parameters import parameters_of
from slo_ctl.host.cgroup import find_tree
from slo_ctl.model.host import DeviceNumber
from slo_ctl.model.setting import Knob, Lever

WEIGHTS = {"a": 1, "b": 3, "c": 6}
PACES = {"a": 2000, "b": 700, "c": 2000}
SETTLING_S = 25.0
"""Two windows of the daemon, with a margin."""
LEAST_KEPT = 0.95
CONFIG = """
[libvirt]
uri = "none"
[[device]]
name = "fast"
path = "{path}"
"""


def configure(root: Path, path: str, groups: Cgroups) -> None:
    vms = [f'[vm.{vm}]\nweight = {weight}\ncgroup = "{groups.path(vm)}"' for vm, weight in WEIGHTS.items()]
    (root / "slo-ctl.toml").write_text("\n".join([CONFIG.format(path=path), *vms]))


def wait_always(path: str, number: DeviceNumber, groups: Cgroups) -> None:
    """Set bfq with the weights, until the device is detached."""
    tree = find_tree()
    if tree is None:
        sys.exit("no cgroup tree with block I/O on this host")
    parameters = parameters_of("bfq", None, keeps_weights=True)
    scheduler = " ".join(["bfq", *(f"{each.what}={each.value}" for each in parameters)])
    BlockQueueActuator(Path("/sys"), None).write(scheduler_knob(Path(path).name, str(number)), scheduler)
    for vm, weight in WEIGHTS.items():
        CgroupActuator(tree).write(Knob(Lever.CGROUP_WEIGHT, groups.path(vm), "weight"), 100.0 * weight)


def measure(seconds: float) -> dict[str, dict[str, float]]:
    """IOPS of each VM, without slo-ctl, with bfq alone, and with slo-ctl."""
    found = {}
    for case in ("without", "waiting", "with"):
        with ExitStack() as stack:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slo-")))
            groups = stack.enter_context(cgroups(*WEIGHTS))
            path, number = stack.enter_context(loop_device(256 << 20))
            let_the_kernel_count(groups, number, list(PACES))
            readers = stack.enter_context(clients(groups, root))
            if case == "waiting":
                wait_always(path, number, groups)
            for vm, pace in PACES.items():
                common = (f"--filename={path}", "--rw=randread", "--bs=4k", "--direct=1", "--time_based")
                paced = ("--ioengine=libaio", "--iodepth=16", f"--rate_iops={pace}", "--runtime=600")
                readers.start(vm, *common, *paced)
            if case == "with":
                configure(root, path, groups)
                stack.enter_context(running(root))
                time.sleep(SETTLING_S)
            time.sleep(3.0)
            found[case] = rates(groups, number, seconds, list(PACES))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8)
    options = parser.parse_args()
    checkout.require("fio", "losetup", root=True)
    rounds = []
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        rounds.append(measure(options.seconds))
    print(f"{'IOPS':<8}" + "".join(f"{case:>10}" for case in rounds[0]))
    medians = {case: {vm: median(each[case][vm] for each in rounds) for vm in PACES} for case in rounds[0]}
    for vm in PACES:
        print(f"{vm:<8}" + "".join(f"{medians[case][vm]:>10,.0f}" for case in medians))
    kept = min(medians["with"][vm] / medians["without"][vm] for vm in PACES)
    print(f"with slo-ctl each VM has at least {kept:.1%} of its IOPS, at least {LEAST_KEPT:.0%} is wanted")
    return int(kept < LEAST_KEPT)


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
