"""Overhead of the daemon with many VMs: CPU time per epoch and memory. Needs root, cgroups and a loop device.

    .venv/bin/python bench/daemon.py [--vms 500] [--epochs 30] [--on disk|busy-disk|ssd]

On a block device: real cgroups, each of which has done I/O on a loop device and is idle, or does I/O in every
epoch (`busy-disk`); every VM has a weight, and maximums of IOPS and bandwidth (five knobs each). On one
EMULATED SSD: every VM has a namespace and writes 4 KiB at random over NBD with one request outstanding, so
that weights change all the time. The daemon is a separate process with API and history, like the
service.
Exit code 1 if an epoch takes 100 ms of CPU or more in the mean, the daemon uses 150 MB, or it does not
control all VMs: one is not on the device, or a setting could not be applied.
"""

from __future__ import annotations

import argparse
import mmap
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from random import Random

import checkout
from cgroup_groups import loop_device
from daemon_host import DaemonProcess, cgroups, running
from nbd_client import NbdClient
from serving import make_device, served

from slo_ctl.base.termination import terminable

MAX_CPU_MS, MAX_RSS_MB = 100.0, 150.0
_HEAD = """
[daemon]
epoch = "1s"
[libvirt]
uri = "none"
[[device]]
name = "{name}"
"""
_SSD = "name=ssd0,preset=fast15,size={size_mib}MiB,op=30%,channels=4,dies=4,block=128KiB,precondition=yes"
_MIB_PER_VM = 4
"""32 blocks of 128 KiB, and ten of OPS."""
_WRITE_BYTES = 4096
_COUNTERS = ("io.stat", "blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_serviced_recursive")
"""Counter files of a cgroup that the daemon reads on this kernel: those of v2, or of v1."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--vms", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--on", choices=sorted(_PLACES), action="append")
    wanted = parser.parse_args()
    names = [f"vm{number:03}" for number in range(wanted.vms)]
    failed = 0
    for place in wanted.on or _PLACES:
        with tempfile.TemporaryDirectory(prefix="slo-") as folder:
            print(f"on {place}:")
            failed |= _PLACES[place](Path(folder), names, wanted.epochs)
    return failed


def _on_block_device(root: Path, names: list[str], epochs: int, *, busy: bool = False) -> int:
    with loop_device(16 << 20, "bfq", low_latency=0) as (path, _), cgroups(*names) as groups:
        vms = [
            f'[vm.{name}]\nweight = {1 + number % 10}\nmax_iops = {1000 + number}\nmax_bandwidth = "50MiB"\n'
            f'cgroup = "{groups.path(name)}"'
            for number, name in enumerate(names)
        ]
        _configure(root, f'{_HEAD.format(name="disk")}path = "{path}"', vms)
        for name in names:
            _read_something(groups.folder(name), path)
        folders = [groups.folder(name) for name in names]
        reading = _reading(folders, path) if busy else nullcontext()
        with reading, running(root, environment=checkout.OF_UNIT) as daemon:
            failed = _measure(daemon, root, epochs, len(names))
        _print_least(folders)
        return failed


@contextmanager
def _reading(folders: list[Path], path: str) -> Iterator[None]:
    """A process that reads a block in each of these groups in turn, twice a second."""
    reader = multiprocessing.get_context("spawn").Process(target=_read_in_turn, args=(folders, path))
    reader.start()
    try:
        yield
    finally:
        reader.terminate()
        reader.join()


def _read_in_turn(folders: list[Path], path: str) -> None:
    own_id, block = str(os.getpid()), mmap.mmap(-1, 4096)
    device = os.open(path, os.O_RDONLY | os.O_DIRECT)
    while True:
        began_s = time.monotonic()
        for folder in folders:
            (folder / "cgroup.procs").write_text(own_id)
            os.preadv(device, [block], 0)
        time.sleep(max(0.0, 0.5 - (time.monotonic() - began_s)))


def _print_least(folders: list[Path]) -> None:
    """Print the kernel's time for reading the counters of an epoch, if their files are already open."""
    counters = [folder / name for folder in folders for name in _COUNTERS if (folder / name).exists()]
    files = [os.open(path, os.O_RDONLY) for path in counters]
    costs_ms = []
    for _ in range(5):
        began_s = time.process_time()
        for file in files:
            os.pread(file, 8192, 0)
        costs_ms.append(1e3 * (time.process_time() - began_s))
    for file in files:
        os.close(file)
    print(f"of that, reading {len(files)} files of counters: {min(costs_ms):.1f} ms")


