"""VMs on a real block device: windows from the counters of their cgroups."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from slo_ctl.model import IoCounters
from slo_ctl.observe.window import Sliding, StreamWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from slo_ctl.model import DeviceNumber, Stream

_Counted = dict[str, IoCounters]
"""By cgroup."""


@dataclass(slots=True)
class _Vm:
    cgroups: frozenset[str]
    readings: Sliding[_Counted]


class BlockDevice:
    """A block device of the host. The kernel keeps no latencies of a cgroup, so there are no percentiles."""

    def __init__(
        self,
        name: str,
        path: Path,
        number: DeviceNumber,
        *,
        window_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`number` is the one that cgroups charge: that of the whole disk."""
        self.name = name
        self.path = path
        self.number = number
        self.windows: dict[str, StreamWindow] = {}
        """As of the last `update`, by VM."""
        self._window_s = window_s
        self._clock = clock
        self._vms: dict[str, _Vm] = {}

    def update(self, streams: Iterable[Stream]) -> dict[str, StreamWindow]:
        """Take the counters of a look into account; returns `windows`.

        A VM whose cgroup is another one than before, or counts less, has started anew: so does its window.
        """
        now_s = self._clock()
        counted: dict[str, _Counted] = {}
        for stream in streams:
            if stream.device == self.number and stream.cgroup is not None:
                counters = stream.counters or IoCounters()
                counted.setdefault(stream.vm, {})[stream.cgroup] = counters
        self._vms = {vm: self._known(vm, now) for vm, now in counted.items()}
        for vm, now in counted.items():
            self._vms[vm].readings.add(now_s, now)
        self.windows = {vm: _stream_window(vm, known.readings) for vm, known in self._vms.items()}
        return self.windows

    def _known(self, vm: str, now: Mapping[str, IoCounters]) -> _Vm:
        known, cgroups = self._vms.get(vm), frozenset(now)
        if known is None or known.cgroups != cgroups:
            return _Vm(cgroups, Sliding(self._window_s))
        last = known.readings.last or {}
        if any(
            last[cgroup] is not counters and _went_back(last[cgroup], counters)
            for cgroup, counters in now.items()
        ):
            known.readings.clear()
        return known


def _stream_window(vm: str, readings: Sliding[_Counted]) -> StreamWindow:
    first, last, length_s = readings.first or {}, readings.last or {}, readings.length_s
    if length_s > 0 and all(first.get(cgroup) is counters for cgroup, counters in last.items()):
        return _still(vm, length_s, list(last.values()))

    def rate(*names: str) -> float | None:
        """Of the sum of several counters; None when the kernel keeps none of them."""
        changes = [_change(first[cgroup], last[cgroup], name) for cgroup in last for name in names]
        known = [change for change in changes if change is not None]
        return sum(known) / length_s if known and length_s > 0 else None

    return StreamWindow(
        vm=vm,
        window_s=length_s,
        iops=rate("reads", "writes"),
        read_iops=rate("reads"),
        write_iops=rate("writes"),
        bandwidth_bytes_s=rate("read_bytes", "written_bytes"),
    )


def _still(vm: str, length_s: float, counters: list[IoCounters]) -> StreamWindow:
    """Of a VM of which nothing was counted, as is so for most VMs most of the time; None is none still."""
    reads = 0.0 if any(each.reads is not None for each in counters) else None
    writes = 0.0 if any(each.writes is not None for each in counters) else None
    moved = any(each.read_bytes is not None or each.written_bytes is not None for each in counters)
    return StreamWindow(
        vm=vm,
        window_s=length_s,
        iops=writes if reads is None else reads,
        read_iops=reads,
        write_iops=writes,
        bandwidth_bytes_s=0.0 if moved else None,
    )


def _change(first: IoCounters, last: IoCounters, name: str) -> int | None:
    """A device is absent from a cgroup's statistics until its first I/O: then it began at 0."""
    then, now = getattr(first, name), getattr(last, name)
    return None if now is None else int(now) - int(then or 0)


def _went_back(first: IoCounters, last: IoCounters) -> bool:
    return any((getattr(last, f.name) or 0) < (getattr(first, f.name) or 0) for f in fields(IoCounters))
