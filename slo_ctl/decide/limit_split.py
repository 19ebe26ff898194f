"""One maximum as two limits, of reads and of writes, where the kernel has none for their sum. Pure.

Both limits add up to the maximum, so that no mix passes it. A VM's mix reaches the maximum where its limits
are in the same proportion: they follow what it does. At once where one side is throttled while the other
leaves room, as then the split is what keeps the VM below its maximum; otherwise slowly, for the day on which
it will be.

The kernel grants whole requests in each slice of time, and what is left of a slice is lost. So a limit acts
in steps: where slices last 100 ms, 25 requests a second are 20.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from slo_ctl.decide.limit_control import at_limit
from slo_ctl.model import DeviceNumber, IoCounters, Slo, Stream

FLOOR = 0.01
"""Of the maximum, for the side that does nothing: its first requests must not starve."""
EVEN = 0.5
"""The share of reads of a VM that has not been observed yet."""
_ROOM_BELOW = 0.97
"""Part of the maximum: a VM that does less in total is below it."""
_SLOWLY_S = 60.0
"""Time constant of what is not urgent."""
_WORTH_IT = 0.05
"""Change of the share that limits are set again for, when it is not urgent."""
_EXPLORED_BELOW = 0.1
_EXPLORING_PER_S = 0.05
"""A side this small that is throttled, as the other is, may want more: nothing else would ever show it."""
_WHOLE_FROM = 0.75
"""Of one step: such a limit is nearer to one than to a half."""
_LEAST_SIDE = 2.0
"""Requests per second for the side that does nothing, beside whole steps: the lowest limit of io.max."""


def granted_iops(limit: float, step: float) -> float:
    """What a VM that wants more gets under the kernel's limit; `step` is one request per slice, 0: all of it.

    Below one step a request needs several slices. Older kernels lose one of them with each; newer ones do
    not, so that it is the least.
    """
    if step <= 0.0:
        return limit
    if limit >= step:
        return math.floor(limit / step) * step
    return step / (math.ceil(2.0 * step / limit) - 1) if limit > 0.0 else 0.0


def nearest_granted(limit: float, step: float, least: float = 0.0) -> float:
    """The nearest limit of whole steps, but at least `least`; or one of half a step at most."""
    if step <= 0.0:
        return limit
    if limit < _WHOLE_FROM * step and least <= 0.0:
        return _never_passed(limit, step)
    return max(round(limit / step), math.ceil(least / step), 1) * step


def _never_passed(limit: float, step: float) -> float:
    """Between half a step and one, Linux 6.18 grants up to 1.75 times a limit (9 IOPS became 16)."""
    return min(limit, step / 2.0) if limit < step else limit


@dataclass(frozen=True, slots=True)
class Split:
    """How a maximum is divided."""

    read_share: float
    """Share of reads in force, within FLOOR and 1 - FLOOR."""
    mix: float
    """The share of reads as it was observed, smoothed."""

    def limits(self, maximum: float, step: float = 0.0) -> tuple[float, float]:
        """Limits of reads and of writes; they add up to `maximum`.

        Where limits act in steps, whole steps for the larger side, as many as grant most to this mix: at most
        two steps less than the maximum. A side that does hardly anything may come on top then, with 2
        requests a second.
        """
        reads = maximum * self.read_share
        if step <= 0.0:
            return reads, maximum - reads
        whole = math.floor(max(reads, maximum - reads) / step)
        sides = [(_never_passed(reads, step), _never_passed(maximum - reads, step))]
        for larger in ((whole - 1) * step, whole * step, (whole + 1) * step):
            if 0.0 < larger <= maximum:
                smaller = max(_never_passed(maximum - larger, step), _LEAST_SIDE)
                sides.append((larger, smaller) if self.read_share > EVEN else (smaller, larger))
        return max(sides, key=lambda each: self._granted_of(each, maximum, step))

    def granted(self, maximum: float, step: float) -> float:
        """What a VM of this mix that wants more gets under these limits."""
        return self._granted_of(self.limits(maximum, step), maximum, step)

    def _granted_of(self, limits: tuple[float, float], maximum: float, step: float) -> float:
        granted = [granted_iops(limit, step) for limit in limits]
        # A side at FLOOR may do less than that, down to nothing: then it holds up nothing.
        mix = self.mix if not FLOOR < self.read_share < 1.0 - FLOOR else self.read_share
        shares = (min(self.read_share, mix), min(1.0 - self.read_share, 1.0 - mix))
        by_side = [each / share for each, share in zip(granted, shares, strict=True) if share > 0.0]
        return min(maximum, sum(granted), *by_side)


UNSEEN = Split(EVEN, EVEN)


def first_split(reads: float, writes: float) -> Split:
    """The split of all that the VM has ever done there; even without any I/O."""
    mix = _mix(reads, writes)
    return UNSEEN if mix is None else Split(_bounded(mix), mix)


def next_split(
    split: Split, reads: float, writes: float, maximum: float, length_s: float, step: float = 0.0
) -> Split:
    """After an epoch of `length_s` in which the VM did `reads` and `writes` a second.

    `step`: that in which the limits of `maximum` act.
    """
    mix = _mix(reads, writes)
    if mix is None or maximum <= 0 or length_s <= 0:
        return split
    read_limit, write_limit = (granted_iops(limit, step) for limit in split.limits(maximum, step))
    reads_at_limit, writes_at_limit = at_limit(reads, read_limit), at_limit(writes, write_limit)
    if (reads_at_limit or writes_at_limit) and reads + writes < _ROOM_BELOW * maximum:
        return Split(_bounded(mix), mix)
    if reads_at_limit and writes_at_limit:
        return _explored(split, length_s)
    smoothed = split.mix + (mix - split.mix) * min(1.0, length_s / _SLOWLY_S)
    if abs(_bounded(smoothed) - split.read_share) >= _WORTH_IT:
        return Split(_bounded(smoothed), smoothed)
    return Split(split.read_share, smoothed)


def _explored(split: Split, length_s: float) -> Split:
    smaller = min(split.read_share, 1 - split.read_share)
    if smaller >= _EXPLORED_BELOW:
        return split
    smaller = min(_EXPLORED_BELOW, smaller * (1 + _EXPLORING_PER_S * length_s))
    share = smaller if split.read_share < EVEN else 1 - smaller
    return Split(share, share)


def _mix(reads: float, writes: float) -> float | None:
    total = reads + writes
    return reads / total if total > 0 else None


def _bounded(share: float) -> float:
    return min(1 - FLOOR, max(FLOOR, share))


@dataclass(frozen=True, slots=True)
class Splits:
    """How the maximums of one VM on one device are divided between reads and writes."""

    iops: Split = UNSEEN
    bytes_s: Split = UNSEEN


# The splits of all VMs, from the counters of their cgroups.

_Key = tuple[str, DeviceNumber]
_EXACT: Mapping[_Key, float] = MappingProxyType({})


class ReadWriteSplits:
    """The splits of all VMs with a maximum, from epoch to epoch."""

    def __init__(self) -> None:
        self.splits: dict[_Key, Splits] = {}
        """Splits by VM and device; the same object as before when nothing has changed."""
        self._last: dict[_Key, IoCounters] = {}
        self._looked_at_s = 0.0

    def observe(
        self,
        streams: Iterable[Stream],
        slos: Mapping[str, Slo],
        devices: Collection[DeviceNumber],
        throttle_iops: Mapping[_Key, float],
        now_s: float,
        steps_iops: Mapping[_Key, float] = _EXACT,
    ) -> None:
        """Take the counters of a look into account; `throttle_iops` are limits for others' sake, `steps_iops`
        those in which limits act. `now_s` is monotonic time."""
        length_s, self._looked_at_s = now_s - self._looked_at_s, now_s
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
            known, last = self.splits.get(key), self._last.get(key)
            if known is None or last is None:
                splits[key] = _first(counters)
            elif counters is last:
                splits[key] = known
            else:
                slo = slos[key[0]]
                limits = [slo.max_iops, throttle_iops.get(key)]
                most = min((limit for limit in limits if limit is not None), default=None)
                bounded, step = replace(slo, max_iops=most), steps_iops.get(key, 0.0)
                splits[key] = _next(known, bounded, last, counters, length_s, step)
        self._last = counted
        if splits != self.splits:
            self.splits = splits


def _first(counters: IoCounters) -> Splits:
    return Splits(
        first_split(counters.reads or 0, counters.writes or 0),
        first_split(counters.read_bytes or 0, counters.written_bytes or 0),
    )


def _next(
    known: Splits, slo: Slo, last: IoCounters, now: IoCounters, length_s: float, step_iops: float
) -> Splits:
    iops, bytes_s = known.iops, known.bytes_s
    if length_s <= 0:
        return known
    if slo.max_iops is not None:
        rates = (_rate(last.reads, now.reads, length_s), _rate(last.writes, now.writes, length_s))
        iops = next_split(iops, *rates, slo.max_iops, length_s, step_iops)
    if slo.max_bandwidth_bytes_s is not None:
        rates = (
            _rate(last.read_bytes, now.read_bytes, length_s),
            _rate(last.written_bytes, now.written_bytes, length_s),
        )
        bytes_s = next_split(bytes_s, *rates, slo.max_bandwidth_bytes_s, length_s)
    return Splits(iops, bytes_s)


def _rate(last: int | None, now: int | None, length_s: float) -> float:
    """A second; a counter that was reset has no rate."""
    return max(0, (now or 0) - (last or 0)) / length_s
