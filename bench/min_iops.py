"""A minimum of IOPS for one VM against two noisy ones, on a real loop device: without slo-ctl, and with it.

    .venv/bin/python bench/min_iops.py [--minimum 300] [--seconds 20] [--size 256M] [--json]

Three fio processes read at random, past the page cache, each from a cgroup of its own (v1's blkio): `web`
4 KiB, one at a time; `noisy1` and `noisy2` 128 KiB, 64 at a time. The device has no scheduler, so that who
has more requests waiting gets more. The daemon is the real one; figures are the kernel's counters. All groups
have a limit far above what the device does from the start, as v1 counts nothing without. Needs root, fio and
losetup. Exit code 1 where the minimum is not kept with slo-ctl, or kept without it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import checkout  # noqa: F401 - finds the packages of this checkout
from cgroup_groups import loop_device
from daemon_host import cgroups, clients, running
from noisy_neighbours import VMS, configure, fio_on, let_the_kernel_count, rates

KEPT = 0.97
SETTLING_S = 25.0
UNITS = {"M": 1 << 20, "G": 1 << 30}


def measure(minimum: float, seconds: float, size_bytes: int) -> dict[str, object]:
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slo-")))
        groups = stack.enter_context(cgroups(*VMS))
        path, number = stack.enter_context(loop_device(size_bytes))
        let_the_kernel_count(groups, number)
        readers = stack.enter_context(clients(groups, root))
        for vm in VMS:
            readers.start(vm, *fio_on(path, vm))
        time.sleep(3.0)
        without = rates(groups, number, seconds)
        configure(root, path, minimum, groups)
        with running(root) as daemon:
            time.sleep(SETTLING_S)
            kept = rates(groups, number, seconds)
            row = daemon.vm("web")
            if daemon.stop() != 0:
                sys.exit(f"the daemon did not end well: {daemon.log()}")
        time.sleep(3.0)
        after = rates(groups, number, seconds / 2)
        return {
            "minimum": minimum,
            "without": without,
            "with": kept,
            "stopped": after,
            "verdict": row.verdict.value,
            "reason": row.reason,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minimum", type=float, default=300)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--size", default="256M", help="of the device, such as 256M or 2G")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    missing = [name for name in ("fio", "losetup") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        sys.exit(f"not installed: {', '.join(missing)}" if missing else "run it as root")
    size_bytes = int(options.size[:-1]) * UNITS[options.size[-1]]
    found = measure(options.minimum, options.seconds, size_bytes)
    tables = {title: found[title] for title in ("without", "with", "stopped")}
    if options.json:
        print(json.dumps(found))
    else:
        print(f"{'IOPS':<8}" + "".join(f"{title:>10}" for title in tables))
        for vm in VMS:
            figures = "".join(f"{table[vm]:>10,.0f}" for table in tables.values() if isinstance(table, dict))
            print(f"{vm:<8}{figures}" + (f"   minimum {options.minimum:,.0f}" if vm == "web" else ""))
        print(f"web is {found['verdict']}: {found['reason']}")
    without, kept = (tables[title]["web"] for title in ("without", "with"))  # type: ignore[index]
    return 0 if without < options.minimum <= kept / KEPT else 1


if __name__ == "__main__":
    sys.exit(main())
