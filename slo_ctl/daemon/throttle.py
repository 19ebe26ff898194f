"""Limits on some VMs of a block device or drive for others: who wants more, and what to decide from."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from statistics import median

from slo_ctl.base.text import and_list
from slo_ctl.daemon.device_view import total_iops
from slo_ctl.decide.entitlement import BUSY_FROM
from slo_ctl.decide.levers import Throttle
from slo_ctl.decide.limit_control import limits_text
from slo_ctl.decide.protection import Contender, Protection, split_limit, step
from slo_ctl.host.task_delay import BlockDelay
from slo_ctl.model import DeviceNumber, Slo, StreamWindow
from slo_ctl.observe.block import BlockDevice, StreamsByDevice, joined

_SEEN_FROM = 0.5
"""Waits for each request: with fewer the VM's requests are asynchronous, and no thread waits for them."""


class BlockDemand:
    """Demand of all VMs on one device, over the status window."""

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
        """Whether it would have taken more; None where waiting says nothing about it.

        Threads that wait for nearly all of the time, added up, would take more if they could.
        """
        seen = self._seen.get(vm)
        if not seen:
            return None
        length_s = sum(delay.window_s for delay, _ in seen)
        requests = sum(each for _, each in seen)
        waits = sum(delay.waits for delay, _ in seen)
        if length_s <= 0 or waits < _SEEN_FROM * requests:
            return None
        return sum(delay.delay_s for delay, _ in seen) >= BUSY_FROM * length_s


# What is kept by throttling VMs, on a block device or among the namespaces of a drive: what
# `decide.protection` has to know of a short window, and what it says.

WINDOW_S = 1.0
"""Window of decisions: the status window is too long to see the effect of a limit."""
P99_LAGS_S = 2.0
"""Age of the oldest request that a p99 covers, beyond its window: histograms are read once a second, and a
window begins with a reading before it."""
WAITS_FOR = 10
"""Epochs in a row that a limit is waited for which was set and is not in force."""


