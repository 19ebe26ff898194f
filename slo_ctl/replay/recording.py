"""Recording the requests of running VMs: a trace for each, and a scenario that replays them."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from slo_ctl.base.errors import UnreachableError, UserError
from slo_ctl.base.files import replace_file, writing
from slo_ctl.base.keyvalue import Fields, split_pairs
from slo_ctl.base.quantity import format_bytes_exact, format_number
from slo_ctl.base.termination import StopRequest
from slo_ctl.drives.build import device_spec, plan_drive
from slo_ctl.drives.control import ControlClient, ControlError
from slo_ctl.drives.plan import drive_pairs
from slo_ctl.drives.record import DeviceRecord, DiskRecord

if TYPE_CHECKING:
    from traces.batch import Batch
    from traces.writing import TraceWriter


SCENARIO_FILE = "scenario.toml"
_OWNER_ONLY = 0o600
_FETCH_EVERY_S = 0.1
_NS_PER_S = 1_000_000_000
_CLOSED_FROM_BUSY = 0.9
"""Share of time with outstanding requests from which a VM is replayed as a closed loop."""
_LATE_FROM_S = 1.0
"""A VM whose first request is later than this is started at that time in the replay."""
_WRITTEN_DRIVES = 3.0
_MOST_PASSES = 50


@dataclass(slots=True)
class RecordedVm:
    """Activity of one VM during the recording."""

    name: str
    size_bytes: int
    weight: float = 1.0
    requests: int = 0
    dropped: int = 0
    """Requests that were not recorded because the buffer was full."""
    read_bytes: int = 0
    write_bytes: int = 0
    first_ns: int = 0
    busy_ns: int = 0
    """Time with a request outstanding."""
    outstanding_ns: int = 0
    """Sum of the times for which its requests were outstanding."""
    trace: Path | None = None
    """Trace file; None without requests."""
    removed: bool = False
    """Whether its device was removed during the recording."""


@dataclass(slots=True)
class Recording:
    """A finished recording."""

    source: str
    """Recorded devices, such as `device ssd0 (EMULATED)`."""
    drive: dict[str, str]
    """Keys of `slo-ctl replay --device` for a similar drive."""
    elapsed_s: float
    vms: list[RecordedVm] = field(default_factory=list)
    scenario: Path | None = None
    """Scenario file; None without requests."""
    problem: str = ""
    """Why it ended early; empty if it did not."""

    def busy(self, vm: RecordedVm) -> float:
        """Share of the time in which the VM had a request outstanding."""
        return vm.busy_ns / _NS_PER_S / self.elapsed_s if self.elapsed_s else 0.0

    def mean_outstanding(self, vm: RecordedVm) -> float:
        """Mean number of outstanding requests of the VM."""
        return vm.outstanding_ns / _NS_PER_S / self.elapsed_s if self.elapsed_s else 0.0

    def is_closed(self, vm: RecordedVm) -> bool:
        """Whether the VM is replayed as a closed loop, because the device limited it."""
        return self.busy(vm) >= _CLOSED_FROM_BUSY

    def replayed(self, vm: RecordedVm) -> str:
        """How the scenario replays the VM."""
        if vm.trace is None:
            return "no requests"
        return f"qd={self.queue_depth(vm)}" if self.is_closed(vm) else "at the recorded times"

    def queue_depth(self, vm: RecordedVm) -> int:
        """Queue depth of the VM in a closed loop."""
        return max(1, round(self.mean_outstanding(vm)))

    def plain(self) -> dict[str, Any]:
        """The recording as plain JSON types."""
        return {
            "source": self.source,
            "elapsed_s": self.elapsed_s,
            "scenario": None if self.scenario is None else str(self.scenario),
            "problem": self.problem,
            "vms": [
                {
                    "name": vm.name,
                    "trace": None if vm.trace is None else str(vm.trace),
                    "requests": vm.requests,
                    "dropped": vm.dropped,
                    "read_bytes": vm.read_bytes,
                    "write_bytes": vm.write_bytes,
                    "iops": vm.requests / self.elapsed_s if self.elapsed_s else 0.0,
                    "busy": self.busy(vm),
                    "mean_outstanding": self.mean_outstanding(vm),
                    "mode": "closed" if self.is_closed(vm) else "open",
                    "removed": vm.removed,
                }
                for vm in self.vms
            ],
        }


class Source(Protocol):
    """Source of requests of VMs."""

    name: str
    drive: dict[str, str]
    vms: list[RecordedVm]
    """Updated by `fetch`, except for values that `record` derives from the requests."""

    def fetch(self) -> tuple[int, Sequence[Batch]]:
        """Nanoseconds since the start, and the new requests of each VM in order of time."""

    def stop(self) -> None:
        """Stop recording; recorded requests can still be fetched."""


def record(
    source: Source,
    folder: Path,
    for_s: float | None,
    stop: StopRequest,
    advance: Callable[[float], None] = lambda _seconds: None,
) -> Recording:
    """Record requests into `folder` for `for_s`, or until `stop`; `advance` gets elapsed seconds.

    What was recorded is kept if the server of a device stops answering, or a trace cannot grow because the
    disk is full. Raises TraceError and UserError when a file cannot be written, and ControlError if the
    server stopped before any request.
    """
    from traces.errors import TraceError

    writers: dict[str, TraceWriter] = {}
    started, reported_s, elapsed_ns = time.monotonic(), 0.0, 0
    with ExitStack() as files:

        def fetch() -> None:
            nonlocal elapsed_ns
            elapsed_ns, batches = source.fetch()
            for vm, batch in zip(source.vms, batches, strict=True):
                _append(vm, batch, folder, writers, files)

        problem = ""
        try:
            while not stop.made and (for_s is None or time.monotonic() < started + for_s):
                if all(vm.removed for vm in source.vms):
                    break
                left_s = _FETCH_EVERY_S if for_s is None else started + for_s - time.monotonic()
                stop.wait(max(0.0, min(_FETCH_EVERY_S, left_s)))
                fetch()
                passed_s = time.monotonic() - started
                advance(passed_s - reported_s)
                reported_s = passed_s
            source.stop()
            fetch()
        except (ControlError, TraceError) as error:
            if not writers:
                raise
            problem = error.message
    recording = Recording(source.name, source.drive, elapsed_ns / _NS_PER_S, source.vms, problem=problem)
    if writers:
        recording.scenario = folder / SCENARIO_FILE
        with writing("--out", recording.scenario):
            replace_file(recording.scenario, scenario_text(recording).encode(), _OWNER_ONLY)
    return recording


@contextmanager
def new_folder(folder: Path) -> Iterator[None]:
    """The directory of a recording, for its owner only; one that was created and stays empty is removed.

    Raises UserError if it is not empty at first.
    """
    created = not folder.exists()
    with writing("--out", folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(f"--out: {folder} is not empty", "use a new directory")
    try:
        yield
    finally:
        if created:
            with suppress(OSError):
                folder.rmdir()


def _append(
    vm: RecordedVm, batch: Batch, folder: Path, writers: dict[str, TraceWriter], files: ExitStack
) -> None:
    from traces.batch import Op
    from traces.writing import TraceWriter

    if not len(batch):
        return
    if vm.name in writers:
        writers[vm.name].write(batch, [vm.name])
    else:
        path = folder / f"{vm.name}.csv.zst"
        # The file of a VM whose first requests cannot be written is removed.
        with ExitStack() as first:
            writer = first.enter_context(TraceWriter(path, mode=_OWNER_ONLY, reserve=True))
            writer.write(batch, [vm.name])
            files.push(first.pop_all())
        vm.trace, vm.first_ns, writers[vm.name] = path, int(batch.time_ns[0]), writer
    vm.requests += len(batch)
    vm.read_bytes += int(batch.length_bytes[batch.op == Op.READ].sum())
    vm.write_bytes += int(batch.length_bytes[batch.op == Op.WRITE].sum())


def scenario_text(recording: Recording) -> str:
    """Text of the scenario that replays a recording on a similar drive."""
    lines = [
        f"# {recording.elapsed_s:.3g} s of the requests to {recording.source}.",
        "# Another drive, over-provisioning or policy: change [device], policy and compare, or give",
        "# --device op=28% and --policy to `slo-ctl replay`.",
        "# mode=open: at the recorded times. qd=: the device limited this VM, so it has as many requests",
        "# outstanding as it had on average.",
        'policy = "proportional"',
        'compare = ["shared"]',
        f'duration = "{_duration(recording)}"',
        "alone = false",
        "",
        "[device]",
        *(f"{key} = {json.dumps(value)}" for key, value in recording.drive.items()),
    ]
    for vm in recording.vms:
        lines += ["", "[[vm]]", f"name = {json.dumps(vm.name)}", f"weight = {format_number(vm.weight)}"]
        lines.append(f'size = "{format_bytes_exact(vm.size_bytes)}"')
        if vm.trace is None:
            lines += ["# No request was recorded. Its data takes space, but it stays stopped."]
            lines += ['workload = "uniform"', 'start = "stopped"']
            continue
        lines += [f"trace = {json.dumps(vm.trace.name)}", 'remap = "modulo"']
        if recording.is_closed(vm):
            lines.append(f"qd = {recording.queue_depth(vm)}")
        else:
            lines += ['mode = "open"', f'period = "{_seconds(recording.elapsed_s)}"']
        if vm.first_ns >= _LATE_FROM_S * _NS_PER_S:
            lines.append('start = "stopped"')
    for vm in recording.vms:
        if vm.trace is not None and vm.first_ns >= _LATE_FROM_S * _NS_PER_S:
            at = _seconds(vm.first_ns / _NS_PER_S)
            lines += ["", "[[event]]", f'at = "{at}"', f"vm = {json.dumps(vm.name)}", 'action = "start"']
    return "\n".join(lines) + "\n"


def _duration(recording: Recording) -> str:
    """Duration for so many passes that GC becomes steady, within a limit."""
    written = sum(vm.write_bytes for vm in recording.vms)
    size_bytes = sum(vm.size_bytes for vm in recording.vms)
    passes = min(_MOST_PASSES, max(2.0, _WRITTEN_DRIVES * size_bytes / written if written else 2.0))
    return _seconds(passes * recording.elapsed_s)


def _seconds(value_s: float) -> str:
    return f"{format_number(round(value_s, 3))}s"


# Emulated devices, whose server records the requests of all front ends.


class RecordedDevice:
    """Namespaces of a served device; times are modelled if it is served with latency."""

    def __init__(self, record: DeviceRecord, client: ControlClient, weights: Mapping[str, float]) -> None:
        """Start recording. `weights`: see `served_device`. Raises ControlError."""
        self._client = client
        self.name = f"device {record.name} (EMULATED)"
        served = {namespace["name"]: namespace for namespace in client.statistics()["namespaces"]}
        self.vms = [
            RecordedVm(name, served[name]["size_bytes"], weights.get(name, served[name]["weight"]))
            for name in client.command("recording_start")["namespaces"]
        ]
        self.drive = (
            _drive_of_size(self.vms)
            if isinstance(record, DiskRecord)
            else drive_pairs(split_pairs("device", record.spec))
        )

    def fetch(self) -> tuple[int, Sequence[Batch]]:
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
        self._client.command("recording_stop")


@contextmanager
def served_device(
    record: DeviceRecord, control: Path, weights: Mapping[str, float]
) -> Iterator[RecordedDevice]:
    """A served device that is being recorded. Raises UserError when that fails.

    `weights`: of the SLOs of VMs by namespace; for others, the weight in the device's queue.
    """
    try:
        with ControlClient(control) as client:
            yield RecordedDevice(record, client, weights)
    except ControlError as error:
        message = f"device {record.name} cannot be recorded: {error.message}"
        if error.code == "late":
            raise UnreachableError(message, f"see `slo-ctl device show {record.name}`") from None
        if error.code == "unreachable":
            raise UnreachableError(message, f"serve it: slo-ctl device serve {record.name}") from None
        hint = "only root and the owner of the server can record, one at a time"
        raise UserError(message, hint) from None


def _by_vm(columns: Mapping[str, Any], count: int) -> list[Batch]:
    """Divide requests by their column `namespace`."""
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


_SMALLER_BLOCKS: tuple[dict[str, str], ...] = (
    {"block": "4MiB"},
    {"block": "1MiB"},
    {"block": "256KiB"},
    {"block": "64KiB"},
    {"block": "64KiB", "dies": "2"},
)
"""Keys of drives for disks of which the preset's blocks of 24 MiB leave too few for OPS on each die."""


def _drive_of_size(vms: Sequence[RecordedVm]) -> dict[str, str]:
    """Keys of a drive for the replay if the recorded one is not an emulated SSD."""
    drive = {"preset": "tlc", "size": format_bytes_exact(sum(vm.size_bytes for vm in vms))}
    sizes = [(vm.name, vm.size_bytes) for vm in vms]
    for keys in ({}, *_SMALLER_BLOCKS):
        with suppress(UserError):
            plan_drive(device_spec(Fields("device", drive | keys)), sizes)
            return drive | keys
    return drive


# Block devices: the kernel's event block_bio_queue in a separate ftrace instance.

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

    def __init__(self, devices: Mapping[str, Path], instance: Path) -> None:
        """Start recording; `devices` are by name of the VM. Raises OSError and UserError."""
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
        self._switch.write_text("0")

    def close(self) -> None:
        os.close(self._pipe)


@contextmanager
def block_devices(devices: Mapping[str, Path]) -> Iterator[BlockSource]:
    """Block devices that are being recorded. Raises UserError when that fails."""
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
        source = BlockSource(devices, instance)
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