def _on_emulated_ssd(root: Path, names: list[str], epochs: int) -> int:
    vms = [
        f'[vm.{name}]\nweight = {1 + number % 10}\nnamespaces = ["ssd0/{name}"]'
        for number, name in enumerate(names)
    ]
    _configure(root, _HEAD.format(name="ssd0"), vms)
    spec = _SSD.format(size_mib=_MIB_PER_VM * len(names))
    make_device(root, spec, *(f"name={name}" for name in names))
    with served(root, "ssd0", "--latency", "real") as server:
        sockets = [server.run.export(name) for name in names]
        clients = multiprocessing.get_context("spawn").Process(target=_write_all, args=(sockets, names))
        clients.start()
        try:
            with running(root, environment=checkout.OF_UNIT) as daemon:
                return _measure(daemon, root, epochs, len(names))
        finally:
            clients.terminate()
            clients.join()


_PLACES: dict[str, Callable[[Path, list[str], int], int]] = {
    "disk": _on_block_device,
    "busy-disk": partial(_on_block_device, busy=True),
    "ssd": _on_emulated_ssd,
}


def _configure(root: Path, head: str, vms: list[str]) -> None:
    (root / "slo-ctl.toml").write_text("\n".join([head, *vms]))


def _write_all(sockets: list[Path], names: list[str]) -> None:
    """Run a writing thread for each VM, until the process is ended."""
    threading.stack_size(256 << 10)
    for number, (path, name) in enumerate(zip(sockets, names, strict=True)):
        threading.Thread(target=_write, args=(path, name, number), daemon=True).start()
    threading.Event().wait()


def _write(path: Path, name: str, seed: int) -> None:
    random, data = Random(seed), bytes(_WRITE_BYTES)  # noqa: S311 - to be repeated
    with NbdClient(path, name) as client:
        while True:
            client.write(_WRITE_BYTES * random.randrange(client.size // _WRITE_BYTES), data)


def _read_something(folder: Path, path: str) -> None:
    enter = f"echo $$ > '{folder}/cgroup.procs' && exec dd if={path} of=/dev/null bs=4k count=4 iflag=direct"
    subprocess.run(["/bin/sh", "-c", enter], check=True, stderr=subprocess.DEVNULL)


def _measure(daemon: DaemonProcess, root: Path, epochs: int, vms: int) -> int:
    pid = daemon.process.pid
    first = daemon.status()
    time.sleep(3)
    began_s, cpu_s = time.monotonic(), checkout.cpu_s(pid)
    costs: dict[float, float] = {}
    while len(costs) < epochs:
        status = daemon.status()
        costs[status.at] = status.epoch_cpu_ms
        time.sleep(0.5)
    took_s, all_cpu_s = time.monotonic() - began_s, checkout.cpu_s(pid) - cpu_s
    rss_mb = _rss_mb(pid)
    worst, mean = max(costs.values()), statistics.fmean(costs.values())
    unapplied = sum(len(row.unapplied) for row in status.vms)
    on_device = {row.vm for row in status.vms if row.device}
    print(
        f"{len(on_device)} VMs on {len(status.devices)} device, {len(costs)} epochs of {status.epoch_s:g} s"
    )
    print(f"first epoch, with everything to be set: {first.epoch_cpu_ms:.0f} ms of CPU")
    print(f"epochs after it: {mean:.1f} ms of CPU (mean), {worst:.1f} ms at most")
    print(f"whole process, API asked twice an epoch: {100 * all_cpu_s / took_s:.1f} % of one CPU")
    print(f"resident memory: {rss_mb:.0f} MB; history: {(root / 'history.db').stat().st_size / 1e6:.1f} MB")
    print(f"settings that could not be applied: {unapplied}")
    controls_all = len(on_device) == vms and not unapplied
    return int(mean >= MAX_CPU_MS or rss_mb >= MAX_RSS_MB or not controls_all)


def _rss_mb(pid: int) -> float:
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
