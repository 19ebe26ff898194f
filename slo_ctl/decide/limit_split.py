"""Division of a maximum into a limit of reads and one of writes, as the kernel has no limit of their sum.

The limits add up to the maximum, so that no mix of reads and writes exceeds it. A VM reaches its maximum if
the limits are in the proportion of its mix. If one of them throttles a VM that is below its maximum, the
split is wrong and becomes the mix of the last epoch. Otherwise it makes no difference and stays, except where
one kind of request alone fills the maximum: the demand for the other kind is unknown, and its part grows
until it is no longer throttled.

The kernel grants whole requests in each slice of time, and the rest of a slice is lost. So a limit acts in
steps: if slices last 100 ms, a limit of 25 requests per second grants 20.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

from slo_ctl.decide.objectives import at_limit, tighter
from slo_ctl.decide.verdict import AT_BOUND
from slo_ctl.model.host import DeviceNumber, IoCounters, Stream
from slo_ctl.model.slo import Slo

FLOOR = 0.01
"""Smallest fraction of the maximum for reads or for writes, so that first requests do not starve; and change
of a part whose demand is unknown, per epoch."""
_LEAST_SIDE = 2.0
"""Limit in requests per second of a side without I/O beside whole steps: the lowest of io.max."""


def granted_iops(limit: float, step: float) -> float:
    """Rate that a limit of the kernel allows; `step`: one request per slice, or 0 for an exact limit.

    Below one step a request needs several slices. Older kernels lose one more slice per request; the result
    is that of these kernels, a lower bound for newer ones.
    """
    if step <= 0.0:
        return limit
    if limit >= step:
        return math.floor(limit / step) * step
    return step / (math.ceil(2.0 * step / limit) - 1) if limit > 0.0 else 0.0


def nearest_granted(limit: float, step: float, least: float = 0.0) -> float:
    """The nearest limit of whole steps that is at least `least`; far below one step, at most half a step."""
    if step <= 0.0:
        return limit
    if round(2.0 * limit / step) < 2 and least <= 0.0:
        return _not_exceeded(limit, step)
    return max(round(limit / step), math.ceil(least / step), 1) * step


def _not_exceeded(limit: float, step: float) -> float:
    """A limit that the kernel does not exceed: between half a step and one, Linux 6.18 grants up to 1.75
    times the limit (16 IOPS instead of 9)."""
    return min(limit, step / 2.0) if limit < step else limit


@dataclass(frozen=True, slots=True)
class Split:
    """Division of a maximum between reads and writes."""

    mix: float
    """Share of reads in the I/O that the limits have to let through."""

    @property
    def read_share(self) -> float:
        """Share of reads in the maximum, in FLOOR..1 - FLOOR."""
        return min(1.0 - FLOOR, max(FLOOR, self.mix))

    def limits(self, maximum: float, step: float = 0.0) -> tuple[float, float]:
        """Limits of reads and of writes, which add up to `maximum`.

        If limits act in steps, the larger side gets whole steps, as many as allow this mix the highest rate:
        at most two steps less than the maximum. The sum may then exceed it by the 2 requests per second of a
        side with hardly any I/O.
        """
        return _limits(self, maximum, step)

    def granted(self, maximum: float, step: float) -> float:
        """Total rate that the limits of `maximum` allow a VM with this mix."""
        return self.granted_of(self.limits(maximum, step), maximum, step)

    def granted_of(self, limits: tuple[float, float], maximum: float, step: float) -> float:
        """Total rate that `limits` of reads and of writes allow a VM with this mix."""
        granted = [granted_iops(limit, step) for limit in limits]
        # A side at FLOOR may have less I/O than its limit, or none, and so does not slow down the other.
        shares = (min(self.read_share, self.mix), min(1.0 - self.read_share, 1.0 - self.mix))
        totals = [rate / share for rate, share in zip(granted, shares, strict=True) if share > 0.0]
        return min(maximum, sum(granted), *totals)


@lru_cache(maxsize=4096)
def _limits(split: Split, maximum: float, step: float) -> tuple[float, float]:
    """As `Split.limits`, which is asked for the same limits in every epoch."""
    reads = maximum * split.read_share
    if step <= 0.0:
        return reads, maximum - reads
    whole = math.floor(max(reads, maximum - reads) / step)
    sides = [(_not_exceeded(reads, step), _not_exceeded(maximum - reads, step))]
    for larger in ((whole - 1) * step, whole * step, (whole + 1) * step):
        if 0.0 < larger <= maximum:
            smaller = max(_not_exceeded(maximum - larger, step), _LEAST_SIDE)
            sides.append((larger, smaller) if split.read_share > 0.5 else (smaller, larger))
    return max(sides, key=lambda limits: split.granted_of(limits, maximum, step))


INITIAL = Split(0.5)


def first_split(reads: float, writes: float) -> Split:
    """The split by all I/O that the VM ever did on the device; even without any."""
    return Split(reads / (reads + writes)) if reads + writes > 0.0 else INITIAL


def next_split(split: Split, reads: float, writes: float, maximum: float, step: float = 0.0) -> Split:
    """The split after an epoch in which the VM did `reads` and `writes` per second.

    `step`: the step in which the limits of `maximum` act; 0: they are exact.
    """
    read_limit, write_limit = (granted_iops(limit, step) for limit in split.limits(maximum, step))
    throttled = at_limit(reads, read_limit), at_limit(writes, write_limit)
    if any(throttled) and 0.0 < reads + writes < (1.0 - AT_BOUND) * maximum:
        return first_split(reads, writes)
    if all(throttled) and at_limit(max(reads, writes), maximum):
        return Split(split.read_share + (FLOOR if reads < writes else -FLOOR))
    return split


@dataclass(frozen=True, slots=True)
class Splits:
    """Division of the maximums of one VM on one device."""

    iops: Split = INITIAL
    bytes_s: Split = INITIAL


# Splits of all VMs, from the I/O counters of their cgroups.

_Key = tuple[str, DeviceNumber]
_EXACT: Mapping[_Key, float] = MappingProxyType({})


class ReadWriteSplits:
    """Splits of all VMs with a maximum, updated once per epoch."""

    def __init__(self) -> None:
        self.splits: dict[_Key, Splits] = {}
        """Splits by VM and device; replaced by a new object only when a split changes."""
        self._last: dict[_Key, IoCounters] = {}
        self._observed_at_s = 0.0

    def observe(
        self,
        streams: Iterable[Stream],
        slos: Mapping[str, Slo],
        devices: Collection[DeviceNumber],
        throttle_iops: Mapping[_Key, float],
        now_s: float,
        steps_iops: Mapping[_Key, float] = _EXACT,
    ) -> None:
        """Update the splits from the counters of the streams.

        `throttle_iops`: limits that protect other VMs, by VM and device. `now_s`: monotonic time.
        `steps_iops`: steps in which limits act, by VM and device; exact where there is none.
        """
        length_s, self._observed_at_s = now_s - self._observed_at_s, now_s
        counted: dict[_Key, IoCounters] = {}
        for stream in streams:
            if stream.device is None or stream.counters is None or stream.device not in devices:
                continue
            slo, key = slos.get(stream.vm), (stream.vm, stream.device)
            if slo is None:
                continue
            if key in throttle_iops or slo.max_iops is not None or slo.max_bandwidth_bytes_s is not None:
                # Several disks on one device share its counters.
                counted[key] = stream.counters
        splits = {}
        for key, counters in counted.items():
            previous, last = self.splits.get(key), self._last.get(key)
            if previous is None or last is None:
                splits[key] = _first(counters)
            elif counters is last:
                splits[key] = previous
            else:
                slo = slos[key[0]]
                most = tighter(slo.max_iops, throttle_iops.get(key))
                bounded = slo if most == slo.max_iops else replace(slo, max_iops=most)
                step = steps_iops.get(key, 0.0)
                splits[key] = _next(previous, bounded, last, counters, length_s, step)
        self._last = counted
        if splits != self.splits:
            self.splits = splits


def _first(counters: IoCounters) -> Splits:
    return Splits(
        first_split(counters.reads or 0, counters.writes or 0),
        first_split(counters.read_bytes or 0, counters.written_bytes or 0),
    )


def _next(
    splits: Splits, slo: Slo, last: IoCounters, now: IoCounters, length_s: float, step_iops: float
) -> Splits:
    iops, bytes_s = splits.iops, splits.bytes_s
    if length_s <= 0:
        return splits
    if slo.max_iops is not None:
        rates = (_rate(last.reads, now.reads, length_s), _rate(last.writes, now.writes, length_s))
        iops = next_split(iops, *rates, slo.max_iops, step_iops)
    if slo.max_bandwidth_bytes_s is not None:
        rates = (
            _rate(last.read_bytes, now.read_bytes, length_s),
            _rate(last.written_bytes, now.written_bytes, length_s),
        )
        bytes_s = next_split(bytes_s, *rates, slo.max_bandwidth_bytes_s)
    return Splits(iops, bytes_s)


def _rate(last: int | None, now: int | None, length_s: float) -> float:
    """Increase of a counter per second; 0 after a reset."""
    return max(0, (now or 0) - (last or 0)) / length_s
