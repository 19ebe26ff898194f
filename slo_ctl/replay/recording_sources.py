"""Where requests are recorded: the server of an emulated device, or the kernel's block layer."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slo_ctl.base.errors import UserError
from slo_ctl.base.keyvalue import split_pairs
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.drives.control import ControlClient, ControlError
from slo_ctl.drives.plan import drive_pairs
from slo_ctl.drives.record import DeviceRecord, DiskRecord
from slo_ctl.replay.recording import RecordedVm

if TYPE_CHECKING:
    from traces.batch import Batch

# An emulated device: its server sees every request, whatever the front end.


class ServedDevice:
    """Namespaces of a served device; times are modelled ones where it has a latency."""

    def __init__(self, record: DeviceRecord, client: ControlClient) -> None:
        """Starts to record. Raises ControlError."""
        self._client = client
        self.name = f"device {record.name} (EMULATED)"
        served = {each["name"]: each for each in client.statistics()["namespaces"]}
        self.vms = [
            RecordedVm(name, served[name]["size_bytes"], served[name]["weight"])
            for name in client.command("recording_start")["namespaces"]
        ]
        self.drive = (
            _drive_of_size(self.vms)
            if isinstance(record, DiskRecord)
            else drive_pairs(split_pairs("device", record.spec))
        )

    def fetch(self) -> tuple[int, Sequence[Batch]]:
        """See `Source`."""
        from traces.batch import Batch

        parts: list[list[Batch]] = [[] for _ in self.vms]
        more, elapsed_ns = True, 0
        while more:
            reply = self._client.command("recording_fetch")
            elapsed_ns, more = reply["elapsed_ns"], reply["more"]
            for vm, activity in zip(self.vms, reply["namespaces"], strict=True):
                vm.dropped = activity["dropped"]
                vm.busy_ns, vm.outstanding_ns = activity["busy_ns"], activity["outstanding_ns"]
            for part, batch in zip(parts, _by_vm(reply["requests"], len(self.vms)), strict=True):
                part.append(batch)
        return elapsed_ns, [Batch.concat(part) for part in parts]

    def stop(self) -> None:
        """See `Source`."""
        self._client.command("recording_stop")


@contextmanager
def served_device(record: DeviceRecord, control: Path) -> Iterator[ServedDevice]:
    """A served device while it is recorded. Raises UserError where it cannot be."""
    try:
        with ControlClient(control) as client:
            yield ServedDevice(record, client)
    except ControlError as error:
        hint = (
            f"serve it: slo-ctl device serve {record.name}"
            if error.code == "unreachable"
            else "recording is for root and the owner of the server, one at a time"
        )
        raise UserError(f"device {record.name} cannot be recorded: {error.message}", hint) from None


def _by_vm(columns: Mapping[str, Any], count: int) -> list[Batch]:
    """Requests by the column `namespace`."""
    import numpy as np

    from traces.batch import Batch

    namespace = np.array(columns["namespace"], np.int64)
    whole = Batch(
        time_ns=np.array(columns["time_ns"], np.int64),
        op=np.array(columns["op"], np.uint8),
        offset_bytes=np.array(columns["offset_bytes"], np.uint64),
        length_bytes=np.array(columns["length_bytes"], np.uint64),
        volume=np.zeros(len(namespace), np.int32),
    )
    return [whole.take(namespace == number) for number in range(count)]


def _drive_of_size(vms: Sequence[RecordedVm]) -> dict[str, str]:
    """A drive to replay on, where the recorded one is not an emulated SSD."""
    return {"preset": "tlc", "size": format_bytes_exact(sum(vm.size_bytes for vm in vms))}


# Block devices: the kernel's event block_bio_queue, as seen by an ftrace instance of our own.

TRACEFS = Path("/sys/kernel/tracing")
_BUFFER_KIB = 8192
"""Of each CPU: about 100,000 requests."""
_READ_BYTES = 1 << 20
_SECTOR_BYTES = 512
_EVENT = re.compile(
    rb"\s(?P<s>\d+)\.(?P<us>\d{6}): block_bio_queue: (?P<major>\d+),(?P<minor>\d+) "
    rb"(?P<rwbs>[A-Z]+) (?P<sector>\d+) \+ (?P<sectors>\d+) \["
)
_OVERRUN = re.compile(r"^(?:overrun|dropped events): (\d+)$", re.MULTILINE)


class BlockDevices:
    """Whole block devices, one for each VM."""

    def __init__(self, devices: Mapping[str, Path], instance: Path) -> None:
        """`devices` by name of the VM. Starts to record. Raises OSError and UserError."""
        self.name = ", ".join(f"{path} of {vm}" for vm, path in devices.items())
        self._instance = instance
        self._numbers = [_disk_number(path) for path in devices.values()]
        self._disks = [Path(f"/sys/dev/block/{major}:{minor}") for major, minor in self._numbers]
        self.vms = [
            RecordedVm(vm, _SECTOR_BYTES * int((disk / "size").read_text()))
            for vm, disk in zip(devices, self._disks, strict=True)
        ]
        self.drive = _drive_of_size(self.vms)
        event = instance / "events/block/block_bio_queue"
        (instance / "trace_clock").write_text("mono")
        (instance / "buffer_size_kb").write_text(str(_BUFFER_KIB))
        # As the kernel numbers devices inside.
        wanted = " || ".join(f"dev == {major << 20 | minor}" for major, minor in self._numbers)
        (event / "filter").write_text(wanted)
        self._pipe = os.open(instance / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._cut = b""
        self._busy_before = [_busy_ns(disk) for disk in self._disks]
        self._started_ns = time.monotonic_ns()
        self._switch = event / "enable"
        self._switch.write_text("1")

    def fetch(self) -> tuple[int, Sequence[Batch]]:
        """See `Source`."""
        elapsed_ns = time.monotonic_ns() - self._started_ns
        lines = self._cut + self._read()
        end = lines.rfind(b"\n") + 1
        self._cut = lines[end:]
        for vm, disk, before in zip(self.vms, self._disks, self._busy_before, strict=True):
            now = _busy_ns(disk)
            vm.busy_ns, vm.outstanding_ns = now[0] - before[0], now[1] - before[1]
        # The kernel does not say whose they were.
        self.vms[0].dropped = sum(
            int(number)
            for stats in self._instance.glob("per_cpu/cpu*/stats")
            for number in _OVERRUN.findall(stats.read_text())
        )
        return elapsed_ns, _by_vm(self._columns(lines[:end]), len(self.vms))

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
        """See `Source`."""
        self._switch.write_text("0")

    def close(self) -> None:
        """Close what is open."""
        os.close(self._pipe)


@contextmanager
def block_devices(devices: Mapping[str, Path], tracefs: Path = TRACEFS) -> Iterator[BlockDevices]:
    """Block devices while they are recorded. Raises UserError where they cannot be."""
    instance = tracefs / "instances" / f"slo-ctl-{os.getpid()}"
    try:
        instance.mkdir()
    except OSError as error:
        raise UserError(
            f"{tracefs}: the kernel's tracing cannot be used: {error.strerror}",
            "run as root, with tracefs mounted: mount -t tracefs tracefs /sys/kernel/tracing",
        ) from None
    try:
        source = BlockDevices(devices, instance)
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


def _disk_number(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(
            f"--block: {path}: {error.strerror}", "name a block device such as /dev/vg0/web"
        ) from None
    if not stat.S_ISBLK(status.st_mode):
        raise UserError(f"--block: {path} is not a block device", "name one such as /dev/vg0/web")
    number = os.major(status.st_rdev), os.minor(status.st_rdev)
    if Path("/sys/dev/block/{}:{}/partition".format(*number)).exists():
        raise UserError(
            f"--block: {path} is a partition, whose requests the kernel reports as those of the disk",
            "name the whole disk, or a logical volume",
        )
    return number


def _busy_ns(disk: Path) -> tuple[int, int]:
    """Time with a request outstanding, and the sum over requests of their time; see the kernel's iostats."""
    fields = (disk / "stat").read_text().split()
    return int(fields[9]) * 1_000_000, int(fields[10]) * 1_000_000
