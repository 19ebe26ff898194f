"""Which VMs would take more of a block device than they get, by how long their threads waited for it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from slo_ctl.observe.task_delay import BlockDelay

_SATURATING_FROM = 0.9
"""Threads of a VM that wait for this share of the time, added up, would take more if they could."""
_SEEN_FROM = 0.5
"""Waits for each request: with fewer the VM's requests are asynchronous, and no thread waits for them."""


class BlockDemand:
    """Of all VMs on one device, over the status window."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._seen: dict[str, deque[tuple[BlockDelay, float]]] = {}

    def add(self, vm: str, delay: BlockDelay, iops: float) -> None:
        """One more reading of a VM that did `iops` meanwhile."""
        seen = self._seen.setdefault(vm, deque())
        seen.append((delay, iops * delay.window_s))
        length_s = sum(each.window_s for each, _ in seen)
        while len(seen) > 1 and length_s - seen[0][0].window_s >= self._window_s:
            length_s -= seen.popleft()[0].window_s

    def keep(self, vms: Collection[str]) -> None:
        """Forget all others: what they waited for is over."""
        self._seen = {vm: seen for vm, seen in self._seen.items() if vm in vms}

    def wants_more(self, vm: str) -> bool | None:
        """Whether it would have taken more; None where waiting tells nothing of it."""
        seen = self._seen.get(vm)
        if not seen:
            return None
        length_s = sum(delay.window_s for delay, _ in seen)
        requests = sum(each for _, each in seen)
        waits = sum(delay.waits for delay, _ in seen)
        if length_s <= 0 or waits < _SEEN_FROM * requests:
            return None
        return sum(delay.delay_s for delay, _ in seen) >= _SATURATING_FROM * length_s
