"""Recording the requests of running VMs: a trace for each VM, and a scenario that replays them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from slo_ctl.base.errors import UserError
from slo_ctl.base.files import replace_file, writing
from slo_ctl.base.quantity import format_bytes_exact, format_number
from slo_ctl.drives.server import StopRequest

if TYPE_CHECKING:
    from traces.batch import Batch
    from traces.writing import TraceWriter

SCENARIO_FILE = "scenario.toml"
_OWNER_ONLY = 0o600
_FETCH_EVERY_S = 0.1
_NS_PER_S = 1_000_000_000
_CLOSED_FROM_BUSY = 0.9
"""A VM that has requests outstanding for more of the time than this waits for the device, not for itself."""
_LATE_FROM_S = 1.0
"""A VM whose first request comes later than this is started as late in the replay."""
_WRITTEN_DRIVES = 3.0
_MOST_PASSES = 50


@dataclass(slots=True)
class RecordedVm:
    """What one VM did while it was recorded."""

    name: str
    size_bytes: int
    weight: float = 1.0
    requests: int = 0
    dropped: int = 0
    """Requests that were not recorded, as memory was full."""
    read_bytes: int = 0
    write_bytes: int = 0
    first_ns: int = 0
    busy_ns: int = 0
    """Time with a request outstanding."""
    outstanding_ns: int = 0
    """Sum over its requests of the time that each was outstanding."""
    trace: Path | None = None
    """None: there were no requests."""


@dataclass(slots=True)
class Recording:
    """A finished recording."""

    source: str
    """What was recorded, such as `device ssd0 (EMULATED)`."""
    drive: dict[str, str]
    """Keys of `slo-ctl replay --device` for a drive of its kind."""
    elapsed_s: float
    vms: list[RecordedVm] = field(default_factory=list)
    scenario: Path | None = None
    """None: nothing was recorded."""

    def busy(self, vm: RecordedVm) -> float:
        """Part of the time in which the VM had a request outstanding."""
        return vm.busy_ns / _NS_PER_S / self.elapsed_s if self.elapsed_s else 0.0

    def mean_outstanding(self, vm: RecordedVm) -> float:
        """Mean number of its outstanding requests."""
        return vm.outstanding_ns / _NS_PER_S / self.elapsed_s if self.elapsed_s else 0.0

    def is_closed(self, vm: RecordedVm) -> bool:
        """The device set its pace: it is replayed with as many requests outstanding, not by time stamps."""
        return self.busy(vm) >= _CLOSED_FROM_BUSY

    def replayed(self, vm: RecordedVm) -> str:
        """How the scenario replays the VM."""
        if vm.trace is None:
            return "no requests"
        return f"qd={self.queue_depth(vm)}" if self.is_closed(vm) else "at the recorded times"

    def queue_depth(self, vm: RecordedVm) -> int:
        """Requests that it has outstanding where it is replayed with so many."""
        return max(1, round(self.mean_outstanding(vm)))

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "format_version": 1,
            "source": self.source,
            "elapsed_s": self.elapsed_s,
            "scenario": None if self.scenario is None else str(self.scenario),
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
                }
                for vm in self.vms
            ],
        }


class Source(Protocol):
    """Where requests are seen."""

    name: str
    drive: dict[str, str]
    vms: list[RecordedVm]
    """Which it keeps up to date, but for what follows from the requests."""

    def fetch(self) -> tuple[int, Sequence[Batch]]:
        """Nanoseconds since the start, and the requests of each VM since the last call, in order of time."""

    def stop(self) -> None:
        """See no further request; what was seen can still be fetched."""


def record(
    source: Source,
    folder: Path,
    for_s: float | None,
    stop: StopRequest,
    advance: Callable[[float], None] = lambda _seconds: None,
) -> Recording:
    """Record what `source` sees into `folder` for so long, or until `stop`; `advance` gets seconds passed.

    Raises UserError where it cannot be written.
    """
    writers: dict[str, TraceWriter] = {}
    started, reported_s, elapsed_ns = time.monotonic(), 0.0, 0
    with ExitStack() as files:

        def fetch() -> None:
            nonlocal elapsed_ns
            elapsed_ns, batches = source.fetch()
            for vm, batch in zip(source.vms, batches, strict=True):
                _append(vm, batch, folder, writers, files)

        while not stop.made and (for_s is None or time.monotonic() < started + for_s):
            left_s = _FETCH_EVERY_S if for_s is None else started + for_s - time.monotonic()
            stop.wait(max(0.0, min(_FETCH_EVERY_S, left_s)))
            fetch()
            passed_s = time.monotonic() - started
            advance(passed_s - reported_s)
            reported_s = passed_s
        source.stop()
        fetch()
    recording = Recording(source.name, source.drive, elapsed_ns / _NS_PER_S, source.vms)
    if writers:
        recording.scenario = folder / SCENARIO_FILE
        with writing("--out", recording.scenario):
            replace_file(recording.scenario, scenario_text(recording).encode(), _OWNER_ONLY)
    return recording


def make_folder(folder: Path) -> None:
    """The directory of a recording, for its owner only. Raises UserError where it has files already."""
    with writing("--out", folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(f"--out: {folder} is not empty", "name a new directory")


def _append(
    vm: RecordedVm, batch: Batch, folder: Path, writers: dict[str, TraceWriter], files: ExitStack
) -> None:
    from traces.batch import Op
    from traces.writing import TraceWriter

    if not len(batch):
        return
    if vm.name not in writers:
        vm.trace, vm.first_ns = folder / f"{vm.name}.csv.zst", int(batch.time_ns[0])
        writers[vm.name] = files.enter_context(TraceWriter(vm.trace, mode=_OWNER_ONLY))
    writers[vm.name].write(batch, [vm.name])
    vm.requests += len(batch)
    vm.read_bytes += int(batch.length_bytes[batch.op == Op.READ].sum())
    vm.write_bytes += int(batch.length_bytes[batch.op == Op.WRITE].sum())


def scenario_text(recording: Recording) -> str:
    """The scenario that replays a recording on a drive like the recorded one."""
    lines = [
        f"# {recording.elapsed_s:.3g} s of the requests to {recording.source}.",
        "# Another drive, over-provisioning or policy: change [device], policy and compare, or give",
        "# --device op=28% and --policy to `slo-ctl replay`.",
        "# mode=open: at the recorded times. qd=: the device set the pace of that VM, so that it has as many",
        "# requests outstanding as it had on average.",
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
            lines += ["# No request was recorded: its data takes space, and it stays stopped."]
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
    """Enough passes that the replay's GC settles, within a limit."""
    written = sum(vm.write_bytes for vm in recording.vms)
    size_bytes = sum(vm.size_bytes for vm in recording.vms)
    passes = min(_MOST_PASSES, max(2.0, _WRITTEN_DRIVES * size_bytes / written if written else 2.0))
    return _seconds(passes * recording.elapsed_s)


def _seconds(value_s: float) -> str:
    return f"{format_number(round(value_s, 3))}s"
