"""One real block device of the host: what its VMs did, and what they are due."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from slo_ctl.daemon.block_demand import BlockDemand
from slo_ctl.daemon.capacity import Capacity
from slo_ctl.daemon.guard import Guard
from slo_ctl.daemon.nvme_watch import NvmeSeen, watch_for
from slo_ctl.daemon.parts import DeviceView, VmView, total_iops
from slo_ctl.decide.shares import due_shares
from slo_ctl.observe.block import BlockDevice
from slo_ctl.observe.block_device import device_behind
from slo_ctl.observe.bounded_file import read_bounded
from slo_ctl.observe.gone import ObserveGone

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from slo_ctl.daemon.nvme_watch import NvmeWatch
    from slo_ctl.decide.levers import Wanted
    from slo_ctl.decide.limit_settings import HeldBack
    from slo_ctl.model import DeviceNumber, Slo, Stream
    from slo_ctl.observe.task_delay import BlockDelay
    from slo_ctl.observe.window import StreamWindow

_BUSY_FROM = 0.9
"""A device with requests on it for this share of the time holds VMs back; whom, is a guess."""
_BUSY_MS_FIELD = 9
"""Of `/sys/dev/block/M:N/stat`: time with requests on the device, in milliseconds."""
_MS_PER_S = 1e3
SHARE_TOLERANCE = 0.15
"""bfq is no more exact over some seconds."""


class BlockPart:
    """Found anew at every look: a device may be detached, and come back under another number."""

    kind = "block"

    def __init__(self, name: str, path: Path, sys: Path, window_s: float) -> None:
        self.name = name
        self.path = path
        self.capacity = Capacity()
        self._sys = sys
        self._window_s = window_s
        self._device: BlockDevice | None = None
        self._nvme: NvmeWatch | None = None
        self._busy_ms: tuple[float, int] | None = None
        self._busy = False
        self._demand = BlockDemand(window_s)
        self._guard: Guard | None = None

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

    def _wants_more(self, vm: str) -> tuple[bool, bool]:
        """Whether it would have taken more, and whether that is a guess."""
        waited = self._demand.wants_more(vm)
        if waited is not None:
            return waited, False
        # Holding others back for it makes the device less busy, and it no less wanting.
        return self._busy or (self._guard is not None and self._guard.serves(vm)), True

    def find(self) -> None:
        """Look where it is now. Raises ObserveGone when it is not there."""
        try:
            number = device_behind(str(self.path), self._sys)
        except OSError as error:
            self._device = None
            raise ObserveGone(f"{self.path}: {error.strerror}") from None
        if number is None or not self.path.is_block_device():
            self._device = None
            raise ObserveGone(f"{self.path} is no block device")
        if self._device is None or self._device.number != number:
            self._device = BlockDevice(self.name, self.path, number, window_s=self._window_s)
            self._guard = Guard(lambda window_s: BlockDevice(self.name, self.path, number, window_s=window_s))
            self._busy_ms = None
            self.close()
            self._nvme = watch_for(str(number), self._sys, self._window_s)

    def close(self) -> None:
        """Stop watching the drive."""
        if self._nvme is not None:
            self._nvme.close()
            self._nvme = None

    def look(self, streams: Iterable[Stream], delays: Mapping[str, BlockDelay]) -> None:
        """Take the counters of the epoch into account, and what VMs waited in it; after `find`."""
        if self._device is None:
            return
        self._device.update(streams)
        if self._guard is not None:
            self._guard.look(streams, delays)
        self._busy = self._is_busy(self._device.number)
        self._demand.keep(self.active)
        for vm in self.active & delays.keys():
            self._demand.add(vm, delays[vm], self.windows[vm].iops or 0.0)
        total = total_iops(list(self.windows.values()))
        if total is not None:
            waiting = any(self._demand.wants_more(vm) for vm in self.active)
            self.capacity.add(total, asked_for_more=self._busy or waiting)

    def protect(self, slos: Mapping[str, Slo], limitable: Collection[str]) -> None:
        """Decide who is held back until the next epoch so that others have their minimum; after `look`.

        `limitable` are the VMs whose IOPS can be limited there.
        """
        if self._guard is not None:
            here = {vm: slos[vm] for vm in self.windows if vm in slos}
            told = self._nvme.seen.waf if self._nvme is not None else None
            # What an emulator makes up says nothing of what its drive can do.
            waf = told.waf if told is not None and not told.emulated else None
            self._guard.decide(here, limitable, busy=self._busy, waf=waf)

    @property
    def held(self) -> dict[str, HeldBack]:
        """Who is held back there for others' sake, by VM."""
        return self._guard.held if self._guard is not None and self._device is not None else {}

    def _is_busy(self, number: DeviceNumber) -> bool:
        file = read_bounded(self._sys / "dev" / "block" / str(number) / "stat")
        fields = file.text.split() if file else []
        if len(fields) <= _BUSY_MS_FIELD or not fields[_BUSY_MS_FIELD].isdigit():
            return True  # not told: a VM that misses its share may well want it
        now = (time.monotonic(), int(fields[_BUSY_MS_FIELD]))
        before, self._busy_ms = self._busy_ms, now
        if before is None or now[0] <= before[0]:
            return False
        return (now[1] - before[1]) / (_MS_PER_S * (now[0] - before[0])) >= _BUSY_FROM

    def view(
        self,
        slos: Mapping[str, Slo],
        disks: Mapping[str, tuple[str, ...]],
        wanted: Wanted,
    ) -> DeviceView:
        """For the status; `slos` are those of the VMs it serves, `disks` their names there."""
        total = total_iops(list(self.windows.values()))
        asking = {vm: slos[vm] for vm, window in self.windows.items() if vm in slos and window.iops}
        shares = due_shares(asking, total)
        nvme = self._nvme.seen if self._nvme is not None else NvmeSeen(waf=None)
        backends = sorted({wanted.backends.get((vm, self.name), "none") for vm in slos})
        return DeviceView(
            name=self.name,
            kind=self.kind,
            backend=", ".join(backends),
            policy="",
            total_iops=total,
            capacity_iops=self.capacity.iops,
            sum_min_iops=sum(slo.min_iops or 0.0 for slo in slos.values()),
            share_tolerance=SHARE_TOLERANCE,
            waf=nvme.waf,
            placement=nvme.placement,
            reasons=self._guard.told if self._guard is not None else (),
            vms={
                vm: VmView(
                    windows=(self.windows[vm],) if vm in self.windows else (),
                    disks=disks.get(vm, ()),
                    wants_more=self._wants_more(vm)[0],
                    guessed=self._wants_more(vm)[1],
                    target_share=shares.get(vm),
                    target_iops=shares[vm] * total if vm in shares and total else None,
                    no_mechanism=wanted.no_mechanism.get((vm, self.name), ""),
                    aside=self._guard.aside(vm) if self._guard is not None else "",
                )
                for vm in slos
            },
        )
