"""What a device can do, as measured."""

from __future__ import annotations

_FADES_PER_EPOCH = 0.005
"""Of the capacity, in epochs that did less though more was asked for: work changes, and drives age."""


class Capacity:
    """The most IOPS that were measured while VMs asked for more; older ones fade."""

    def __init__(self) -> None:
        self.iops: float | None = None
        """None before any VM has asked for more than it got."""

    def add(self, iops: float, *, asked_for_more: bool) -> None:
        """One more epoch."""
        if not asked_for_more:
            if self.iops is not None:
                self.iops = max(self.iops, iops)
            return
        self.iops = max(iops, (self.iops or 0.0) * (1.0 - _FADES_PER_EPOCH))
