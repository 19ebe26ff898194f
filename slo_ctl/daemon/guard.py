"""What is kept by holding VMs back, on a block device or among the namespaces of a drive: what
`decide.protection` has to know of a short window, and what it says."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING

from slo_ctl.daemon.block_demand import BlockDemand
from slo_ctl.daemon.parts import total_iops
from slo_ctl.decide.deliverable import Deliverable
from slo_ctl.decide.drive_split import split_limit
from slo_ctl.decide.dues import Contender
from slo_ctl.decide.limit_settings import HeldBack
from slo_ctl.decide.protection import Protection, step
from slo_ctl.observe.block import BlockDevice
from slo_ctl.observe.window import StreamWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from slo_ctl.model import DeviceNumber, Slo, Stream
    from slo_ctl.observe.task_delay import BlockDelay

WINDOW_S = 1.0
"""What is decided by: the status window is too long to see what a limit did."""


class Guard:
    """From epoch to epoch, of one block device or all namespaces of a drive.

    Nothing of it outlives the daemon: limits in force are in the journal, so that a new start gives them back
    and finds out again what it takes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.by_weight = False
        """It keeps shares by weight too."""
        self._recent: dict[DeviceNumber, BlockDevice] = {}
        self._windows: dict[str, StreamWindow] = {}
        self._demand = BlockDemand(WINDOW_S)
        self._clock = clock
        self._decided_at_s = clock()
        self._deliverable = Deliverable()
        self._protection = Protection()
        self._needed = False
        self._parts: dict[str, dict[DeviceNumber, float]] = {}

    def look(
        self,
        devices: Mapping[DeviceNumber, Path],
        streams: Sequence[Stream],
        delays: Mapping[str, BlockDelay],
    ) -> None:
        """Take an epoch into account, where something has to be kept."""
        if not self._needed:
            self._recent = {}
            return
        self._recent = {
            number: self._recent.get(number) or self._made(number, path) for number, path in devices.items()
        }
        for device in self._recent.values():
            device.update(streams)
        self._windows = together(device.windows for device in self._recent.values())
        active = {vm for vm, window in self._windows.items() if window.iops}
        self._demand.keep(active)
        for vm in active & delays.keys():
            self._demand.add(vm, delays[vm], self._windows[vm].iops or 0.0)

    def decide(
        self,
        slos: Mapping[str, Slo],
        limitable: Collection[str],
        *,
        busy: Collection[str],
        waf: float | None,
        by_weight: bool,
    ) -> None:
        """Whom to hold back until the next epoch.

        `slos` are those of the VMs there, `limitable` those whose IOPS can be limited; `busy` are those whose
        device is busy, which is what is guessed by where nobody tells whether a VM wants more. `waf` is
        that of the drive, where it is known. `by_weight`: shares are to be kept too.
        """
        now_s = self._clock()
        length_s, self._decided_at_s = now_s - self._decided_at_s, now_s
        needed = by_weight or any(slo.min_iops is not None for slo in slos.values())
        self.by_weight = by_weight
        if not needed or not self._needed:
            # From the next look on; what was before is no window.
            self._needed, self._protection, self._parts = needed, Protection(), {}
            return
        windows = {vm: window for vm, window in self._windows.items() if vm in slos}
        window_s = max((window.window_s for window in windows.values()), default=0.0)
        total = total_iops(list(self._windows.values()))
        if window_s < WINDOW_S or total is None:
            return
        vms = [
            self._contender(vm, slos[vm], window, limitable=vm in limitable, busy=vm in busy)
            for vm, window in windows.items()
        ]
        writes = sum(window.write_iops or 0.0 for window in self._windows.values())
        write_share = writes / total if total > 0 else 0.0
        self._deliverable = self._deliverable.after(
            total,
            length_s,
            wanted_more=any(vm.wants_more for vm in vms),
            held=bool(self._protection.limits),
            short=self._protection.at_due,
            waf=waf,
            write_share=write_share,
            by_weight=by_weight,
            trying=self._protection.at_due_s > 0,
            in_vain=self._protection.gave_up,
        )
        deliverable = self._deliverable.at(waf, write_share)
        self._protection = step(self._protection, vms, deliverable, length_s, window_s, by_weight=by_weight)
        self._parts = {vm: self._split(vm, limit) for vm, limit in self._protection.limits.items()}

    def _contender(
        self, vm: str, slo: Slo, window: StreamWindow, *, limitable: bool, busy: bool
    ) -> Contender:
        waited = self._demand.wants_more(vm)
        asks = bool(window.iops) and (busy if waited is None else waited)
        known = [p99 for p99 in (window.p99_read_us, window.p99_write_us) if p99 is not None]
        return Contender(vm, slo, window.iops or 0.0, asks, limitable, max(known, default=None))

    def _made(self, number: DeviceNumber, path: Path) -> BlockDevice:
        return BlockDevice("", path, number, window_s=WINDOW_S, clock=self._clock)

    def _split(self, vm: str, limit_iops: float) -> dict[DeviceNumber, float]:
        on = {number: each.windows[vm] for number, each in self._recent.items() if vm in each.windows}
        iops = {number: window.iops or 0.0 for number, window in on.items()}
        return split_limit(limit_iops, iops, self._parts.get(vm, {}))

    @property
    def held(self) -> dict[tuple[str, DeviceNumber], HeldBack]:
        """Who is held back where."""
        limits, served = self._protection.limits, self._protection.beneficiaries
        return {
            (vm, number): HeldBack(iops, served, limits[vm] if len(parts) > 1 else None)
            for vm, parts in self._parts.items()
            for number, iops in parts.items()
        }

    def holds(self, vm: str) -> bool:
        """Whether it is held back."""
        return vm in self._parts

    def serves(self, vm: str) -> bool:
        """Whether others are held back for it."""
        return vm in self._protection.served

    def told(self, vms: Collection[str]) -> tuple[str, ...]:
        """Of a device that has these VMs, one sentence each."""
        done = _limited(self._protection, vms)
        return (done, *self._protection.told) if done else self._protection.told

    def aside(self, vm: str) -> str:
        """What has to be said of a VM beside its verdict; empty when nothing has."""
        protection = self._protection
        if vm in protection.limits:
            return f"limited to {protection.limits[vm]:,.0f} IOPS for {and_list(protection.beneficiaries)}"
        if vm not in protection.served:
            return ""
        if protection.at_due:
            return "nobody else has more than is due there" + (
                f": {_limited(protection)}" if protection.limits else ""
            )
        return _limited(protection)


