"""Latencies of block I/O by cgroup and device, measured in the kernel by a bpftrace program."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

from slo_ctl.base.errors import UserError
from slo_ctl.base.kernel_files import is_readable
from slo_ctl.host.calls import WatchThread, run_program
from slo_ctl.host.cgroup import CgroupTree
from slo_ctl.host.disk_latency import BOUNDARIES_NS
from slo_ctl.model.host import DeviceNumber, DiskLatency, LatencyCounts, Vm

PROGRAM = "bpftrace"
LEAST_VERSION = (0, 19)
"""The first version that can attach to raw tracepoints."""
INSTALL = "apt install bpftrace  # or: dnf install bpftrace"
TEXT = Path(__file__).with_name("bio_latency.bt")
MAX_KEYS = 32768
"""Keys of each map: about 40 for each VM, device and direction. A map takes 12 MB, and 0.5 MB per CPU."""

_VERSION_S = 60.0
_SILENT_S = 60.0
"""bpftrace prints once a second; a silence of this length means that it hangs."""
_POLL_S = 0.2
_END_S = 5.0
_RETRY_S = 2.0
_LONGEST_RETRY_S = 300.0
_MAX_LINE_BYTES = 16 << 20
_MAX_OUTPUT_LINES = 20
_MAX_REASON = 300
_MINOR_BITS = 20
_US_PER_S = 1e6
_BOUNDS_US = tuple(boundary // 1000 for boundary in BOUNDARIES_NS)
_BOUNDS_S = tuple(boundary / 1e9 for boundary in BOUNDARIES_NS)

Key = tuple[int, DeviceNumber]
"""A cgroup, by the inode of its directory, and a device."""
GroupLatencies = Mapping[Key, DiskLatency]


def find_program() -> tuple[str, str]:
    """Path of a bpftrace that is new enough, and its version. Raises UserError."""
    program = shutil.which(PROGRAM)
    if program is None:
        raise UserError(f"{PROGRAM} is not installed", INSTALL)
    result = run_program([program, "--version"], _VERSION_S, INSTALL)
    if result.returncode:
        raise UserError(
            f"{program} --version failed with status {result.returncode}: {result.stderr.strip()}", INSTALL
        )
    version = re.search(r"v(\d{1,6})\.(\d{1,6})[.\d]*", result.stdout)
    if version is None or (int(version[1]), int(version[2])) < LEAST_VERSION:
        raise UserError(
            f"{program} is too old ({version[0] if version else 'unknown version'})",
            f"install {PROGRAM} {'.'.join(map(str, LEAST_VERSION))} or later (Debian 13, Ubuntu 24.04)",
        )
    return program, version[0]


# Parsing of bpftrace's output: one JSON object per line.


class Totals:
    """Latencies since the start of bpftrace, by cgroup and device."""

    def __init__(self) -> None:
        self.latest: GroupLatencies = {}
        """Latencies at the end of the last interval; a new object after each interval."""
        self.full = False
        """Whether some latencies are missing, because the last interval had more keys than a map holds."""
        self._counts: dict[tuple[Key, int], list[int]] = {}
        """Histograms by key and direction (0: reads, 1: writes)."""
        self._sum_us: dict[tuple[Key, int], int] = {}

    def add(self, line: str) -> str:
        """Add a line of output; invalid entries are skipped. Returns a line that is not JSON, else ""."""
        try:
            message = json.loads(line)
            kind, data = message["type"], message["data"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return line.strip()
        if kind == "printf" and data == "end\n":
            self.latest = {key: self._latency(key) for key, _ in self._counts}
        elif kind == "map" and isinstance(data, dict):
            for name, entries in data.items():
                if name.startswith("@requests"):
                    self._add_requests(entries)
                elif name.startswith("@total_us"):
                    self._add_total_us(entries)
        return ""

    def _add_requests(self, data: object) -> None:
        if isinstance(data, dict):
            self.full = len(data) >= MAX_KEYS
        for key, direction, rest, value in _entries(data, 4):
            counts = self._counts.setdefault((key, direction), [0] * (len(_BOUNDS_US) + 1))
            counts[bisect_right(_BOUNDS_US, rest[0])] += value

    def _add_total_us(self, data: object) -> None:
        for key, direction, _, value in _entries(data, 3):
            self._sum_us[key, direction] = self._sum_us.get((key, direction), 0) + value

    def forget(self, cgroups: Collection[int]) -> None:
        """Drop the latencies of removed cgroups."""
        self._counts = {key: counts for key, counts in self._counts.items() if key[0][0] not in cgroups}
        self._sum_us = {key: sum_us for key, sum_us in self._sum_us.items() if key in self._counts}

    def _latency(self, key: Key) -> DiskLatency:
        reads, writes = (
            LatencyCounts(
                _BOUNDS_S,
                tuple(self._counts.get((key, direction), [0] * (len(_BOUNDS_US) + 1))),
                self._sum_us.get((key, direction), 0) / _US_PER_S,
            )
            for direction in (0, 1)
        )
        return DiskLatency(reads, writes)


def _entries(data: object, length: int) -> Iterator[tuple[Key, int, list[int], int]]:
    """Valid entries of a map: cgroup and device, direction, the rest of the key, and the value."""
    for text, value in data.items() if isinstance(data, dict) else ():
        try:
            device, cgroup, direction, *rest = map(int, text.split(","))
        except ValueError:
            continue
        if len(rest) != length - 3 or direction not in (0, 1) or min(device, cgroup, *rest, 0) < 0:
            continue
        if type(value) is int and value >= 0:
            number = DeviceNumber(device >> _MINOR_BITS, device & ((1 << _MINOR_BITS) - 1))
            yield (cgroup, number), direction, rest, value


# The child process.


class BioLatencies(WatchThread):
    """A thread that runs bpftrace while there are devices to trace, and restarts it when it exits.

    The child does not outlive the daemon: it is killed by SIGPIPE at its next write, within a second.
    """

    def __init__(self) -> None:
        super().__init__("slo-ctl bpftrace")
        self.problem = ""
        """Why latencies are missing; empty if none are missing or no device is traced."""
        self.running = False
        """Whether latencies are being measured."""
        self._devices: frozenset[DeviceNumber] = frozenset()
        self._forgotten: frozenset[int] = frozenset()
        self._latest: GroupLatencies = {}

    def latest(self, devices: Collection[DeviceNumber]) -> GroupLatencies:
        """Latencies on these devices since the child was started; empty at first. Never blocks."""
        with self._changed:
            if self._devices != frozenset(devices):
                self._devices = frozenset(devices)
                self._changed.notify()
            if self._devices:
                self.start()
            return self._latest

    def forget(self, cgroups: Collection[int]) -> None:
        """Drop the latencies of removed cgroups after the next interval."""
        self._forgotten = frozenset(cgroups)

    def _run(self) -> None:
        pause_s = _RETRY_S
        while not self._stopping:
            devices = self._devices
            if not devices:
                self.problem = ""
                self._pause(None, lambda: self._devices)
                continue
            reason = self._follow(devices)
            measured, self.running, self._latest = self.running, False, {}
            if reason:
                self.problem = f"latencies of cgroups are not measured: {reason}"
                pause_s = _RETRY_S if measured else min(2 * pause_s, _LONGEST_RETRY_S)
                self._pause(pause_s, lambda: self._devices != devices)  # noqa: B023 - called before it returns

    def _follow(self, devices: frozenset[DeviceNumber]) -> str:
        """Run bpftrace until the devices change. Returns why it exited; "" if it was stopped."""
        try:
            program, _ = find_program()
        except UserError as error:
            return f"{error.message}: {error.hint}"
        begin = "".join(
            f"@device[{(device.major << _MINOR_BITS) | device.minor}] = 1; " for device in devices
        )
        words = (program, "-B", "line", "-f", "json", "-e", f"{TEXT.read_text()}\nBEGIN {{ {begin}}}")
        try:
            child = subprocess.Popen(  # noqa: S603 - no shell, fixed arguments
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={"PATH": os.environ.get("PATH", os.defpath), "BPFTRACE_MAX_MAP_KEYS": str(MAX_KEYS)},
                cwd="/",
            )
        except OSError as error:
            return f"{program}: {error.strerror}"
        with child:
            try:
                return self._read(child, devices)
            finally:
                # The kernel removes its programs and maps when it exits.
                child.kill()

    def _read(self, child: subprocess.Popen[bytes], devices: frozenset[DeviceNumber]) -> str:
        totals, unfinished, last_output_s = Totals(), b"", time.monotonic()
        published, messages = totals.latest, deque[str](maxlen=_MAX_OUTPUT_LINES)
        pipe: Any = child.stdout
        while not self._stopping and self._devices == devices:
            if not is_readable(pipe.fileno(), _POLL_S):
                if time.monotonic() - last_output_s > _SILENT_S:
                    return f"{PROGRAM} has printed nothing for {_SILENT_S:g} s"
                continue
            read, last_output_s = os.read(pipe.fileno(), 1 << 20), time.monotonic()
            *lines, unfinished = (unfinished + read).split(b"\n")
            for line in lines:
                if message := totals.add(line.decode(errors="replace")):
                    messages.append(message)
                if totals.latest is not published:
                    published = totals.latest
                    self._publish(totals)
            if not read:
                return f"{PROGRAM} exited: {_exit_reason(messages, child)}"
            if len(unfinished) > _MAX_LINE_BYTES:
                return f"{PROGRAM} printed a line of more than {_MAX_LINE_BYTES >> 20} MiB"
        return ""

    def _publish(self, totals: Totals) -> None:
        """Make the latencies of a complete interval available."""
        self._latest, self.running = totals.latest, True
        self.problem = f"latencies of some cgroups are missing: over {MAX_KEYS:,} keys" if totals.full else ""
        totals.forget(self._forgotten)


def _exit_reason(messages: Iterable[str], child: subprocess.Popen[bytes]) -> str:
    """The first line of bpftrace's last error; without one, its exit status."""
    errors = [line for line in messages if "ERROR" in line or "FATAL" in line]
    if errors:
        return errors[-1][:_MAX_REASON]
    with suppress(subprocess.TimeoutExpired):
        status = child.wait(_END_S)
        return f"status {status}" if status >= 0 else f"signal {-status}"
    return "it closed its output"


