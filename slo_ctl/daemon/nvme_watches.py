"""The NVMe drives behind managed block devices: each endurance group is asked once, for all in it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from slo_ctl.daemon.nvme_watch import NvmeSeen, NvmeWatch
from slo_ctl.observe import nvme_sysfs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from slo_ctl.model import DeviceNumber


class NvmeWatches:
    """Watches begin when the first namespace of a group is asked about, and end with the last."""

    def __init__(
        self,
        sys: Path,
        window_s: float,
        make: Callable[[str, Path, float], NvmeWatch] = NvmeWatch,
    ) -> None:
        self._sys = sys
        self._window_s = window_s
        self._make = make
        self._controllers: dict[str, str] = {}
        """By block device in use."""
        self._users: Counter[str] = Counter()
        """As a device may be listed by several paths."""
        self._watches: dict[str, list[NvmeWatch]] = {}
        """By controller."""

    def join(self, number: DeviceNumber) -> str | None:
        """Begin to watch the drive of a whole device; what to ask by. None: it is no NVMe namespace."""
        block = (self._sys / "dev" / "block" / str(number)).resolve().name
        controllers = nvme_sysfs.controllers_of(self._sys, block)
        if not controllers:
            return None
        self._controllers[block] = controllers[0]
        self._users[block] += 1
        self._watch_of(block)
        return block

    def seen(self, block: str) -> NvmeSeen:
        """What is known of the drive as far as it goes for this namespace; never waits."""
        return self._watch_of(block).seen

    def leave(self, block: str) -> None:
        """It is not asked about any more. What was asked in its name is, where others are left, in theirs."""
        self._users[block] -= 1
        if self._users[block]:
            return
        controller = self._controllers.pop(block)
        alone = controller not in self._controllers.values()
        for watch in list(self._watches[controller]):
            if alone or watch.block == block:
                self._watches[controller].remove(watch)
                watch.close()

    def _watch_of(self, block: str) -> NvmeWatch:
        watches = self._watches.setdefault(self._controllers[block], [])
        # Until a drive has told what its groups are, the one answer that there is goes for all.
        for watch in sorted(watches, key=lambda each: each.block != block):
            if watch.covers(block) is not False:
                return watch
        made = self._make(block, self._sys, self._window_s)
        watches.append(made)
        made.start()
        return made