def together(devices: Iterable[Mapping[str, StreamWindow]]) -> dict[str, StreamWindow]:
    """What each VM did on several devices: the sums, over the longest window."""
    of_vm: dict[str, list[StreamWindow]] = defaultdict(list)
    for windows in devices:
        for vm, window in windows.items():
            of_vm[vm].append(window)
    return {vm: windows[0] if len(windows) == 1 else _sum(windows) for vm, windows in of_vm.items()}


def _sum(windows: Sequence[StreamWindow]) -> StreamWindow:
    def sum_of(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    return StreamWindow(
        vm=windows[0].vm,
        window_s=max(window.window_s for window in windows),
        iops=sum_of(window.iops for window in windows),
        read_iops=sum_of(window.read_iops for window in windows),
        write_iops=sum_of(window.write_iops for window in windows),
        bandwidth_bytes_s=sum_of(window.bandwidth_bytes_s for window in windows),
    )


def _limited(protection: Protection, vms: Collection[str] | None = None) -> str:
    """Who is limited; `vms`: of these."""
    limited = {vm: limit for vm, limit in protection.limits.items() if vms is None or vm in vms}
    if not limited:
        return ""
    names, limits = zip(*sorted(limited.items()), strict=True)
    verb = "is" if len(names) == 1 else "are"
    figures = and_list([f"{limit:,.0f}" for limit in limits])
    return f"{and_list(names)} {verb} limited to {figures} IOPS for {and_list(protection.beneficiaries)}"


def and_list(words: Collection[str]) -> str:
    """As in a sentence."""
    *first, last = words or ("nobody",)
    return f"{', '.join(first)} and {last}" if first else last