# The VMs of the cgroups.

MAX_OTHERS = 4096
"""Groups of no VM that are remembered, so that directories are not read again for each of their requests. New
ones come all the time: each session and each job has one."""


class CgroupMembers:
    """The VM of an inode: that of the VM's cgroup or of a group inside it."""

    def __init__(self) -> None:
        self._folders: Mapping[str, str] = {}
        self._vms: dict[int, str | None] = {}
        """VM by inode; None: the group belongs to no VM."""

    def find(self, folders: Mapping[str, str], inodes: Set[int]) -> Mapping[int, str | None]:
        """VM of each of `inodes`; `folders` has the VM by the directory of its cgroup.

        Reads the directories only if `folders` or `inodes` have new entries.
        """
        if folders != self._folders:
            self._folders, self._vms = dict(folders), {}
        if not self._vms.keys() >= inodes:
            without_vm = {inode for inode, vm in self._vms.items() if vm is None}
            if len(without_vm) > MAX_OTHERS:
                without_vm = set()
            self._vms = dict.fromkeys(without_vm | inodes)
            # If the group of one VM is inside that of another, the inner one has the longer path and wins.
            for folder in sorted(folders, key=len):
                self._vms |= dict.fromkeys(_inodes_below(folder), folders[folder])
        return self._vms


