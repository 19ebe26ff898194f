"""One maximum as two limits, of reads and of writes, where the kernel has none for their sum: pure.

Both limits add up to the maximum, so that no mix passes it. A VM's mix reaches the maximum where its limits
are in the same proportion: they follow what it does. At once where one side is held back while the other
leaves room, as then the split is what keeps the VM below its maximum; otherwise slowly, for the day on which
it will be.
"""

from __future__ import annotations

from dataclasses import dataclass

FLOOR = 0.01
"""Of the maximum, for the side that does nothing: its first requests must not wait for ever."""
EVEN = 0.5
"""The share of reads of a VM that was not seen yet."""
_HELD_FROM = 0.95
"""Of a limit: who does so much is held back by it."""
_ROOM_BELOW = 0.97
"""Of the maximum: who does less in all is short of it."""
_SLOWLY_S = 60.0
"""Time constant of what is not urgent."""
_WORTH_IT = 0.05
"""Change of the share that limits are set anew for, when it is not urgent."""
_EXPLORED_BELOW = 0.1
_EXPLORING_PER_S = 0.05
"""A side this small that is held back, as the other is, may want more: nothing else would ever show it."""


@dataclass(frozen=True, slots=True)
class Split:
    """How a maximum is divided."""

    read_share: float
    """In force, within FLOOR and 1 - FLOOR."""
    mix: float
    """The share of reads as it was observed, smoothed."""

    def limits(self, maximum: float) -> tuple[float, float]:
        """Of reads and of writes; they add up to `maximum`."""
        reads = maximum * self.read_share
        return reads, maximum - reads


UNSEEN = Split(EVEN, EVEN)


def first_split(reads: float, writes: float) -> Split:
    """By everything that the VM ever did there; even when that is nothing."""
    mix = _mix(reads, writes)
    return UNSEEN if mix is None else Split(_bounded(mix), mix)


def next_split(split: Split, reads: float, writes: float, maximum: float, length_s: float) -> Split:
    """After an epoch of `length_s` in which the VM did `reads` and `writes` a second."""
    mix = _mix(reads, writes)
    if mix is None or maximum <= 0 or length_s <= 0:
        return split
    read_limit, write_limit = split.limits(maximum)
    reads_held, writes_held = reads >= _HELD_FROM * read_limit, writes >= _HELD_FROM * write_limit
    if (reads_held or writes_held) and reads + writes < _ROOM_BELOW * maximum:
        return Split(_bounded(mix), mix)
    if reads_held and writes_held:
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
