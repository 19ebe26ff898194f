"""A minimum or a p99 of one VM beside two noisy ones, on a real loop device: without slo-ctl, and with it.

    .venv/bin/python bench/min_iops.py [--minimum 300 | --p99-ms 10] [--seconds 20] [--size 256M] [--json]

Three fio processes read at random, past the page cache, each in its own cgroup (v1's blkio): `web` 4 KiB, one
at a time; `noisy1` and `noisy2` 128 KiB, 64 at a time. The device has no scheduler, so that a process with
more outstanding requests gets more. The daemon is the real one; figures are the kernel's counters. All groups
have a limit far above the speed of the device from the start, as v1 counts nothing without one. Needs root,
fio and losetup, for a p99 also bpftrace: latencies are those of the block layer, over the daemon's window of
5 s, the median of the status of every second. Exit code 1 if the objective is not met with slo-ctl, or is
met without it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import checkout
from cgroup_groups import loop_device
from daemon_host import DaemonProcess, cgroups, clients, row_of, running
from newer_bpftrace import search_path
from noisy_neighbours import VMS, configure, fio_on, let_the_kernel_count, rates

from slo_ctl.base.termination import terminable

KEPT = 0.97
NO_TARGET = 'p99 = "100s"'
SETTLING_S = {"minimum": 25.0, "p99": 75.0}
"""A change of p99 shows only after the window."""
UNITS = {"M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Measured:
    """IOPS of each VM, and the p99 of web where it is measured."""

    iops: dict[str, float]
    p99_ms: float | None = None


def measure(slo: str, *, p99: bool, seconds: float, size_bytes: int) -> tuple[dict[str, Measured], str]:
    """Measure without the objective, with it, and after the daemon; also the verdict on web with it."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slo-")))
        groups = stack.enter_context(cgroups(*VMS))
        path, number = stack.enter_context(loop_device(size_bytes))
        let_the_kernel_count(groups, number)
        readers = stack.enter_context(clients(groups, root))
        for vm in VMS:
            readers.start(vm, *fio_on(path, vm))
        time.sleep(3.0)

        def measured(seconds: float, daemon: DaemonProcess | None = None) -> Measured:
            if not p99 or daemon is None:
                return Measured(rates(groups, number, seconds))
            iops, p99s_ms = [], []
            for _ in range(max(1, round(seconds))):
                iops.append(rates(groups, number, 1.0))
                p99s_ms.append((daemon.vm("web").p99_read_us or 0.0) / 1e3)
            return Measured({vm: median(each[vm] for each in iops) for vm in VMS}, median(p99s_ms))

        environment = {"PATH": search_path()} if p99 else None
        found = {} if p99 else {"without": measured(seconds)}
        configure(root, path, NO_TARGET if p99 else slo, groups, measured=p99)
        with running(root, environment=environment) as daemon:
            if p99:
                daemon.eventually("a p99", lambda status: row_of(status, "web").p99_read_us)
                found["without"] = measured(seconds, daemon)
                configure(root, path, slo, groups, measured=True)
                daemon.api.post("/v1/reload")
            time.sleep(SETTLING_S["p99" if p99 else "minimum"])
            found["with"] = measured(seconds, daemon)
            row = daemon.vm("web")
            if daemon.stop() != 0:
                sys.exit(f"the daemon's stop failed: {daemon.log()}")
        time.sleep(3.0)
        found["stopped"] = measured(seconds / 2)
        return found, f"{row.verdict.value}: {row.reason}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    objective = parser.add_mutually_exclusive_group()
    objective.add_argument("--minimum", type=float, default=300)
    objective.add_argument("--p99-ms", type=float)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--size", default="256M", help="size of the device, such as 256M or 2G")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    checkout.require("fio", "losetup", root=True)
    size_bytes = int(options.size[:-1]) * UNITS[options.size[-1]]
    p99_ms, minimum = options.p99_ms, options.minimum
    slo = f"min_iops = {minimum}" if p99_ms is None else f'p99 = "{p99_ms}ms"'
    found, verdict = measure(slo, p99=p99_ms is not None, seconds=options.seconds, size_bytes=size_bytes)
    if options.json:
        figures = {title: asdict(each) for title, each in found.items()}
        print(json.dumps({"slo": slo, **figures, "verdict": verdict}))
    else:
        print(f"{'IOPS':<8}" + "".join(f"{title:>10}" for title in found))
        for vm in VMS:
            row = "".join(f"{each.iops[vm]:>10,.0f}" for each in found.values())
            print(f"{vm:<8}{row}" + (f"   {slo}" if vm == "web" else ""))
        if p99_ms is not None:
            known = [each.p99_ms for each in found.values() if each.p99_ms is not None]
            print(f"{'p99, ms':<8}" + "".join(f"{each:>10.1f}" for each in known))
        print(f"web is {verdict}")
    without, kept = found["without"], found["with"]
    if p99_ms is None:
        return 0 if without.iops["web"] < minimum <= kept.iops["web"] / KEPT else 1
    return 0 if (kept.p99_ms or 1e9) * KEPT <= p99_ms < (without.p99_ms or 0.0) else 1


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
