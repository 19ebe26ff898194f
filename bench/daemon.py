"""Overhead of the daemon with many VMs: CPU time per epoch and memory. Needs root, cgroups and a loop device.

    .venv/bin/python bench/daemon.py [--vms 500] [--epochs 30]

Real cgroups, each of which has done I/O on a loop device; every VM has a weight, and maximums of IOPS and
bandwidth (five knobs each). The daemon is a process of its own with its API
and history, as a service would be.
Exits with 1 where an epoch costs 100 ms of CPU or more, or the daemon 150 MB.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import checkout  # noqa: F401 - finds the packages of this checkout
from cgroup_groups import loop_device
from daemon_host import DaemonProcess, cgroups, running

MAX_CPU_MS, MAX_RSS_MB = 100.0, 150.0
_HEAD = """
[daemon]
epoch = "1s"
[libvirt]
uri = "none"
[[device]]
name = "disk"
path = "{path}"
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--vms", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=30)
    wanted = parser.parse_args()
    names = [f"vm{number:03}" for number in range(wanted.vms)]
    with (
        tempfile.TemporaryDirectory(prefix="slo-") as folder,
        loop_device(16 << 20, "bfq", low_latency=0) as (path, _),
        cgroups(*names) as groups,
    ):
        root = Path(folder)
        vms = [
            f'[vm.{name}]\nweight = {1 + number % 10}\nmax_iops = {1000 + number}\nmax_bandwidth = "50MiB"\n'
            f'cgroup = "{groups.path(name)}"'
            for number, name in enumerate(names)
        ]
        (root / "slo-ctl.toml").write_text("\n".join([_HEAD.format(path=path), *vms]))
        for name in names:
            _read_something(groups.folder(name), path)
        with running(root) as daemon:
            return _measure(daemon, root, wanted.epochs)


def _read_something(folder: Path, path: str) -> None:
    enter = f"echo $$ > '{folder}/cgroup.procs' && exec dd if={path} of=/dev/null bs=4k count=4 iflag=direct"
    subprocess.run(["/bin/sh", "-c", enter], check=True, stderr=subprocess.DEVNULL)


def _measure(daemon: DaemonProcess, root: Path, epochs: int) -> int:
    pid = daemon.process.pid
    first = daemon.status()
    time.sleep(3)
    began_s, cpu_s = time.monotonic(), _cpu_s(pid)
    costs: dict[float, float] = {}
    while len(costs) < epochs:
        status = daemon.status()
        costs[status.at] = status.epoch_cpu_ms
        time.sleep(0.5)
    took_s, all_cpu_s = time.monotonic() - began_s, _cpu_s(pid) - cpu_s
    rss_mb = _rss_mb(pid)
    worst, median = max(costs.values()), statistics.median(costs.values())
    unapplied = sum(len(row.unapplied) for row in status.vms)
    print(
        f"{len(status.vms)} VMs on {len(status.devices)} device, {len(costs)} epochs of {status.epoch_s:g} s"
    )
    print(f"first epoch, with everything to be set: {first.epoch_cpu_ms:.0f} ms of CPU")
    print(f"epochs after it: {median:.1f} ms of CPU (median), {worst:.1f} ms at most")
    print(f"whole process, API asked twice an epoch: {100 * all_cpu_s / took_s:.1f} % of one CPU")
    print(f"resident memory: {rss_mb:.0f} MB; history: {(root / 'history.db').stat().st_size / 1e6:.1f} MB")
    print(f"settings that did not take: {unapplied}")
    return int(median >= MAX_CPU_MS or rss_mb >= MAX_RSS_MB)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mb(pid: int) -> float:
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    sys.exit(main())
