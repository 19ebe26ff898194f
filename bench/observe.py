"""CPU time of one observation of a host with many VMs, on fake and on real cgroups. Checks no bar."""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import checkout  # noqa: F401 - finds the packages of this checkout

from slo_ctl.base.termination import terminable
from slo_ctl.host.cgroup import DEFAULT_ROOT, find_tree
from slo_ctl.host.libvirt import DomainReading
from slo_ctl.host.libvirt_events import LatestDomains, LibvirtWatch
from slo_ctl.model.host import DeviceNumber, Disk, FoundBy, Vm, VmState
from slo_ctl.observe.host import HostObserver
from slo_ctl.observe.streams import HostRoots

OTHER_GROUPS = 200
REMOVAL_TRIES, REMOVAL_PAUSE_S = 50, 0.05
DEVICES = ("8:0", "8:16", "259:0")
STAT = "{device} rbytes={n}4096 wbytes={n}8192 rios={n}1 wios={n}2 dbytes=0 dios=0 cost.usage={n}99\n"
NBD = "nbd+unix:///vm{n}?socket=/run/slo-ctl/devices/ssd0/exports/vm{n}.sock"


class RecordedWatch(LibvirtWatch):
    """A recorded state of libvirt."""

    def __init__(self, count: int) -> None:
        super().__init__("qemu:///system")
        self._domains = LatestDomains(
            self.uri, {uuid_of(n): DomainReading(vm_of(n), "") for n in range(count)}
        )
        self._problem = ""

    def start(self) -> None:
        self._answered.set()


def uuid_of(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012}"


def vm_of(number: int) -> Vm:
    disks = (
        Disk("vda", "block", "/dev/sda", DeviceNumber(8, 0)),
        Disk("vdb", "network", NBD.format(n=number)),
    )
    return Vm(f"vm{number}", FoundBy.LIBVIRT, VmState.RUNNING, uuid_of(number), number + 1, None, disks)


def scope(number: int) -> str:
    return rf"machine.slice/machine-qemu\x2d{number + 1}\x2dvm{number}.scope"


def make_v2(folder: Path, count: int) -> HostRoots:
    """Make a v2 tree with VMs as systemd and libvirt create them, and with other services."""
    roots = HostRoots(proc=folder / "proc", sys=folder / "sys")
    root = folder / "cgroup"
    root.mkdir()
    (root / "cgroup.controllers").write_text("cpu io memory\n")
    for number in range(count):
        group = root / scope(number)
        for inner in ("", "libvirt", "libvirt/emulator", "libvirt/vcpu0"):
            (group / inner).mkdir(parents=True)
            (group / inner / "cgroup.procs").write_text(f"{number + 10}\n" if inner.endswith("tor") else "")
        process = roots.proc / str(number + 10)
        process.mkdir(parents=True)
        words = ("qemu-system-x86_64", "-name", f"guest=vm{number}", "-uuid", uuid_of(number))
        (process / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))
    for number in range(OTHER_GROUPS):
        group = root / "system.slice" / f"s{number}.service"
        group.mkdir(parents=True)
        for name in ("cgroup.procs", "cpu.stat", "memory.stat", "io.stat"):
            (group / name).touch()
    count_io(folder, count, 1)
    return roots


def count_io(folder: Path, count: int, n: int) -> None:
    """Let every VM do more I/O."""
    for number in range(count):
        text = "".join(STAT.format(device=device, n=n) for device in DEVICES)
        (folder / "cgroup" / scope(number) / "io.stat").write_text(text)


def measure(what: str, observer: HostObserver, rounds: int, between: Callable[[int], None]) -> None:
    began = time.thread_time()
    found = observer.observe()
    first_ms = (time.thread_time() - began) * 1e3
    costs_ms = []
    for n in range(rounds):
        between(n + 2)
        began = time.thread_time()
        found = observer.observe()
        costs_ms.append((time.thread_time() - began) * 1e3)
    tagged = sum(stream.tenant is not None for stream in found.streams)
    print(f"{what}: {len(found.vms)} VMs, {len(found.streams)} streams, {tagged} tagged")
    print(f"  CPU: first look {first_ms:.1f} ms, then median {statistics.median(costs_ms):.1f} ms", end="")
    print(f", worst {max(costs_ms):.1f} ms")


def made_up(count: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        roots = make_v2(folder, count)
        run = Path("/run/slo-ctl/devices")
        for what, watch in (("cgroup v2 and libvirt", RecordedWatch(count)), ("cgroup v2 only", None)):
            observer = HostObserver(
                cgroup_root=folder / "cgroup", libvirt_uri=None, run=run, roots=roots, watch=watch
            )
            measure(f"{what}, counters changed", observer, rounds, lambda n: count_io(folder, count, n))
            measure(f"{what}, nothing changed", observer, rounds, lambda _: None)
            observer.close()


def real(count: int, rounds: int) -> None:
    tree = find_tree(DEFAULT_ROOT)
    if tree is None or os.geteuid() != 0:
        print("real cgroups: none, or not root")
        return
    parent = tree.root / f"slo-ctl-bench-{os.getpid()}"
    with ExitStack() as stack:
        for folder in (parent, *(parent / f"qemu-{n + 1}-vm{n}.libvirt-qemu" for n in range(count))):
            folder.mkdir()
            stack.callback(remove, folder)
        observer = HostObserver(libvirt_uri=None, watch=RecordedWatch(count))
        stack.callback(observer.close)
        measure(f"real cgroup v{tree.version} and libvirt", observer, rounds, lambda _: None)


def remove(folder: Path) -> None:
    for _ in range(REMOVAL_TRIES):
        with suppress(OSError):  # a group is busy for a moment after one inside it was removed
            folder.rmdir()
            return
        time.sleep(REMOVAL_PAUSE_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vms", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    made_up(options.vms, options.rounds)
    real(options.vms, options.rounds)


if __name__ == "__main__":
    with terminable():
        main()
