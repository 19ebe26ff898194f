"""A block device of the host with its VMs, and the pool that they share: that device or a whole drive."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slo_ctl.base.errors import ObserveGone
from slo_ctl.base.kernel_files import read_bounded, read_text
from slo_ctl.base.text import and_list
from slo_ctl.daemon.device import (
    DeviceView,
    EntitlementChanges,
    MeasuredCapacity,
    WindowedMaximums,
    total_iops,
)
from slo_ctl.daemon.files import DeviceClaims
from slo_ctl.daemon.nvme import DriveOpsControl, NvmeState, NvmeWatches, OpsRequest
from slo_ctl.daemon.throttle import BlockDemand, Throttler, merge_by_vm
from slo_ctl.decide.entitlement import BUSY_FROM, shares_of, with_bandwidth_as_iops
from slo_ctl.decide.levers import Wanted
from slo_ctl.decide.verdict import Delivered
from slo_ctl.host.block_device import device_behind
from slo_ctl.host.nvme.drive import drive_of, nsid_of
from slo_ctl.host.task_delay import BlockDelay
from slo_ctl.model.host import DeviceNumber, DiskLatency
from slo_ctl.model.sample import DeviceWaf, VmSample
from slo_ctl.model.slo import Slo
from slo_ctl.observe.block import BlockDevice, StreamsByDevice

_PROTECTED_BUSY_FROM = 0.5
"""Utilisation of a namespace from which its only VM, if it is protected, is assumed to want more."""
_BUSY_MS_FIELD = 9
"""Field of `/sys/dev/block/M:N/stat`: milliseconds with requests on the device."""
_MS_PER_S = 1e3
SHARE_TOLERANCE = 0.15
"""Part of a share that may be missed: bfq is not more exact within a window."""


class ManagedBlock:
    """A block device of the configuration, which may be detached and return with another number."""

    kind = "block"

    def __init__(
        self,
        name: str,
        path: Path,
        sys: Path,
        window_s: float,
        watches: NvmeWatches,
        clock: Callable[[], float] = time.monotonic,
        claims: DeviceClaims | None = None,
    ) -> None:
        """`claims`: of this daemon; None: it sets nothing."""
        self.name = name
        self.path = path
        self.drive: str | None = None
        """The NVMe drive of which it is a namespace; None: it is not one."""
        self.nsid: int | None = None
        """Identifier of that namespace, if known."""
        self._sys = sys
        self._window_s = window_s
        self._clock = clock
        self._device: BlockDevice | None = None
        self.active: frozenset[str] = frozenset()
        """VMs with I/O in the status window."""
        self._watches = watches
        self._claims = claims
        self._namespace: str | None = None
        self._busy_ms: tuple[float, int] | None = None
        """Time and value of the last reading of `_BUSY_MS_FIELD`."""
        self._utilisation = 0.0
        self._demand = BlockDemand(window_s)
        self._maximums = WindowedMaximums(window_s)

    @property
    def number(self) -> DeviceNumber | None:
        """Device number in the statistics of cgroups; None while the device does not exist."""
        return self._device.number if self._device is not None else None

    @property
    def windows(self) -> dict[str, VmSample]:
        return self._device.windows if self._device is not None else {}

    @property
    def vms_with_histogram(self) -> set[str]:
        """VMs whose percentiles are known."""
        return self._device.vms_with_histogram if self._device is not None else set()

    def wants_more(self, vm: str) -> bool | None:
        """Whether the VM wanted more than it got, by the waits of its threads; None: unknown."""
        return self._demand.wants_more(vm)

    def is_busy_for(self, vm: str, *, protected: bool) -> bool:
        """Whether the utilisation suggests that the VM wants more.

        Limits on others for a `protected` VM lower the utilisation, not the VM's demand. So its demand is
        assumed to persist, unless it has a namespace of its own that is idle half of the time.
        """
        if self._utilisation >= BUSY_FROM:
            return True
        return protected and (self.active != {vm} or self._utilisation >= _PROTECTED_BUSY_FROM)

    @property
    def has_demand(self) -> bool:
        """Whether a VM wanted more of the device than it got."""
        return self._utilisation >= BUSY_FROM or any(self._demand.wants_more(vm) for vm in self.active)

    @property
    def nvme(self) -> NvmeState:
        """Latest data of its NVMe drive."""
        return self._watches.state(self._namespace) if self._namespace is not None else NvmeState(waf=None)

    @property
    def waf(self) -> DeviceWaf | None:
        """Measured WAF and its scope; None if it is unknown or emulated."""
        waf = self.nvme.waf
        # The figures of an emulator say nothing about the capacity of its drive.
        return waf if waf is not None and waf.waf is not None and not waf.emulated else None

    def move_ops(self, requests: Iterable[OpsRequest]) -> None:
        """Request moves of OPS from its drive. Never blocks."""
        if self._namespace is not None:
            self._watches.move_ops(self._namespace, requests)

    def find(self) -> None:
        """Find the device. Raises ObserveGone if it does not exist, or another daemon manages it."""
        try:
            number = device_behind(str(self.path), self._sys)
        except OSError as error:
            raise self.gone(f": {error.strerror}") from None
        if number is None or not self.path.is_block_device():
            raise self.gone(" is neither a block device nor an NVMe controller")
        if read_text(self._sys / "dev" / "block" / str(number) / "size").strip() == "0":
            # A loop or NBD device stays when its file or server is detached.
            raise self.gone(" has size 0: nothing is attached to it")
        if self._claims is not None and (holder := self._claims.take(number)):
            raise self.gone(f" is managed by another daemon ({holder}): stop it, or leave the device to it")
        if self._device is None or self._device.number != number:
            self.drive, self.nsid = drive_of(number, self._sys), nsid_of(number, self._sys)
            self._device = BlockDevice(number, window_s=self._window_s, clock=self._clock)
            self.active = frozenset()
            self._busy_ms = None
            self.close()
            self._namespace = self._watches.join(number)

    def gone(self, why: str) -> ObserveGone:
        """The error for a device that cannot be managed, which is then not."""
        self._device, self.active = None, frozenset()
        return ObserveGone(f"{self.path}{why}")

    def close(self) -> None:
        """Stop watching the drive."""
        if self._namespace is not None:
            self._watches.leave(self._namespace)
            self._namespace = None

    def observe(
        self,
        streams: StreamsByDevice,
        delays: Mapping[str, BlockDelay],
        latencies: Mapping[str, Mapping[DeviceNumber, Sequence[DiskLatency]]],
    ) -> None:
        """Add the counters of an epoch, after `find`. `latencies`: of disks, by VM and device."""
        if self._device is None:
            return
        number = self._device.number
        own_latencies = {vm: by_device[number] for vm, by_device in latencies.items() if number in by_device}
        windows = self._device.update(streams.get(number, ()), own_latencies)
        self.active = frozenset(vm for vm, window in windows.items() if window.iops)
        self._utilisation = self._read_utilisation(number)
        self._demand.keep(self.active)
        for vm in self.active & delays.keys():
            self._demand.add(vm, delays[vm], windows[vm].iops or 0.0)

    def _read_utilisation(self, number: DeviceNumber) -> float:
        """Share of the time since the last call with requests on the device."""
        file = read_bounded(self._sys / "dev" / "block" / str(number) / "stat")
        fields = file.text.split() if file else []
        if len(fields) <= _BUSY_MS_FIELD or not fields[_BUSY_MS_FIELD].isdigit():
            return 1.0  # If it is unknown, a VM that misses its share is assumed to want it.
        now_s, busy_ms = self._clock(), int(fields[_BUSY_MS_FIELD])
        last, self._busy_ms = self._busy_ms, (now_s, busy_ms)
        if last is None or now_s <= last[0]:
            return 0.0
        return (busy_ms - last[1]) / (_MS_PER_S * (now_s - last[0]))

    def view(
        self,
        slos: Mapping[str, Slo],
        disks: Mapping[str, tuple[str, ...]],
        copied: Mapping[str, tuple[str, ...]],
        wanted: Wanted,
        pool: Pool,
        ops: DriveOpsControl | None,
        change: str = "",
    ) -> DeviceView:
        """View for the status.

        `slos` and `disks`: SLOs of its VMs, and the names of their disks on it. `copied`: names of disks that
        are copied to it. `pool`: the pool of the device. `ops`: OPS of its drive, if it is reported.
        `change`: one of its scheduler in the window, that may explain a missed share; may be empty.
        """
        enforced = {vm: slo for vm, slo in slos.items() if (vm, self.name) in wanted.maximum_slack}
        self._maximums.add(enforced, self._clock())
        total = pool.share_total(self)
        nvme = self.nvme
        backends = sorted({wanted.backends.get((vm, self.name), "none") for vm in slos})
        windows = self.windows
        if ops is not None and self.nsid is not None and len(slos) == 1:
            windows = {vm: ops.with_ops(self.nsid, window) for vm, window in windows.items() if vm in slos}
        settling = pool.settling or change
        views = {}
        for vm in slos:
            key = vm, self.name
            wants_more, guessed = pool.wants_more(vm)
            window = windows.get(vm) or VmSample(vm, 0.0)
            drive_iops = pool.iops_of(vm) if pool.uses_several(vm) else None
            by_qemu = bool(disks.get(vm))
            # The kernel may have split each of the requests that QEMU limits into many.
            is_unknown = by_qemu and window.guest_iops is None
            views[vm] = Delivered(
                window,
                asked=bool(window.iops),
                disks=disks.get(vm, ()),
                copied=copied.get(vm, ()),
                wants_more=wants_more,
                guessed=guessed,
                share=total.share(window.iops if drive_iops is None else drive_iops),
                of_drive=total.of_drive and total.iops is not None,
                share_tolerance=SHARE_TOLERANCE,
                target_share=total.shares.get(vm),
                target_iops=total.target_iops(vm),
                drive_iops=drive_iops,
                no_mechanism=wanted.no_mechanism.get(key, ""),
                maximum_slack_iops=wanted.maximum_slack.get(key),
                limited_iops=window.guest_iops if by_qemu else None,
                highest_maximum_iops=None if is_unknown else self._maximums.highest_iops(vm),
                remark=pool.throttler.remark(vm),
                settling=settling,
            )
        return DeviceView(
            name=self.name,
            kind=self.kind,
            backend=", ".join(backends),
            policy="",
            window_s=self._window_s,
            iops=total_iops(self.windows.values()),
            capacity_iops=pool.capacity.iops,
            sum_min_iops=sum(slo.min_iops or 0.0 for slo in pool.slos.values()),
            waf=nvme.waf,
            placement=nvme.placement,
            reasons=(*pool.throttler.reasons(slos), *(ops.reasons if ops is not None else ())),
            vms=views,
        )


@dataclass(frozen=True, slots=True)
class ShareTotal:
    """The total that the shares of VMs refer to."""

    shares: Mapping[str, float]
    """Entitlement of each active VM."""
    iops: float | None
    of_drive: bool
    """Whether it is the total of a drive; else of one block device."""

    def share(self, iops: float | None) -> float | None:
        return iops / self.iops if iops is not None and self.iops else None

    def target_iops(self, vm: str) -> float | None:
        return self.shares[vm] * self.iops if vm in self.shares and self.iops else None


class Pool:
    """What VMs share: one block device, or all managed namespaces of an NVMe drive.

    A drive serves all of its namespaces, and the kernel has no weights between them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.devices: tuple[ManagedBlock, ...] = ()
        self.changes = EntitlementChanges(window_s=0.0)
        """Its window is that of the status."""
        self._clock = clock
        self.throttler = Throttler(clock)
        self.capacity = MeasuredCapacity()
        self.slos: dict[str, Slo] = {}
        """SLOs of its VMs, as of the last status."""
        self._windows: dict[str, VmSample] = {}
        self._active_on: dict[str, list[ManagedBlock]] = {}
        """Devices with I/O of each VM in the status window."""

    @property
    def name(self) -> str:
        """Name of the device that reports a problem."""
        return self.devices[0].name

    @property
    def reports_ops(self) -> bool:
        """Whether it is a drive that reports the OPS of its namespaces."""
        return any(device.nvme.ops is not None for device in self.devices)

    def observe(self, streams: StreamsByDevice, delays: Mapping[str, BlockDelay]) -> None:
        """Add the counters of an epoch, after its devices did."""
        self._active_on = defaultdict(list)
        for device in self.devices:
            for vm in device.active:
                self._active_on[vm].append(device)
        numbers = [device.number for device in self.devices if device.number is not None]
        self.throttler.observe(numbers, streams, delays)
        self._windows = merge_by_vm(device.windows for device in self.devices)
        total = total_iops(self._windows.values())
        if total is not None:
            self.capacity.add(total, has_demand=any(device.has_demand for device in self.devices))

    @property
    def p99s_us(self) -> dict[str, float]:
        """p99 of each VM whose latencies are measured, in the status window, in microseconds."""
        return {vm: p99 for vm, window in self._windows.items() if (p99 := window.p99_us) is not None}

    def unplanned_limits(self, slos: Mapping[str, Slo], weighted: Collection[str]) -> str:
        """A sentence about limits that a dry run cannot plan, as it does not apply them; may be empty."""
        slos = {vm: slos[vm] for vm in self._windows if vm in slos}
        goals = [f"a minimum for {vm}" for vm, slo in sorted(slos.items()) if slo.min_iops is not None]
        goals += [
            f"the p99 of {vm}"
            for vm, slo in sorted(slos.items())
            if slo.p99_latency_us is not None and vm in self.p99s_us
        ]
        if self._is_shared_by_limits(slos, weighted):
            goals.append("shares by weight between namespaces of the drive")
        if not goals:
            return ""
        return f"to keep {and_list(goals)}, others would be throttled; a dry run cannot determine by how much"

    def protect(
        self,
        slos: Mapping[str, Slo],
        limitable: Collection[tuple[str, str]],
        weighted: Collection[str],
        unapplied: Collection[str] = (),
    ) -> None:
        """Set the limits of the next epoch that keep the SLOs of other VMs.

        `limitable`: VMs whose IOPS can be limited, with the device. `weighted`: VMs whose weight was set.
        `unapplied`: VMs whose limit could not be applied.
        """
        slos = {vm: slos[vm] for vm in self._windows if vm in slos}
        self.throttler.decide(
            slos,
            is_limitable=lambda vm: all((vm, device.name) in limitable for device in self._devices_of(vm)),
            is_busy=self._is_busy_for,
            by_weight=self._is_shared_by_limits(slos, weighted),
            p99s_us=self.p99s_us,
            p99_window_s=max((self._windows[vm].window_s for vm in slos), default=0.0),
            unapplied=unapplied,
        )

    def _is_shared_by_limits(self, vms: Iterable[str], weighted: Collection[str]) -> bool:
        """Whether limits keep shares, because VMs with weights use several namespaces.

        On a single one the kernel's weights do.
        """
        active = [vm for vm in vms if self._devices_of(vm)]
        used = {device.name for vm in active for device in self._devices_of(vm)}
        return len(active) > 1 and len(used) > 1 and any(vm in weighted for vm in active)

    def _devices_of(self, vm: str) -> list[ManagedBlock]:
        return self._active_on.get(vm, [])

    def _is_busy_for(self, vm: str) -> bool:
        devices = self._devices_of(vm)
        if not devices:
            return False
        protected = self.throttler.protects(vm)
        return any(device.is_busy_for(vm, protected=protected) for device in devices)

    def wants_more(self, vm: str) -> tuple[bool, bool]:
        """Whether a VM wanted more than it got, and whether that is a guess."""
        for device in self._devices_of(vm):
            # The waits of its threads are those for all devices together.
            demand = device.wants_more(vm)
            if demand is not None:
                return demand, False
        # A VM that waits for its own limit does not keep a device busy.
        return self._is_busy_for(vm) or self.throttler.is_throttled(vm), True

    def uses_several(self, vm: str) -> bool:
        """Whether the VM uses several namespaces of the drive."""
        return len(self.devices) > 1 and len(self._devices_of(vm)) > 1

    def detect_changes(self, slos: Mapping[str, Slo]) -> None:
        """Notice changes of entitlements. `slos`: by VM, without parts of groups, which follow the load."""
        self.changes.detect({vm: slos[vm] for vm in self._active_on if vm in self.slos}, self._clock())

    @property
    def settling(self) -> str:
        """The change of entitlements in the window; empty without one."""
        return self.changes.recent_change(self._clock())

    def iops_of(self, vm: str) -> float | None:
        return self._windows[vm].iops if vm in self._windows else None

    def share_total(self, device: ManagedBlock) -> ShareTotal:
        """The total that shares on a device refer to: of the drive if limits keep shares of it."""
        of_drive = self.throttler.by_weight
        windows = self._windows if of_drive else device.windows
        total = total_iops(windows.values())
        active = {
            vm: with_bandwidth_as_iops(self.slos[vm], window.bandwidth_bytes_s, window.iops)
            for vm, window in windows.items()
            if vm in self.slos and window.iops
        }
        return ShareTotal(shares_of(active, total), total, of_drive)