def _inodes_below(folder: str) -> Iterator[int]:
    for path, _, _ in os.walk(folder):
        try:
            yield Path(path).stat().st_ino
        except OSError:
            continue  # it was removed


class CgroupLatencies:
    """Latencies of VMs by their cgroups, for VMs without QEMU's histograms."""

    def __init__(self) -> None:
        self._latencies = BioLatencies()
        self._members = CgroupMembers()

    @property
    def expected(self) -> bool:
        """Whether the p99 of a VM with requests is known, or will be soon."""
        return self._latencies.running or not self._latencies.problem

    @property
    def problem(self) -> str:
        """Why latencies are not measured; may be empty."""
        return self._latencies.problem

    def read(
        self, tree: CgroupTree | None, vms: Iterable[Vm], devices: Collection[DeviceNumber]
    ) -> dict[str, dict[DeviceNumber, list[DiskLatency]]]:
        """The latest latencies, by VM and device; the same objects as before if there are no newer ones."""
        latest = self._latencies.latest(devices)
        if not latest or tree is None:
            return {}
        folders = {str(tree.folder(vm.cgroup)): vm.name for vm in vms if vm.cgroup}
        owners = self._members.find(folders, {cgroup for cgroup, _ in latest})
        self._latencies.forget({cgroup for cgroup, _ in latest if owners[cgroup] is None})
        by_vm: dict[str, dict[DeviceNumber, list[DiskLatency]]] = {}
        for (cgroup, device), latency in latest.items():
            if (vm := owners[cgroup]) is not None:
                by_vm.setdefault(vm, {}).setdefault(device, []).append(latency)
        return by_vm

    def close(self) -> None:
        self._latencies.close()
