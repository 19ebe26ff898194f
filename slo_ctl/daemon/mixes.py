"""What VMs read and write on block devices, and how their maximums are divided accordingly."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from slo_ctl.decide.limit_settings import Splits
from slo_ctl.decide.limit_split import first_split, next_split

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from slo_ctl.decide.limit_settings import HeldBack
    from slo_ctl.model import DeviceNumber, IoCounters, Slo, Stream

_Key = tuple[str, "DeviceNumber"]
_NONE: dict[_Key, Splits] = {}


class Mixes:
    """The splits of all VMs with a maximum, from epoch to epoch."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.splits: dict[_Key, Splits] = _NONE
        """By VM and device; the same object as before when nothing has changed."""
        self._clock = clock
        self._last: dict[_Key, IoCounters] = {}
        self._looked_at_s = 0.0

    def look(
        self,
        streams: Iterable[Stream],
        slos: Mapping[str, Slo],
        devices: Collection[DeviceNumber],
        held: Mapping[_Key, HeldBack] | None = None,
    ) -> None:
        """Take the counters of a look into account; `held` are VMs limited for others' sake."""
        held = held or {}
        now_s = self._clock()
        length_s, self._looked_at_s = now_s - self._looked_at_s, now_s
        counted: dict[_Key, IoCounters] = {}
        for stream in streams:
            if stream.device is None or stream.counters is None or stream.device not in devices:
                continue
            slo, key = slos.get(stream.vm), (stream.vm, stream.device)
            if slo is None:
                continue
            if key in held or slo.max_iops is not None or slo.max_bandwidth_bytes_s is not None:
                # Several disks on one device share its counters.
                counted[key] = stream.counters
        splits = {}
        for key, counters in counted.items():
            known, last = self.splits.get(key), self._last.get(key)
            if known is None or last is None:
                splits[key] = _first(counters)
            elif counters is last:
                splits[key] = known
            else:
                slo = slos[key[0]]
                limits = [slo.max_iops, held[key].iops if key in held else None]
                most = min((limit for limit in limits if limit is not None), default=None)
                splits[key] = _next(known, replace(slo, max_iops=most), last, counters, length_s)
        self._last = counted
        if splits != self.splits:
            self.splits = splits


def _first(counters: IoCounters) -> Splits:
    return Splits(
        first_split(counters.reads or 0, counters.writes or 0),
        first_split(counters.read_bytes or 0, counters.written_bytes or 0),
    )


def _next(known: Splits, slo: Slo, last: IoCounters, now: IoCounters, length_s: float) -> Splits:
    iops, bytes_s = known.iops, known.bytes_s
    if length_s <= 0:
        return known
    if slo.max_iops is not None:
        rates = (_rate(last.reads, now.reads, length_s), _rate(last.writes, now.writes, length_s))
        iops = next_split(iops, *rates, slo.max_iops, length_s)
    if slo.max_bandwidth_bytes_s is not None:
        rates = (
            _rate(last.read_bytes, now.read_bytes, length_s),
            _rate(last.written_bytes, now.written_bytes, length_s),
        )
        bytes_s = next_split(bytes_s, *rates, slo.max_bandwidth_bytes_s, length_s)
    return Splits(iops, bytes_s)


def _rate(last: int | None, now: int | None, length_s: float) -> float:
    """A second; a counter that began anew says nothing."""
    return max(0, (now or 0) - (last or 0)) / length_s
