"""A block device of the host, and what is shared as a whole: that device, or a drive with namespaces."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slo_ctl.base.errors import ObserveGone
from slo_ctl.base.kernel_files import read_bounded
from slo_ctl.base.text import and_list
from slo_ctl.daemon.activity import Capacity
from slo_ctl.daemon.device_view import DeviceView, total_iops
from slo_ctl.daemon.drive_ops import DriveOpsControl
from slo_ctl.daemon.nvme import NvmeSeen, NvmeWatches, OpsRequest
from slo_ctl.daemon.throttle import BlockDemand, Throttler, together
from slo_ctl.decide.entitlement import BUSY_FROM, shares_of
from slo_ctl.decide.levers import Wanted
from slo_ctl.decide.verdict import Delivered
from slo_ctl.host.block_device import device_behind
from slo_ctl.host.nvme.drive import drive_of, nsid_of
from slo_ctl.host.task_delay import BlockDelay
from slo_ctl.model import DeviceNumber, DeviceWaf, DiskLatency, Slo, StreamWindow
from slo_ctl.observe.block import BlockDevice, StreamsByDevice

# One real block device of the host: the I/O of its VMs, and their entitlements.

_SERVED_BUSY_FROM = 0.5
"""Part of the time that a namespace is busy: with less, its only VM is no longer believed to want more while
others are throttled for it."""
_BUSY_MS_FIELD = 9
"""Of `/sys/dev/block/M:N/stat`: time with requests on the device, in milliseconds."""
_MS_PER_S = 1e3
SHARE_TOLERANCE = 0.15
"""Part of a share that may be missed: bfq is no more exact over some seconds."""


class ManagedBlock:
    """Looked up again each time: a device may be detached, and come back under another number."""

    kind = "block"

    def __init__(
        self,
        name: str,
        path: Path,
        sys: Path,
        window_s: float,
        watches: NvmeWatches,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.path = path
        self.drive: str | None = None
        """The NVMe drive of which it is a namespace; None: it is none."""
        self.nsid: int | None = None
        """Of that namespace; None: it is none, or not known."""
        self._sys = sys
        self._window_s = window_s
        self._clock = clock
        self._device: BlockDevice | None = None
        self.active: frozenset[str] = frozenset()
        """VMs that did anything in the status window. Made once per epoch: it is asked for with each VM."""
        self._watches = watches
        self._namespace: str | None = None
        self._busy_ms: tuple[float, int] | None = None
        self._busy_share = 0.0
        self._demand = BlockDemand(window_s)

    @property
    def number(self) -> DeviceNumber | None:
        """Device number that cgroups charge; None while it does not exist."""
        return self._device.number if self._device is not None else None

    @property
    def windows(self) -> dict[str, StreamWindow]:
        """Activity of each VM over the status window."""
        return self._device.windows if self._device is not None else {}

    @property
    def with_histogram(self) -> set[str]:
        """VMs whose percentiles are known."""
        return self._device.with_histogram if self._device is not None else set()

    def waits(self, vm: str) -> bool | None:
        """Whether its threads wait for so much that it would have taken more; None where it is not known."""
        return self._demand.wants_more(vm)

    def looks_busy(self, vm: str, *, served: bool) -> bool:
        """A guess at the same: a device that is busy nearly all the time limits VMs.

        Throttling others for a VM (`served`) lowers the utilisation of the device, not the VM's demand. So
        its demand is assumed to persist, unless it has a namespace of its own that is idle half of the time.
        """
        if self._busy_share >= BUSY_FROM:
            return True
        return served and (self.active != {vm} or self._busy_share >= _SERVED_BUSY_FROM)

    @property
    def seen(self) -> NvmeSeen:
        """Latest data of its NVMe drive."""
        return self._watches.seen(self._namespace) if self._namespace is not None else NvmeSeen(waf=None)

    @property
    def waf(self) -> DeviceWaf | None:
        """Measured WAF and its scope; None where it is not known, or is synthetic."""
        waf = self.seen.waf
        # Figures invented by an emulator say nothing about the capacity of its drive.
        return waf if waf is not None and waf.waf is not None and not waf.emulated else None

    def move_ops(self, requests: Iterable[OpsRequest]) -> None:
        """Ask its drive for moves; never waits."""
        if self._namespace is not None:
            self._watches.move_ops(self._namespace, requests)

    def find(self) -> None:
        """Look where it is now. Raises ObserveGone when it is not there."""
        try:
            number = device_behind(str(self.path), self._sys)
        except OSError as error:
            self._lose()
            raise ObserveGone(f"{self.path}: {error.strerror}") from None
        if number is None or not self.path.is_block_device():
            self._lose()
            raise ObserveGone(f"{self.path} is neither a block device nor an NVMe controller")
        if self._device is None or self._device.number != number:
            self.drive, self.nsid = drive_of(number, self._sys), nsid_of(number, self._sys)
            self._device = BlockDevice(
                self.name, self.path, number, window_s=self._window_s, clock=self._clock
            )
            self.active = frozenset()
            self._busy_ms = None
            self.close()
            self._namespace = self._watches.join(number)

    def _lose(self) -> None:
        self._device, self.active = None, frozenset()

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
        """Take the counters of the epoch into account, and what VMs waited in it; after `find`.

        `latencies` are those of disks, by VM and the device that they are on.
        """
        if self._device is None:
            return
        number = self._device.number
        here = {vm: on[number] for vm, on in latencies.items() if number in on}
        windows = self._device.update(streams.get(number, ()), here)
        self.active = frozenset(vm for vm, window in windows.items() if window.iops)
        self._busy_share = self._busy_for(self._device.number)
        self._demand.keep(self.active)
        for vm in self.active & delays.keys():
            self._demand.add(vm, delays[vm], self.windows[vm].iops or 0.0)

    @property
    def asked_for_more(self) -> bool:
        """Some VM would have taken more of it."""
        return self._busy_share >= BUSY_FROM or any(self._demand.wants_more(vm) for vm in self.active)

    def _busy_for(self, number: DeviceNumber) -> float:
        """Share of the time in which it had requests."""
        file = read_bounded(self._sys / "dev" / "block" / str(number) / "stat")
        fields = file.text.split() if file else []
        if len(fields) <= _BUSY_MS_FIELD or not fields[_BUSY_MS_FIELD].isdigit():
            return 1.0  # not known: a VM that misses its share may well want it
        now = (self._clock(), int(fields[_BUSY_MS_FIELD]))
        before, self._busy_ms = self._busy_ms, now
        if before is None or now[0] <= before[0]:
            return 0.0
        return (now[1] - before[1]) / (_MS_PER_S * (now[0] - before[0]))

    def view(
        self,
        slos: Mapping[str, Slo],
        disks: Mapping[str, tuple[str, ...]],
        wanted: Wanted,
        pool: Pool,
        ops: DriveOpsControl | None,
    ) -> DeviceView:
        """For the status; `slos` are those of the VMs it serves, `disks` their names there.

        `pool` is what it is part of, alone or with other namespaces; `ops`: its drive reports OPS.
        """
        shared = pool.shared(self)
        nvme = self.seen
        backends = sorted({wanted.backends.get((vm, self.name), "none") for vm in slos})
        windows = self.windows
        if ops is not None and self.nsid is not None and len(slos) == 1:
            windows = {vm: ops.with_ops(self.nsid, window) for vm, window in windows.items() if vm in slos}
        views = {}
        for vm in slos:
            wants_more, guessed = pool.wants_more(vm)
            window = windows.get(vm) or StreamWindow(vm, 0.0)
            drive_iops = pool.iops_of(vm) if pool.is_on_several(vm) else None
            views[vm] = Delivered(
                window,
                asked=bool(window.iops),
                disks=disks.get(vm, ()),
                wants_more=wants_more,
                guessed=guessed,
                share=shared.share(window.iops if drive_iops is None else drive_iops),
                of_drive=shared.of_drive and shared.total_iops is not None,
                share_tolerance=SHARE_TOLERANCE,
                target_share=shared.shares.get(vm),
                target_iops=shared.target_iops(vm),
                drive_iops=drive_iops,
                no_mechanism=wanted.no_mechanism.get((vm, self.name), ""),
                maximum_slack_iops=wanted.maximum_slack.get((vm, self.name)),
                remark=pool.guard.remark(vm),
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
            reasons=(*pool.guard.reasons(slos), *(ops.reasons if ops is not None else ())),
            vms=views,
        )


# What is shared as a whole: one block device, or all namespaces of one NVMe drive that are managed.
#
# The drive serves all of its namespaces, and the kernel has no weights between them.


@dataclass(frozen=True, slots=True)
class ShareTotal:
    """Total that VMs have shares of."""

    shares: Mapping[str, float]
    """Entitlement of each active VM, by name."""
    total_iops: float | None
    of_drive: bool
    """Whether it is a whole drive; else one block device."""

    def share(self, iops: float | None) -> float | None:
        """The part of the total that these are."""
        return iops / self.total_iops if iops is not None and self.total_iops else None

    def target_iops(self, vm: str) -> float | None:
        """Its present share."""
        return self.shares[vm] * self.total_iops if vm in self.shares and self.total_iops else None


class Pool:
    """From epoch to epoch; block devices come and go."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.devices: tuple[ManagedBlock, ...] = ()
        self.guard = Throttler(clock)
        self.capacity = Capacity()
        self.slos: dict[str, Slo] = {}
        """SLOs of the VMs that it serves, as of the last status."""
        self._windows: dict[str, StreamWindow] = {}
        self._active_on: dict[str, list[ManagedBlock]] = {}
        """Where each VM did anything in the status window."""

    @property
    def name(self) -> str:
        """Name of the device that reports a problem."""
        return self.devices[0].name

    @property
    def reports_ops(self) -> bool:
        """Whether it is a drive that reports the OPS of its namespaces."""
        return any(device.seen.ops is not None for device in self.devices)

    def observe(self, streams: StreamsByDevice, delays: Mapping[str, BlockDelay]) -> None:
        """Take an epoch into account; after the parts did."""
        there = {device.number: device.path for device in self.devices if device.number is not None}
        self._active_on = defaultdict(list)
        for device in self.devices:
            for vm in device.active:
                self._active_on[vm].append(device)
        self.guard.observe(there, streams, delays)
        self._windows = together(device.windows for device in self.devices)
        total = total_iops(self._windows.values())
        if total is not None:
            self.capacity.add(total, asked_for_more=any(device.asked_for_more for device in self.devices))

    @property
    def p99s_us(self) -> dict[str, float]:
        """p99 of each VM whose latencies are measured, over the status window, in microseconds."""
        return {vm: p99 for vm, window in self._windows.items() if (p99 := window.p99_us) is not None}

    def left_out(self, slos: Mapping[str, Slo], weighted: Collection[str]) -> str:
        """Part that a dry run omits, as limits are found by applying them; may be empty."""
        here = {vm: slos[vm] for vm in self._windows if vm in slos}
        kept = [f"a minimum for {vm}" for vm, slo in sorted(here.items()) if slo.min_iops is not None]
        kept += [
            f"the p99 of {vm}"
            for vm, slo in sorted(here.items())
            if slo.p99_latency_us is not None and vm in self.p99s_us
        ]
        if self._is_shared_by_limits(here, weighted):
            kept.append("shares by weight between namespaces of the drive")
        if not kept:
            return ""
        return f"to keep {and_list(kept)}, others would be throttled; a dry run cannot determine by how much"

    def protect(
        self,
        slos: Mapping[str, Slo],
        limitable: Collection[tuple[str, str]],
        weighted: Collection[str],
        unapplied: Collection[str] = (),
    ) -> None:
        """Decide who is throttled until the next epoch so that others have what their SLOs ask for.

        `limitable` says whose IOPS can be limited, by VM and device; `weighted` are the VMs whose weight
        was set; `unapplied` are those whose limit could not be applied.
        """
        here = {vm: slos[vm] for vm in self._windows if vm in slos}
        can = {vm for vm in here if all((vm, device.name) in limitable for device in self._on(vm))}
        self.guard.decide(
            here,
            can,
            busy={vm for vm in here if self._looks_busy(vm)},
            by_weight=self._is_shared_by_limits(here, weighted),
            p99s_us=self.p99s_us,
            p99_window_s=max((self._windows[vm].window_s for vm in here), default=0.0),
            unapplied=unapplied,
        )

    def _is_shared_by_limits(self, vms: Iterable[str], weighted: Collection[str]) -> bool:
        """Whether VMs on several namespaces ask for shares: on one alone the kernel's weights count."""
        active = [vm for vm in vms if self._on(vm)]
        used = {device.name for vm in active for device in self._on(vm)}
        return len(active) > 1 and len(used) > 1 and any(vm in weighted for vm in active)

    def _on(self, vm: str) -> list[ManagedBlock]:
        return self._active_on.get(vm, [])

    def _looks_busy(self, vm: str) -> bool:
        served = self.guard.serves(vm)
        return any(device.looks_busy(vm, served=served) for device in self._on(vm))

    def wants_more(self, vm: str) -> tuple[bool, bool]:
        """Whether a VM would have taken more, and whether that is a guess."""
        # What threads wait for is known of all devices together.
        waited = next((waits for device in self._on(vm) if (waits := device.waits(vm)) is not None), None)
        if waited is not None:
            return waited, False
        # What waits for its own limit keeps no device busy.
        return self._looks_busy(vm) or self.guard.holds(vm), True

    def is_on_several(self, vm: str) -> bool:
        """Whether it uses several namespaces of the drive."""
        return len(self._on(vm)) > 1

    def iops_of(self, vm: str) -> float | None:
        """IOPS on all of them."""
        return self._windows[vm].iops if vm in self._windows else None

    def shared(self, device: ManagedBlock) -> ShareTotal:
        """Where VMs on a device are judged: the drive where shares of it are kept, else that block device."""
        windows = self._windows if self.guard.by_weight else device.windows
        total = total_iops(windows.values())
        asking = {vm: self.slos[vm] for vm, window in windows.items() if vm in self.slos and window.iops}
        return ShareTotal(shares_of(asking, total), total, self.guard.by_weight)
