"""One real block device of the host: what its VMs did, and what they are due."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from slo_ctl.daemon.block_demand import BlockDemand
from slo_ctl.daemon.nvme_watch import NvmeSeen
from slo_ctl.daemon.parts import DeviceView, VmView, total_iops
from slo_ctl.observe.block import BlockDevice
from slo_ctl.observe.block_device import device_behind
from slo_ctl.observe.bounded_file import read_bounded
from slo_ctl.observe.gone import ObserveGone
from slo_ctl.observe.nvme_drive import drive_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from slo_ctl.daemon.nvme_watches import NvmeWatches
    from slo_ctl.daemon.pools import Pool
    from slo_ctl.decide.levers import Wanted
    from slo_ctl.model import DeviceNumber, DeviceWaf, Slo, Stream
    from slo_ctl.observe.task_delay import BlockDelay
    from slo_ctl.observe.window import StreamWindow

_BUSY_FROM = 0.9
"""A device with requests on it for this share of the time holds VMs back; whom, is a guess."""
_SERVED_BUSY_FROM = 0.5
"""The same for a VM for whose sake others are held back, on a namespace that it has for itself."""
_BUSY_MS_FIELD = 9
"""Of `/sys/dev/block/M:N/stat`: time with requests on the device, in milliseconds."""
_MS_PER_S = 1e3
SHARE_TOLERANCE = 0.15
"""bfq is no more exact over some seconds."""


class BlockPart:
    """Found anew at every look: a device may be detached, and come back under another number."""

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
        self._sys = sys
        self._window_s = window_s
        self._clock = clock
        self._device: BlockDevice | None = None
        self._watches = watches
        self._namespace: str | None = None
        self._busy_ms: tuple[float, int] | None = None
        self._busy_share = 0.0
        self._demand = BlockDemand(window_s)

    @property
    def number(self) -> DeviceNumber | None:
        """What cgroups charge; None while it is not there."""
        return self._device.number if self._device is not None else None

    @property
    def windows(self) -> dict[str, StreamWindow]:
        """What each VM did over the status window."""
        return self._device.windows if self._device is not None else {}

    @property
    def active(self) -> set[str]:
        """VMs that did anything in the status window."""
        return {vm for vm, window in self.windows.items() if window.iops}

    def waits(self, vm: str) -> bool | None:
        """Whether its threads wait for so much that it would have taken more; None where nobody tells."""
        return self._demand.wants_more(vm)

    def looks_busy(self, vm: str, *, served: bool) -> bool:
        """A guess at the same, by how busy the device is.

        Holding others back for a VM (`served`) makes the device less busy, and it no less wanting. So it is
        believed; but where it has a namespace of its own, which is idle half of the time, it asks for less.
        """
        if self._busy_share >= _BUSY_FROM:
            return True
        return served and (self.active != {vm} or self._busy_share >= _SERVED_BUSY_FROM)

    @property
    def _seen(self) -> NvmeSeen:
        return self._watches.seen(self._namespace) if self._namespace is not None else NvmeSeen(waf=None)

    @property
    def waf(self) -> DeviceWaf | None:
        """As measured, with what it was counted of; None where it is not known, or was made up."""
        told = self._seen.waf
        # What an emulator makes up says nothing of what its drive can do.
        return told if told is not None and told.waf is not None and not told.emulated else None

    def find(self) -> None:
        """Look where it is now. Raises ObserveGone when it is not there."""
        try:
            number = device_behind(str(self.path), self._sys)
        except OSError as error:
            self._device = None
            raise ObserveGone(f"{self.path}: {error.strerror}") from None
        if number is None or not self.path.is_block_device():
            self._device = None
            raise ObserveGone(f"{self.path} is no block device, and no NVMe controller")
        if self._device is None or self._device.number != number:
            self.drive = drive_of(number, self._sys)
            self._device = BlockDevice(
                self.name, self.path, number, window_s=self._window_s, clock=self._clock
            )
            self._busy_ms = None
            self.close()
            self._namespace = self._watches.join(number)

    def close(self) -> None:
        """Stop watching the drive."""
        if self._namespace is not None:
            self._watches.leave(self._namespace)
            self._namespace = None

    def look(self, streams: Iterable[Stream], delays: Mapping[str, BlockDelay]) -> None:
        """Take the counters of the epoch into account, and what VMs waited in it; after `find`."""
        if self._device is None:
            return
        self._device.update(streams)
        self._busy_share = self._busy_for(self._device.number)
        self._demand.keep(self.active)
        for vm in self.active & delays.keys():
            self._demand.add(vm, delays[vm], self.windows[vm].iops or 0.0)

    @property
    def asked_for_more(self) -> bool:
        """Some VM would have taken more of it."""
        return self._busy_share >= _BUSY_FROM or any(self._demand.wants_more(vm) for vm in self.active)

    def _busy_for(self, number: DeviceNumber) -> float:
        """What share of the time it had requests."""
        file = read_bounded(self._sys / "dev" / "block" / str(number) / "stat")
        fields = file.text.split() if file else []
        if len(fields) <= _BUSY_MS_FIELD or not fields[_BUSY_MS_FIELD].isdigit():
            return 1.0  # not told: a VM that misses its share may well want it
        now = (self._clock(), int(fields[_BUSY_MS_FIELD]))
        before, self._busy_ms = self._busy_ms, now
        if before is None or now[0] <= before[0]:
            return 0.0
        return (now[1] - before[1]) / (_MS_PER_S * (now[0] - before[0]))

    def view(
        self, slos: Mapping[str, Slo], disks: Mapping[str, tuple[str, ...]], wanted: Wanted, pool: Pool
    ) -> DeviceView:
        """For the status; `slos` are those of the VMs it serves, `disks` their names there.

        `pool` is what it is part of, alone or with other namespaces.
        """
        shared = pool.shared(self)
        nvme = self._seen
        backends = sorted({wanted.backends.get((vm, self.name), "none") for vm in slos})
        views = {}
        for vm in slos:
            wants_more, guessed = pool.wants_more(vm)
            views[vm] = VmView(
                windows=(self.windows[vm],) if vm in self.windows else (),
                disks=disks.get(vm, ()),
                wants_more=wants_more,
                guessed=guessed,
                target_share=shared.shares.get(vm),
                target_iops=shared.target_iops(vm),
                drive_iops=pool.iops_of(vm) if pool.is_on_several(vm) else None,
                no_mechanism=wanted.no_mechanism.get((vm, self.name), ""),
                aside=pool.guard.aside(vm),
            )
        return DeviceView(
            name=self.name,
            kind=self.kind,
            backend=", ".join(backends),
            policy="",
            total_iops=total_iops(list(self.windows.values())),
            drive_iops=shared.total_iops if shared.of_drive else None,
            capacity_iops=pool.capacity.iops,
            sum_min_iops=sum(slo.min_iops or 0.0 for slo in pool.slos.values()),
            share_tolerance=SHARE_TOLERANCE,
            waf=nvme.waf,
            placement=nvme.placement,
            reasons=pool.guard.told(slos),
            vms=views,
        )