class Throttler:
    """From epoch to epoch, of one block device or all namespaces of a drive.

    Nothing of it outlives the daemon: limits in force are in the journal, so that the next start restores
    limits and relearns which ones it needs.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.by_weight = False
        """Whether it keeps shares by weight, too."""
        self.granted_iops: Mapping[tuple[str, DeviceNumber], float] = {}
        """What limits in force really grant, by VM and device; where it is not known, all of them."""
        self._recent: dict[DeviceNumber, BlockDevice] = {}
        self._windows: dict[str, StreamWindow] = {}
        self._demand = BlockDemand(WINDOW_S)
        self._clock = clock
        self._decided_at_s = clock()
        self._lengths_s: deque[float] = deque(maxlen=9)
        self._protection = Protection()
        self._waited = 0
        self._needed = False
        self._parts: dict[str, dict[DeviceNumber, float]] = {}

    def observe(
        self,
        devices: Mapping[DeviceNumber, Path],
        streams: StreamsByDevice,
        delays: Mapping[str, BlockDelay],
    ) -> None:
        """Take an epoch into account, where something has to be kept."""
        if not self._needed:
            self._recent = {}
            return
        self._recent = {
            number: self._recent.get(number) or self._new_device(number, path)
            for number, path in devices.items()
        }
        for device in self._recent.values():
            device.update(streams.get(device.number, ()))
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
        by_weight: bool,
        p99s_us: Mapping[str, float],
        p99_window_s: float,
        unapplied: Collection[str] = (),
    ) -> None:
        """The VMs to throttle until the next epoch.

        `slos` are those of the VMs there, `limitable` those whose IOPS can be limited; `busy` are those whose
        device is busy, which counts where it is not known whether a VM wants more. `by_weight`: shares are to
        be kept too. `p99s_us` are those that are measured, over `p99_window_s`: longer than the window of
        rates, as few requests have no p99. While a limit is among the `unapplied`, all stay for some epochs:
        what is not in force shows nothing of what it would do.
        """
        now_s = self._clock()
        length_s, self._decided_at_s = now_s - self._decided_at_s, now_s
        # `vm set` starts an epoch at once, which may follow the one before by an instant; the next do not.
        self._lengths_s.append(length_s)
        length_s = max(length_s, median(self._lengths_s))
        needed = by_weight or any(
            slo.min_iops is not None or (slo.p99_latency_us is not None and vm in p99s_us)
            for vm, slo in slos.items()
        )
        self.by_weight = by_weight
        if not needed or not self._needed:
            # From the next look on; what was before is not a valid window.
            self._needed, self._protection, self._parts = needed, Protection(), {}
            return
        waits = any(vm in unapplied for vm in self._protection.limits)
        self._waited = self._waited + 1 if waits else 0
        if waits and self._waited <= WAITS_FOR:
            return
        windows = {vm: window for vm, window in self._windows.items() if vm in slos}
        window_s = max((window.window_s for window in windows.values()), default=0.0)
        if window_s < WINDOW_S or total_iops(self._windows.values()) is None:
            return
        vms = [
            self._contender(
                *(vm, slos[vm], window, p99s_us.get(vm)), limitable=vm in limitable, busy=vm in busy
            )
            for vm, window in windows.items()
        ]
        self._protection = step(
            self._protection,
            vms,
            by_weight=by_weight,
            effect_steps=_steps(window_s, length_s),
            p99_effect_steps=_steps(p99_window_s + P99_LAGS_S, length_s),
        )
        self._parts = {vm: self._split(vm, limit) for vm, limit in self._protection.limits.items()}

    def _contender(
        self, vm: str, slo: Slo, window: StreamWindow, p99_us: float | None, *, limitable: bool, busy: bool
    ) -> Contender:
        waited = self._demand.wants_more(vm)
        asks = bool(window.iops) and (busy if waited is None else waited)
        granted = sum(self._granted(vm).values()) if vm in self._parts else None
        return Contender(vm, slo, window.iops or 0.0, asks, limitable, p99_us, granted)

    def _new_device(self, number: DeviceNumber, path: Path) -> BlockDevice:
        return BlockDevice("", path, number, window_s=WINDOW_S, clock=self._clock)

    def _split(self, vm: str, limit_iops: float) -> dict[DeviceNumber, float]:
        on = {number: each.windows[vm] for number, each in self._recent.items() if vm in each.windows}
        iops = {number: window.iops or 0.0 for number, window in on.items()}
        return split_limit(limit_iops, iops, self._parts.get(vm, {}), self._granted(vm))

    def _granted(self, vm: str) -> dict[DeviceNumber, float]:
        """What is granted of each part of its limit."""
        parts = self._parts.get(vm, {})
        return {number: self.granted_iops.get((vm, number), part) for number, part in parts.items()}

    @property
    def throttles(self) -> dict[tuple[str, DeviceNumber], Throttle]:
        """Throttled VMs, by device."""
        limits, served = self._protection.limits, self._protection.state.beneficiaries
        return {
            (vm, number): Throttle(iops, served, limits[vm] if len(parts) > 1 else None)
            for vm, parts in self._parts.items()
            for number, iops in parts.items()
        }

    def holds(self, vm: str) -> bool:
        """Whether it is throttled."""
        return vm in self._parts

    def serves(self, vm: str) -> bool:
        """Whether others are throttled for it."""
        return vm in self._protection.protected_vms

    def reasons(self, vms: Collection[str]) -> tuple[str, ...]:
        """Reasons for a device that has these VMs, one sentence each."""
        done = self._limited(vms)
        return (done, *self._protection.notes) if done else self._protection.notes

    def remark(self, vm: str) -> str:
        """Remark added to a VM's verdict; may be empty."""
        if vm in self._parts:
            granted = sum(self._granted(vm).values())
            return f"limited to {granted:,.0f} IOPS for {and_list(self._protection.state.beneficiaries)}"
        return self._limited() if vm in self._protection.protected_vms else ""

    def _limited(self, vms: Collection[str] | None = None) -> str:
        limits = {vm: sum(self._granted(vm).values()) for vm in self._parts}
        return limits_text(limits, self._protection.state.beneficiaries, vms)


def _steps(window_s: float, length_s: float) -> int:
    """Steps until a window has nothing from before a change."""
    return max(1, math.ceil(window_s / length_s)) if length_s > 0.0 else 1


def together(devices: Iterable[Mapping[str, StreamWindow]]) -> dict[str, StreamWindow]:
    """Activity of each VM on several devices."""
    of_vm: dict[str, list[StreamWindow]] = defaultdict(list)
    for windows in devices:
        for vm, window in windows.items():
            of_vm[vm].append(window)
    return {vm: joined(windows) for vm, windows in of_vm.items()}
