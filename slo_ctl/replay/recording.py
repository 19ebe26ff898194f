"""Recording the requests of running VMs: a trace for each, and a scenario that replays them."""

from __future__ import annotations

import json
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
    passes = _passes(recording)
    lines = [
        f"# {recording.elapsed_s:.3g} s of the requests to {recording.source}.",
        "# Another drive, over-provisioning or policy: change [device], policy and compare, or give",
        "# --device op=28% and --policy to `slo-ctl replay`.",
        "# mode=open: at the recorded times. qd=: the device limited this VM, so it has as many requests",
        "# outstanding as it had on average.",
        f"# duration: {format_number(round(passes, 1))} times the recording, for GC to become steady.",
        f"# As long as the recording: --duration {_seconds(recording.elapsed_s)}",
        'policy = "proportional"',
        'compare = ["shared"]',
        f'duration = "{_seconds(passes * recording.elapsed_s)}"',
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


def _passes(recording: Recording) -> float:
    """How often the recording is replayed for GC to become steady, within a limit."""
    written = sum(vm.write_bytes for vm in recording.vms)
    size_bytes = sum(vm.size_bytes for vm in recording.vms)
    return min(_MOST_PASSES, max(2.0, _WRITTEN_DRIVES * size_bytes / written if written else 2.0))


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
            drive_of_size(self.vms)
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
            for part, batch in zip(parts, requests_by_vm(reply["requests"], len(self.vms)), strict=True):
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


def requests_by_vm(columns: Mapping[str, Any], count: int) -> list[Batch]:
    """Divide requests by their column `namespace`, the number of the VM."""
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


def drive_of_size(vms: Sequence[RecordedVm]) -> dict[str, str]:
    """Keys of a drive for the replay if the recorded one is not an emulated SSD."""
    drive = {"preset": "tlc", "size": format_bytes_exact(sum(vm.size_bytes for vm in vms))}
    sizes = [(vm.name, vm.size_bytes) for vm in vms]
    for keys in ({}, *_SMALLER_BLOCKS):
        with suppress(UserError):
            plan_drive(device_spec(Fields("device", drive | keys)), sizes)
            return drive | keys
    return drive
