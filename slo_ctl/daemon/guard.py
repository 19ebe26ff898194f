"""Minimums on one block device: what `decide.protection` has to know of a short window, and what it says."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from slo_ctl.daemon.block_demand import BlockDemand
from slo_ctl.daemon.parts import total_iops
from slo_ctl.decide.deliverable import Deliverable
from slo_ctl.decide.dues import Contender
from slo_ctl.decide.limit_settings import HeldBack
from slo_ctl.decide.protection import Protection, step

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from slo_ctl.model import Slo, Stream
    from slo_ctl.observe.block import BlockDevice
    from slo_ctl.observe.task_delay import BlockDelay
    from slo_ctl.observe.window import StreamWindow

WINDOW_S = 1.0
"""What is decided by: the status window is too long to see what a limit did."""


class Guard:
    """From epoch to epoch, as long as the device is the same one.

    Nothing of it outlives the daemon: limits in force are in the journal, so that a new start gives them back
    and finds out again what it takes.
    """

    def __init__(
        self, make_recent: Callable[[float], BlockDevice], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`make_recent` makes an observer of the device with a window of so many seconds."""
        self._recent = make_recent(WINDOW_S)
        self._demand = BlockDemand(WINDOW_S)
        self._clock = clock
        self._decided_at_s = clock()
        self._deliverable = Deliverable()
        self._protection = Protection()
        self._needed = False

    def look(self, streams: Iterable[Stream], delays: Mapping[str, BlockDelay]) -> None:
        """Take an epoch into account, where there is a minimum to be kept."""
        if not self._needed:
            return
        windows = self._recent.update(streams)
        active = {vm for vm, window in windows.items() if window.iops}
        self._demand.keep(active)
        for vm in active & delays.keys():
            self._demand.add(vm, delays[vm], windows[vm].iops or 0.0)

    def decide(
        self, slos: Mapping[str, Slo], limitable: Collection[str], *, busy: bool, waf: float | None
    ) -> None:
        """Whom to hold back until the next epoch.

        `slos` are those of the VMs there, `limitable` those whose IOPS can be limited; `busy` is what is
        guessed by where nobody tells whether a VM wants more. `waf` is the device's, where it is known.
        """
        now_s = self._clock()
        length_s, self._decided_at_s = now_s - self._decided_at_s, now_s
        needed = any(slo.min_iops is not None for slo in slos.values())
        if not needed or not self._needed:
            # From the next look on; what was before is no window.
            self._needed, self._protection = needed, Protection()
            return
        windows = {vm: window for vm, window in self._recent.windows.items() if vm in slos}
        window_s = max((window.window_s for window in windows.values()), default=0.0)
        total = total_iops(list(self._recent.windows.values()))
        if window_s < WINDOW_S or total is None:
            return
        vms = [self._contender(vm, slos[vm], window, limitable, busy) for vm, window in windows.items()]
        writes = sum(window.write_iops or 0.0 for window in self._recent.windows.values())
        write_share = writes / total if total > 0 else 0.0
        self._deliverable = self._deliverable.after(
            total,
            length_s,
            wanted_more=any(vm.wants_more for vm in vms),
            held=bool(self._protection.limits),
            short=self._protection.at_due,
            waf=waf,
            write_share=write_share,
        )
        deliverable = self._deliverable.at(waf, write_share)
        self._protection = step(self._protection, vms, deliverable, length_s, window_s)

    def _contender(
        self, vm: str, slo: Slo, window: StreamWindow, limitable: Collection[str], busy: bool
    ) -> Contender:
        waited = self._demand.wants_more(vm)
        # Where that is a guess, holding others back makes the device less busy: it is believed until it was
        # seen to bring nothing.
        guess = busy or self.serves(vm)
        asks = bool(window.iops) and (guess if waited is None else waited)
        known = [p99 for p99 in (window.p99_read_us, window.p99_write_us) if p99 is not None]
        return Contender(vm, slo, window.iops or 0.0, asks, vm in limitable, max(known, default=None))

    @property
    def held(self) -> dict[str, HeldBack]:
        """Who is held back, by VM."""
        served = self._protection.served
        return {vm: HeldBack(iops, served) for vm, iops in self._protection.limits.items()}

    def serves(self, vm: str) -> bool:
        """Whether others are held back for it."""
        return vm in self._protection.served

    @property
    def told(self) -> tuple[str, ...]:
        """Of the device, one sentence each."""
        done = _limited(self._protection)
        return (done, *self._protection.told) if done else self._protection.told

    def aside(self, vm: str) -> str:
        """What has to be said of a VM beside its verdict; empty when nothing has."""
        protection = self._protection
        if vm in protection.limits:
            return f"limited to {protection.limits[vm]:,.0f} IOPS for {_and(protection.served)}"
        if vm not in protection.served:
            return ""
        if protection.at_due:
            return "nobody else has more than is due there" + (
                f": {_limited(protection)}" if protection.limits else ""
            )
        return _limited(protection)


def _limited(protection: Protection) -> str:
    if not protection.limits:
        return ""
    names, limits = zip(*sorted(protection.limits.items()), strict=True)
    verb = "is" if len(names) == 1 else "are"
    figures = _and([f"{limit:,.0f}" for limit in limits])
    return f"{_and(names)} {verb} limited to {figures} IOPS for {_and(protection.served)}"


def _and(words: Collection[str]) -> str:
    *first, last = words or ("nobody",)
    return f"{', '.join(first)} and {last}" if first else last
