"""Which streams of a device are active, and the most that the device has done or can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slo_ctl.decide.gc_model import gc_time_us
from slo_ctl.model import DeviceSample, FlashTiming, Slo


@dataclass(slots=True)
class Activity:
    """Of the streams on one device. Times are of one clock that never goes back."""

    idle_after_s: float
    """A stream without requests for this long is idle: one that pauses is not."""
    window_s: float
    """Shares are judged over this long; one that contains a change is not judged."""
    _last_active_s: dict[str, float] = field(default_factory=dict)
    _slos: dict[str, Slo] = field(default_factory=dict)
    _active: frozenset[str] | None = None
    _changed_s: float = float("-inf")
    _change: str = ""

    def mark(self, sample: DeviceSample, now_s: float) -> DeviceSample:
        """The sample with `active` meaning: within the last `idle_after_s`."""
        for vm in sample.vms:
            if vm.active:
                self._last_active_s[vm.vm] = now_s
        keys = {vm.vm for vm in sample.vms}
        self._last_active_s = {vm: at for vm, at in self._last_active_s.items() if vm in keys}
        horizon_s = now_s - self.idle_after_s
        active = {vm for vm, at_s in self._last_active_s.items() if at_s >= horizon_s}
        marked = replace(
            sample,
            vms=tuple(
                vm if vm.active == (vm.vm in active) else replace(vm, active=not vm.active)
                for vm in sample.vms
            ),
        )
        self._note_changes({vm.vm: vm.slo for vm in marked.vms if vm.active}, now_s)
        return marked

    def changed(self, why: str, now_s: float) -> None:
        """Something else changed what streams are entitled to."""
        self._changed_s, self._change = now_s, why

    def settling(self, now_s: float) -> str:
        """Changes within the window, and how long ago; may be empty."""
        ago_s = now_s - self._changed_s
        return f"{self._change} {ago_s:.0f} s ago" if ago_s < self.window_s else ""

    def _note_changes(self, slos: Mapping[str, Slo], now_s: float) -> None:
        active = frozenset(slos)
        if self._active is None:
            self._changed_s, self._change = now_s, "the daemon started"
        elif woken := sorted(active - self._active):
            self._changed_s, self._change = now_s, f"{', '.join(woken[:3])} became active"
        elif changed := sorted(vm for vm in active if vm in self._slos and self._slos[vm] != slos[vm]):
            self._changed_s, self._change = now_s, f"the SLO of {', '.join(changed[:3])} changed"
        self._active, self._slos = active, dict(slos)


# Capacity of a device, as measured, and before that from its timing model.

_US_PER_S = 1e6

_FADES_PER_EPOCH = 0.005
"""Of the capacity, in epochs that did less though more was asked for: work changes, and drives age."""


class Capacity:
    """The most IOPS that were measured while VMs asked for more; older ones fade."""

    def __init__(self) -> None:
        self.iops: float | None = None
        """None before any VM has asked for more than it got."""

    def add(self, iops: float, *, asked_for_more: bool) -> None:
        """One more epoch."""
        if not asked_for_more:
            if self.iops is not None:
                self.iops = max(self.iops, iops)
            return
        self.iops = max(iops, (self.iops or 0.0) * (1.0 - _FADES_PER_EPOCH))


def estimated_iops(
    timing: FlashTiming, dies: int, channels: int, *, reads: int, writes: int, gc_writes: int
) -> float:
    """The most requests of a page each that a drive can do, with the mix and the GC there have been so far.

    An upper bound: all dies busy all the time. Of a drive that has done nothing yet, reads alone.
    """
    write_share = writes / (reads + writes) if reads + writes else 0.0
    u = gc_writes / (writes + gc_writes) if writes else 0.0
    write_us = timing.program_us + gc_time_us(timing, u)
    die_us = write_share * write_us + (1.0 - write_share) * timing.read_us
    bounds = [dies / die_us] if die_us else []
    bounds += [channels / timing.transfer_us] if timing.transfer_us else []
    return _US_PER_S * min(bounds)
