"""Recording the requests to block devices: the kernel's event block_bio_queue in its own ftrace instance."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from slo_ctl.base.errors import UserError
from slo_ctl.replay.recording import RecordedVm, drive_of_size, requests_by_vm

if TYPE_CHECKING:
    from traces.batch import Batch

TRACEFS = Path("/sys/kernel/tracing")
_INSTANCE = "slo-ctl-"
"""Beginning of the names of instances; the process follows."""
_BUFFER_KIB = 8192
"""Size of the buffer of each CPU, for about 100,000 requests."""
_READ_BYTES = 1 << 20
_SECTOR_BYTES = 512
_EVENT = re.compile(
    rb"\s(?P<s>\d+)\.(?P<us>\d{6}): block_bio_queue: (?P<major>\d+),(?P<minor>\d+) "
    rb"(?P<rwbs>[A-Z]+) (?P<sector>\d+) \+ (?P<sectors>\d+) \["
)
_OVERRUN = re.compile(r"^(?:overrun|dropped events): (\d+)$", re.MULTILINE)


class BlockSource:
    """Whole block devices, one for each VM."""

    def __init__(
        self, devices: Mapping[str, Path], numbers: Sequence[tuple[int, int]], instance: Path
    ) -> None:
        """Start recording; `devices` are by name of the VM, and `numbers` theirs. Raises OSError."""
        self.name = ", ".join(f"{path} of {vm}" for vm, path in devices.items())
        self._instance = instance
        self._numbers = numbers
        self._disks = [Path(f"/sys/dev/block/{major}:{minor}") for major, minor in self._numbers]
        self.vms = [
            RecordedVm(vm, _SECTOR_BYTES * int((disk / "size").read_text()))
            for vm, disk in zip(devices, self._disks, strict=True)
        ]
        self.drive = drive_of_size(self.vms)
        event = instance / "events/block/block_bio_queue"
        (instance / "trace_clock").write_text("mono")
        (instance / "buffer_size_kb").write_text(str(_BUFFER_KIB))
        # The kernel's internal form of device numbers.
        wanted = " || ".join(f"dev == {major << 20 | minor}" for major, minor in self._numbers)
        (event / "filter").write_text(wanted)
        self._pipe = os.open(instance / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._incomplete_line = b""
        self._busy_before = [_busy_ns(disk) for disk in self._disks]
        self._started_ns = time.monotonic_ns()
        self._switch = event / "enable"
        self._switch.write_text("1")

    def fetch(self) -> tuple[int, Sequence[Batch]]:
        elapsed_ns = time.monotonic_ns() - self._started_ns
        lines = self._incomplete_line + self._read()
        end = lines.rfind(b"\n") + 1
        self._incomplete_line = lines[end:]
        for vm, disk, before in zip(self.vms, self._disks, self._busy_before, strict=True):
            try:
                now = _busy_ns(disk)
            except OSError:
                # Of a disk that was removed, what was recorded until then is kept, and others go on.
                vm.removed = True
                continue
            vm.busy_ns, vm.outstanding_ns = now[0] - before[0], now[1] - before[1]
        # The kernel does not report to which device they belong.
        self.vms[0].dropped = sum(
            int(number)
            for stats in self._instance.glob("per_cpu/cpu*/stats")
            for number in _OVERRUN.findall(stats.read_text())
        )
        return elapsed_ns, requests_by_vm(self._columns(lines[:end]), len(self.vms))

    def _read(self) -> bytes:
        pieces = []
        with suppress(BlockingIOError):
            while piece := os.read(self._pipe, _READ_BYTES):
                pieces.append(piece)
        return b"".join(pieces)

    def _columns(self, lines: bytes) -> dict[str, list[int]]:
        from traces.batch import Op
        from traces.formats.blkparse import rwbs_word

        columns: dict[str, list[int]] = {
            key: [] for key in ("time_ns", "namespace", "op", "offset_bytes", "length_bytes")
        }
        places = {number: place for place, number in enumerate(self._numbers)}
        for event in _EVENT.finditer(lines):
            op, sectors = rwbs_word(event["rwbs"].decode()), int(event["sectors"])
            if op == Op.WRITE and not sectors:
                op = Op.FLUSH
            place = places.get((int(event["major"]), int(event["minor"])))
            if place is None or not isinstance(op, Op) or (op != Op.FLUSH and not sectors):
                continue
            time_ns = int(event["s"]) * 1_000_000_000 + int(event["us"]) * 1000 - self._started_ns
            columns["time_ns"].append(max(0, time_ns))
            columns["namespace"].append(place)
            columns["op"].append(op)
            columns["offset_bytes"].append(int(event["sector"]) * _SECTOR_BYTES if op != Op.FLUSH else 0)
            columns["length_bytes"].append(sectors * _SECTOR_BYTES if op != Op.FLUSH else 0)
        return columns

    def stop(self) -> None:
        self._switch.write_text("0")

    def close(self) -> None:
        os.close(self._pipe)


@contextmanager
def block_devices(devices: Mapping[str, Path]) -> Iterator[BlockSource]:
    """Block devices that are being recorded. Raises UserError when that fails."""
    numbers = _disk_numbers(devices)
    instance = TRACEFS / "instances" / f"{_INSTANCE}{os.getpid()}"
    _remove_instances_of_killed()
    try:
        instance.mkdir()
    except OSError as error:
        raise UserError(
            f"{TRACEFS}: the kernel's tracing cannot be used: {error.strerror}",
            "run as root, with tracefs mounted: mount -t tracefs tracefs /sys/kernel/tracing",
        ) from None
    try:
        source = BlockSource(devices, numbers, instance)
        try:
            yield source
        finally:
            source.close()
    except OSError as error:
        raise UserError(
            f"block devices cannot be recorded: {error.filename or instance}: {error.strerror}",
            "the kernel needs the trace event block_bio_queue (CONFIG_BLK_DEV_IO_TRACE)",
        ) from None
    finally:
        instance.rmdir()


def _remove_instances_of_killed() -> None:
    """Remove what killed recordings have left, which the kernel would fill with events for ever."""
    for left in (TRACEFS / "instances").glob(f"{_INSTANCE}*"):
        pid = left.name.removeprefix(_INSTANCE)
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            # One that another program reads stays.
            with suppress(OSError):
                left.rmdir()


def _disk_numbers(devices: Mapping[str, Path]) -> list[tuple[int, int]]:
    """Major and minor number of each device. Raises UserError."""
    numbers: dict[tuple[int, int], str] = {}
    for vm, path in devices.items():
        other = numbers.setdefault(_disk_number(path), vm)
        if other != vm:
            raise UserError(f"--block: {path} is the device of {other} and of {vm}", "one device for each VM")
    return list(numbers)


def _disk_number(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(
            f"--block: {path}: {error.strerror}", "use a block device such as /dev/vg0/web"
        ) from None
    if not stat.S_ISBLK(status.st_mode):
        raise UserError(f"--block: {path} is not a block device", "use one such as /dev/vg0/web")
    number = os.major(status.st_rdev), os.minor(status.st_rdev)
    if Path("/sys/dev/block/{}:{}/partition".format(*number)).exists():
        raise UserError(
            f"--block: {path} is a partition, whose requests the kernel reports as those of the disk",
            "use the whole disk, or a logical volume",
        )
    return number


def _busy_ns(disk: Path) -> tuple[int, int]:
    """Time with outstanding requests, and sum of the times of all requests; see the kernel's iostats."""
    fields = (disk / "stat").read_text().split()
    return int(fields[9]) * 1_000_000, int(fields[10]) * 1_000_000
