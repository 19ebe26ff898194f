"""Limits on VMs of a block device or drive that keep the SLOs of other VMs, from epoch to epoch."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from statistics import median

from slo_ctl.base.text import and_list
from slo_ctl.daemon.device import total_iops
from slo_ctl.decide.entitlement import BUSY_FROM
from slo_ctl.decide.levers import Throttle
from slo_ctl.decide.limit_control import limits_text
from slo_ctl.decide.protection import Contender, Protection, split_limit, step
from slo_ctl.host.task_delay import BlockDelay
from slo_ctl.model.host import DeviceNumber
from slo_ctl.model.sample import VmSample
from slo_ctl.model.slo import Slo
from slo_ctl.observe.block import BlockDevice, StreamsByDevice, merge_windows

_MIN_WAITS_PER_REQUEST = 0.5
"""With fewer waits the VM's requests are asynchronous, and no thread waits for them."""


class BlockDemand:
    """Demand of all VMs on one device in a window, from the time that their threads waited for block I/O."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._readings: dict[str, deque[tuple[BlockDelay, float]]] = {}
        """By VM: delays in an interval, and requests in it."""

    def add(self, vm: str, delay: BlockDelay, iops: float) -> None:
        """Add a reading of a VM that did `iops` in the interval."""
        readings = self._readings.setdefault(vm, deque())
        readings.append((delay, iops * delay.window_s))
        length_s = sum(reading.window_s for reading, _ in readings)
        while len(readings) > 1 and length_s - readings[0][0].window_s >= self._window_s:
            length_s -= readings.popleft()[0].window_s

    def keep(self, vms: Collection[str]) -> None:
        """Drop the readings of all other VMs."""
        self._readings = {vm: readings for vm, readings in self._readings.items() if vm in vms}

    def wants_more(self, vm: str) -> bool | None:
        """Whether the VM wanted more than it got: its threads waited nearly all of the time, added up.

        None if that is unknown, because its requests are asynchronous.
        """
        readings = self._readings.get(vm)
        if not readings:
            return None
        length_s = sum(delay.window_s for delay, _ in readings)
        requests = sum(count for _, count in readings)
        waits = sum(delay.waits for delay, _ in readings)
        if length_s <= 0 or waits < _MIN_WAITS_PER_REQUEST * requests:
            return None
        return sum(delay.delay_s for delay, _ in readings) >= BUSY_FROM * length_s


WINDOW_S = 1.0
"""Window of decisions: the status window is too long to see the effect of a limit."""
P99_LAG_S = 2.0
"""Age of the oldest request in a p99 beyond its window: histograms are read once a second, and a window
begins with a reading before it."""
MAX_UNAPPLIED_EPOCHS = 10
"""Consecutive epochs for which limits stay unchanged while one of them could not be applied."""


class Throttler:
    """Throttles VMs on a block device, or on all namespaces of a drive.

    Its state is not stored: the journal has the limits in force, so that the next start of the daemon
    restores them and determines anew which limits are needed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.by_weight = False
        """Whether limits keep shares by weight, too."""
        self.granted_iops: Mapping[tuple[str, DeviceNumber], float] = {}
        """Rate that a limit really allows, by VM and device, if it differs from the limit."""
        self._devices: dict[DeviceNumber, BlockDevice] = {}
        self._windows: dict[str, VmSample] = {}
        self._demand = BlockDemand(WINDOW_S)
        self._clock = clock
        self._decided_at_s = clock()
        self._epochs_s: deque[float] = deque(maxlen=9)
        self._protection = Protection()
        self._unapplied_epochs = 0
        self._is_needed = False
        self._parts: dict[str, dict[DeviceNumber, float]] = {}
        """Limits by VM and device, in IOPS."""

    def observe(
        self, devices: Iterable[DeviceNumber], streams: StreamsByDevice, delays: Mapping[str, BlockDelay]
    ) -> None:
        """Add the counters of an epoch, if an SLO needs limits."""
        if not self._is_needed:
            self._devices = {}
            return
        self._devices = {
            number: self._devices.get(number) or BlockDevice(number, window_s=WINDOW_S, clock=self._clock)
            for number in devices
        }
        for device in self._devices.values():
            device.update(streams.get(device.number, ()))
        self._windows = merge_by_vm(device.windows for device in self._devices.values())
        active = {vm for vm, window in self._windows.items() if window.iops}
        self._demand.keep(active)
        for vm in active & delays.keys():
            self._demand.add(vm, delays[vm], self._windows[vm].iops or 0.0)

    def decide(
        self,
        slos: Mapping[str, Slo],
        *,
        is_limitable: Callable[[str], bool],
        is_busy: Callable[[str], bool],
        by_weight: bool,
        p99s_us: Mapping[str, float],
        p99_window_s: float,
        unapplied: Collection[str] = (),
    ) -> None:
        """Set the limits for the next epoch.

        `slos`: of the VMs on the devices. `is_limitable`: whether the IOPS of a VM can be limited. `is_busy`:
        whether its device is busy, which is used if its demand is unknown. `by_weight`: keep shares, too.
        `p99s_us`: measured p99 in a window of `p99_window_s`, which is longer than that of rates, because few
        requests have none. `unapplied`: VMs whose limit could not be applied; while a limit is not in force,
        its effect cannot be measured, so all limits stay unchanged.
        """
        now_s = self._clock()
        epoch_s, self._decided_at_s = now_s - self._decided_at_s, now_s
        # `vm set` starts an epoch at once, which may follow the one before by an instant; the next do not.
        self._epochs_s.append(epoch_s)
        epoch_s = max(epoch_s, median(self._epochs_s))
        is_needed = by_weight or any(
            slo.min_iops is not None or (slo.p99_latency_us is not None and vm in p99s_us)
            for vm, slo in slos.items()
        )
        self.by_weight = by_weight
        if not is_needed or not self._is_needed:
            # Windows begin with the next epoch.
            self._is_needed, self._protection, self._parts = is_needed, Protection(), {}
            return
        has_unapplied = any(vm in unapplied for vm in self._protection.limits)
        self._unapplied_epochs = self._unapplied_epochs + 1 if has_unapplied else 0
        if has_unapplied and self._unapplied_epochs <= MAX_UNAPPLIED_EPOCHS:
            return
        windows = {vm: window for vm, window in self._windows.items() if vm in slos}
        window_s = max((window.window_s for window in windows.values()), default=0.0)
        if window_s < WINDOW_S or total_iops(self._windows.values()) is None:
            return
        vms = [
            self._contender(
                vm, slos[vm], window, p99s_us.get(vm), limitable=is_limitable(vm), busy=is_busy(vm)
            )
            for vm, window in windows.items()
        ]
        self._protection = step(
            self._protection,
            vms,
            by_weight=by_weight,
            effect_steps=_effect_steps(window_s, epoch_s),
            p99_effect_steps=_effect_steps(p99_window_s + P99_LAG_S, epoch_s),
        )
        self._parts = {vm: self._split(vm, limit) for vm, limit in self._protection.limits.items()}

    def _contender(
        self, vm: str, slo: Slo, window: VmSample, p99_us: float | None, *, limitable: bool, busy: bool
    ) -> Contender:
        demand = self._demand.wants_more(vm)
        wants_more = bool(window.iops) and (busy if demand is None else demand)
        granted = sum(self._granted(vm).values()) if vm in self._parts else None
        return Contender(vm, slo, window.iops or 0.0, wants_more, limitable, p99_us, granted)

    def _split(self, vm: str, limit_iops: float) -> dict[DeviceNumber, float]:
        iops = {
            number: device.windows[vm].iops or 0.0
            for number, device in self._devices.items()
            if vm in device.windows
        }
        return split_limit(limit_iops, iops, self._parts.get(vm, {}), self._granted(vm))

    def _granted(self, vm: str) -> dict[DeviceNumber, float]:
        """Rates that the parts of the VM's limit really allow."""
        parts = self._parts.get(vm, {})
        return {number: self.granted_iops.get((vm, number), part) for number, part in parts.items()}

    @property
    def throttles(self) -> dict[tuple[str, DeviceNumber], Throttle]:
        limits, protected = self._protection.limits, self._protection.state.beneficiaries
        return {
            (vm, number): Throttle(iops, protected, limits[vm] if len(parts) > 1 else None)
            for vm, parts in self._parts.items()
            for number, iops in parts.items()
        }

    def is_throttled(self, vm: str) -> bool:
        return vm in self._parts

    def protects(self, vm: str) -> bool:
        """Whether others are throttled for the VM."""
        return vm in self._protection.protected_vms

    def reasons(self, vms: Collection[str]) -> tuple[str, ...]:
        """Reasons for a device with these VMs, one sentence each."""
        limits = self._limits_text(vms)
        return (limits, *self._protection.notes) if limits else self._protection.notes

    def remark(self, vm: str) -> str:
        """Remark added to a VM's verdict; may be empty."""
        if vm in self._parts:
            granted = sum(self._granted(vm).values())
            return f"limited to {granted:,.0f} IOPS for {and_list(self._protection.state.beneficiaries)}"
        return self._limits_text() if vm in self._protection.protected_vms else ""

    def _limits_text(self, vms: Collection[str] | None = None) -> str:
        limits = {vm: sum(self._granted(vm).values()) for vm in self._parts}
        return limits_text(limits, self._protection.state.beneficiaries, vms)


def _effect_steps(window_s: float, epoch_s: float) -> int:
    """Epochs until a window contains nothing from before a change."""
    return max(1, math.ceil(window_s / epoch_s)) if epoch_s > 0.0 else 1


def merge_by_vm(devices: Iterable[Mapping[str, VmSample]]) -> dict[str, VmSample]:
    """Windows of each VM on several devices as one; `devices` have the windows by VM."""
    by_vm: dict[str, list[VmSample]] = defaultdict(list)
    for windows in devices:
        for vm, window in windows.items():
            by_vm[vm].append(window)
    return {vm: merge_windows(windows) for vm, windows in by_vm.items()}
