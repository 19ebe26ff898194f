"""What is shared as a whole: one block device, or all namespaces of one NVMe drive that are managed.

The drive serves all of its namespaces, and the kernel shares it among them by nobody's weight.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slo_ctl.daemon.capacity import Capacity
from slo_ctl.daemon.guard import Guard, and_list, together
from slo_ctl.daemon.parts import total_iops
from slo_ctl.decide.shares import due_shares

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from slo_ctl.daemon.blocks import BlockPart
    from slo_ctl.model import Slo, Stream
    from slo_ctl.observe.task_delay import BlockDelay
    from slo_ctl.observe.window import StreamWindow


@dataclass(frozen=True, slots=True)
class Shared:
    """What VMs have shares of."""

    shares: Mapping[str, float]
    """What each one that asks for anything is due, by VM."""
    total_iops: float | None
    of_drive: bool
    """It is a whole drive; else one block device."""

    def target_iops(self, vm: str) -> float | None:
        """What its share is at the moment."""
        return self.shares[vm] * self.total_iops if vm in self.shares and self.total_iops else None


class Pool:
    """From epoch to epoch; block devices come and go."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.parts: tuple[BlockPart, ...] = ()
        self.guard = Guard(clock)
        self.capacity = Capacity()
        self.slos: dict[str, Slo] = {}
        """Of the VMs that it serves, as of the last status."""
        self._windows: dict[str, StreamWindow] = {}

    @property
    def name(self) -> str:
        """Of the device that has the problem when something goes wrong."""
        return self.parts[0].name

    def look(self, streams: Sequence[Stream], delays: Mapping[str, BlockDelay]) -> None:
        """Take an epoch into account; after the parts did."""
        there = {part.number: part.path for part in self.parts if part.number is not None}
        self.guard.look(there, streams, delays)
        self._windows = together(part.windows for part in self.parts)
        total = total_iops(list(self._windows.values()))
        if total is not None:
            self.capacity.add(total, asked_for_more=any(part.asked_for_more for part in self.parts))

    def left_out(self, slos: Mapping[str, Slo], weighted: Collection[str]) -> str:
        """What a dry run does not do, as limits are found by trying them; empty where nothing is left out."""
        here = {vm: slos[vm] for vm in self._windows if vm in slos}
        kept = [f"a minimum for {vm}" for vm, slo in sorted(here.items()) if slo.min_iops is not None]
        if self._is_shared_by_limits(here, weighted):
            kept.append("shares by weight between namespaces of the drive")
        if not kept:
            return ""
        return (
            f"to keep {and_list(kept)}, others would be limited: how far is found by trying, not by a dry run"
        )

    def protect(
        self, slos: Mapping[str, Slo], limitable: Collection[tuple[str, str]], weighted: Collection[str]
    ) -> None:
        """Decide who is held back until the next epoch so that others have what they were promised.

        `limitable` says whose IOPS can be limited, by VM and device; `weighted` are the VMs whose weight
        somebody promised.
        """
        here = {vm: slos[vm] for vm in self._windows if vm in slos}
        can = {vm for vm in here if all((vm, part.name) in limitable for part in self._on(vm))}
        self.guard.decide(
            here,
            can,
            busy={vm for vm in here if self._looks_busy(vm)},
            waf=self._waf(),
            by_weight=self._is_shared_by_limits(here, weighted),
        )

    def _is_shared_by_limits(self, vms: Iterable[str], weighted: Collection[str]) -> bool:
        """Whether VMs on several namespaces ask for shares: on one alone the kernel's weights count."""
        active = [vm for vm in vms if self._on(vm)]
        used = {part.name for vm in active for part in self._on(vm)}
        return len(active) > 1 and len(used) > 1 and any(vm in weighted for vm in active)

    def _on(self, vm: str) -> list[BlockPart]:
        """Where it did anything in the status window."""
        return [part for part in self.parts if vm in part.active]

    def _waf(self) -> float | None:
        """Of the drive; None where its namespaces have several, as each endurance group has one."""
        told = [part.waf for part in self.parts]
        known = {waf.scope: waf.waf for waf in told if waf is not None}
        return next(iter(known.values())) if len(known) == 1 and None not in told else None

    def _looks_busy(self, vm: str) -> bool:
        served = self.guard.serves(vm)
        return any(part.looks_busy(vm, served=served) for part in self._on(vm))

    def wants_more(self, vm: str) -> tuple[bool, bool]:
        """Whether a VM would have taken more, and whether that is a guess."""
        # What threads wait for is known of all devices together.
        waited = next((waits for part in self._on(vm) if (waits := part.waits(vm)) is not None), None)
        if waited is not None:
            return waited, False
        # What waits for its own limit keeps no device busy.
        return self._looks_busy(vm) or self.guard.holds(vm), True

    def is_on_several(self, vm: str) -> bool:
        """Whether it uses several namespaces of the drive."""
        return len(self._on(vm)) > 1

    def iops_of(self, vm: str) -> float | None:
        """On all of them."""
        return self._windows[vm].iops if vm in self._windows else None

    def shared(self, part: BlockPart) -> Shared:
        """What VMs on a part are judged by: the drive where shares of it are kept, else that block device."""
        windows = self._windows if self.guard.by_weight else part.windows
        total = total_iops(list(windows.values()))
        asking = {vm: self.slos[vm] for vm, window in windows.items() if vm in self.slos and window.iops}
        return Shared(due_shares(asking, total), total, self.guard.by_weight)
