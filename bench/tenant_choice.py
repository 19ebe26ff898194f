"""The same VMs under every scheduler of an emulated device: is the one that `device policy` chooses the best?

    .venv/bin/python bench/tenant_choice.py --device name=hdd0,preset=cheetah-15k7,size=24GiB [--time-scale 2]

    .venv/bin/python bench/tenant_choice.py --replay --device preset=fast15,size=1GiB,op=15%   # virtual time

The device is created and served with three namespaces; a separate fio loads each over NBD, like a VM, with
the loads and objectives of bench/policy_choice.py. Rounds of fifo, rr and wfq are interleaved. Exit code 1 if
the choice is more than 5 % behind the best. Needs fio; --replay does not, is only for SSDs, and uses
a different seed for each round.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from contextlib import ExitStack

import checkout
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
from replayed_tenants import replayed
from served import Served

from slo_ctl.base.termination import terminable
from slo_ctl.decide.scheduler import Needs, choose_tenant_scheduler
from slo_ctl.drives.control import ControlClient

SCHEDULERS = ("fifo", "rr", "wfq")
FIO = shutil.which("fio") or "fio"


def round_of(served: Served, objective: str, seconds: float) -> Round:
    """Run the three VMs at once."""

    def start(length: float) -> list[subprocess.Popen[str]]:
        return [fio(served, name, load, length) for name, load in zip(NAMES, LOADS[objective], strict=True)]

    def counted() -> list[int]:
        with ControlClient(served.run.control) as control:
            reply = {each["name"]: each["answered"] for each in control.statistics()["namespaces"]}
        return [sum(reply[name][kind]["requests"] for kind in ("reads", "writes")) for name in NAMES]

    return one_round(start, counted, seconds)


def fio(served: Served, name: str, load: tuple[str, ...], seconds: float) -> subprocess.Popen[str]:
    """Run fio as a VM on that namespace."""
    common = ("--name=load", "--ioengine=nbd", f"--uri={served.uri(name)}", "--size=100%", "--ramp_time=1")
    timed = ("--time_based", f"--runtime={seconds - 1:g}", "--output-format=json")
    return subprocess.Popen([FIO, *common, *timed, *load], stdout=subprocess.PIPE, text=True)


def served_round(served: Served, scheduler: str, objective: str, seconds: float) -> Round:
    """A round on the served device, after setting its scheduler."""
    with ControlClient(served.run.control) as control:
        control.set_scheduler(scheduler)
        for name, weight in zip(NAMES, WEIGHTS, strict=True):
            control.set_weight(name, weight if objective == "weights" else 1.0)
    return round_of(served, objective, seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", required=True, help="as for `slo-ctl device create`")
    parser.add_argument("--time-scale", type=float, default=1.0)
    parser.add_argument("--replay", action="store_true", help="replay an SSD in virtual time")
    parser.add_argument("--drive-writes", type=float, default=8, help="of a replay")
    add_options(parser)
    options = parser.parse_args()
    if not options.replay:
        checkout.require("fio")
    with ExitStack() as stack:
        served = None if options.replay else Served(stack, options.device, NAMES, options.time_scale)

        def compared(objective: str) -> Compared:
            def one(scheduler: str, number: int) -> Round:
                if served is None:
                    return replayed(options.device, scheduler, objective, options.drive_writes, number + 1)
                return served_round(served, scheduler, objective, options.seconds)

            found = interleaved(SCHEDULERS, one, options.rounds)
            rows = [Row(name, "device" if name == "wfq" else "none", each) for name, each in found.items()]
            needs = Needs(objective == "weights", 1.0 if objective == "p99" else None)
            rotates = served is not None and served.kind != "ssd"
            choice = choose_tenant_scheduler(needs, len(NAMES), rotates=rotates)
            return Compared(rows, choice.value, choice, choice.reason)

        return compare(options, compared)


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
