"""What all kinds of managed devices have: problems, a view for the status, activity, capacity, move speed."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace

from slo_ctl.base.errors import ObserveGone
from slo_ctl.base.numbers import sum_known
from slo_ctl.decide.gc_model import gc_time_us
from slo_ctl.decide.levers import Wanted
from slo_ctl.decide.verdict import Delivered
from slo_ctl.model.sample import DeviceSample, FlashTiming, VmSample
from slo_ctl.model.setting import Outcome, OutcomeState
from slo_ctl.model.slo import Slo
from slo_ctl.model.status import DeviceStatus

log = logging.getLogger("slo_ctl.daemon")


_MAX_LOGGED = 200
"""Unexpected errors that are not logged again; their texts may have names and numbers in them."""


class Problems:
    """Problems of devices in one epoch. A problem of one device does not affect others."""

    def __init__(self) -> None:
        self.by_device: dict[str, str] = {}
        self._logged: deque[str] = deque(maxlen=_MAX_LOGGED)

    def clear(self) -> None:
        """Begin a new epoch."""
        self.by_device = {}

    @contextmanager
    def guard(self, device: str) -> Iterator[None]:
        """Make an exception the problem of a device; a traceback is logged once."""
        try:
            yield
        except ObserveGone as gone:
            self.by_device[device] = gone.reason
        except Exception as error:
            problem = f"unexpected {type(error).__name__}: {error}"
            if problem not in self._logged:
                self._logged.append(problem)
                log.exception("device %s", device)
            self.by_device[device] = problem


@dataclass(frozen=True, slots=True)
class DeviceView(DeviceStatus):
    """Status of a device, with the work delivered to each VM and counters for metrics."""

    moved_s: float | None = None
    """Die time of moves of OPS since the device was served; None: there are none."""
    time_scale: float = 1.0
    """Real seconds per second of the rates."""
    moved_blocks: int | None = None
    """OPS blocks moved since the device was served; None: unknown."""
    vms: dict[str, Delivered] = field(default_factory=dict)

    def status(self, window_s: float) -> DeviceStatus:
        """The published part."""
        capacity = self.estimated_iops if self.capacity_iops is None else self.capacity_iops
        values = {attribute.name: getattr(self, attribute.name) for attribute in fields(DeviceStatus)}
        values |= {
            "window_s": window_s,
            "overcommitted": capacity is not None and self.sum_min_iops > capacity,
        }
        return DeviceStatus(**values)


def total_iops(windows: Iterable[VmSample]) -> float | None:
    """IOPS of all streams of a device; None if all are unknown."""
    return sum_known(window.iops for window in windows)


# Activity of the streams on a device, its capacity (measured and estimated), and the speed of OPS moves.


@dataclass(slots=True)
class EntitlementChanges:
    """The last change of entitlements on a device. Times are monotonic."""

    window_s: float
    """Window in which shares are judged, unless it contains a change."""
    _slos: dict[str, Slo] = field(default_factory=dict)
    _active: frozenset[str] | None = None
    _changed_s: float = float("-inf")
    _change: str = ""

    def set_change(self, change: str, now_s: float) -> None:
        """Report a change, as a clause such as "the policy changed"."""
        self._changed_s, self._change = now_s, change

    def recent_change(self, now_s: float) -> str:
        """The last change and its age, if it is in the window; else empty."""
        age_s = now_s - self._changed_s
        return f"{self._change} {age_s:.0f} s ago" if age_s < self.window_s else ""

    def detect(self, slos: Mapping[str, Slo], now_s: float) -> None:
        """Compare the SLOs of the active VMs with those of the last call."""
        active = frozenset(slos)
        if self._active is None:
            self.set_change("the daemon started", now_s)
        elif started := sorted(active - self._active):
            self.set_change(f"{', '.join(started[:3])} became active", now_s)
        elif changed := sorted(vm for vm in active if vm in self._slos and self._slos[vm] != slos[vm]):
            self.set_change(f"the SLO of {', '.join(changed[:3])} changed", now_s)
        self._active, self._slos = active, dict(slos)


@dataclass(slots=True)
class ActivityTracker(EntitlementChanges):
    """Marks streams of a device as active, and reports changes of entitlements."""

    _last_active_s: dict[str, float] = field(default_factory=dict)

    def mark(self, sample: DeviceSample, now_s: float, idle_after_s: float) -> DeviceSample:
        """The sample with those streams active that were within the last `idle_after_s`."""
        for vm in sample.vms:
            if vm.active:
                self._last_active_s[vm.vm] = now_s
        keys = {vm.vm for vm in sample.vms}
        self._last_active_s = {vm: at_s for vm, at_s in self._last_active_s.items() if vm in keys}
        active_since_s = now_s - idle_after_s
        active = {vm for vm, at_s in self._last_active_s.items() if at_s >= active_since_s}
        marked = replace(
            sample,
            vms=tuple(
                vm if vm.active == (vm.vm in active) else vm._replace(active=not vm.active)
                for vm in sample.vms
            ),
        )
        self.detect({vm.vm: vm.slo for vm in marked.vms if vm.active}, now_s)
        return marked


_US_PER_S = 1e6
_DECAY_PER_EPOCH = 0.005
"""Relative decay of the capacity in epochs with less IOPS and unmet demand: load and WAF change."""


class MeasuredCapacity:
    """The highest IOPS measured while VMs wanted more; it decays slowly."""

    def __init__(self) -> None:
        self.iops: float | None = None
        """None before any VM has wanted more than it got."""

    def add(self, iops: float, *, has_demand: bool) -> None:
        """Add an epoch. `has_demand`: whether a VM wanted more than it got."""
        if has_demand:
            self.iops = max(iops, (self.iops or 0.0) * (1.0 - _DECAY_PER_EPOCH))
        elif self.iops is not None:
            self.iops = max(self.iops, iops)


def with_applied_maximums(wanted: Wanted, outcomes: Iterable[Outcome]) -> Wanted:
    """`wanted` without the maximums of VMs with a limit on IOPS that could not be applied.

    Their rate says nothing about the effect of the limit, also in the window after it is applied.
    """
    failed = {
        outcome.setting.vm
        for outcome in outcomes
        if outcome.state is OutcomeState.UNAPPLIED and outcome.setting.knob.name.endswith("_iops")
    }
    if not failed:
        return wanted
    slack = {key: value for key, value in wanted.maximum_slack.items() if key[0] not in failed}
    return replace(wanted, maximum_slack=slack)


class WindowedMaximums:
    """The highest maximum of each VM in the status window: parts of a group's maximum follow the load."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._since_s: dict[str, list[tuple[float, float]]] = {}
        """By VM: times from which a maximum was wanted, and these, oldest first."""
        self._now_s = 0.0

    def add(self, slos: Mapping[str, Slo], now_s: float) -> None:
        """Add an epoch. `slos`: of the VMs whose maximums are enforced."""
        self._now_s = now_s
        last, self._since_s = self._since_s, {}
        for vm, slo in slos.items():
            if slo.max_iops is None:
                continue
            maximums = self._since_s[vm] = last.get(vm) or [(now_s, slo.max_iops)]
            if maximums[-1][1] != slo.max_iops:
                maximums.append((now_s, slo.max_iops))
            while len(maximums) > 1 and maximums[1][0] < now_s - self._window_s:
                del maximums[0]

    def highest_iops(self, vm: str) -> float | None:
        """None: the VM had no maximum for a part of the window."""
        maximums = self._since_s.get(vm)
        if not maximums or maximums[0][0] >= self._now_s - self._window_s:
            return None
        return max(most for _, most in maximums)


_SPEED_WINDOW_S, _LEAST_SPEED_S = 60.0, 10.0
"""Window in which the speed of moves is measured, and its least length."""


class MoveSpeed:
    """The measured speed of moves of OPS.

    It does not follow from their budget: they wait where they would delay VMs for too long, and go faster on
    an idle device.
    """

    def __init__(self) -> None:
        self._readings: deque[tuple[float, int]] = deque()

    def add(self, now_s: float, moved_blocks: int, *, going: bool) -> None:
        """Add an epoch. `moved_blocks`: since the device was served. `going`: whether moves are planned and
        not paused.
        """
        if not going or (self._readings and moved_blocks < self._readings[-1][1]):
            self._readings.clear()
        self._readings.append((now_s, moved_blocks))
        while len(self._readings) > 1 and self._readings[1][0] <= now_s - _SPEED_WINDOW_S:
            self._readings.popleft()

    @property
    def measured_s(self) -> float:
        return self._readings[-1][0] - self._readings[0][0] if self._readings else 0.0

    @property
    def blocks_s(self) -> float | None:
        """Blocks per second; None before it has been measured long enough."""
        if self.measured_s < _LEAST_SPEED_S:
            return None
        return (self._readings[-1][1] - self._readings[0][1]) / self.measured_s


def estimated_iops(
    timing: FlashTiming, dies: int, channels: int, *, reads: int, writes: int, gc_writes: int
) -> float:
    """An upper bound of the IOPS of a drive with requests of one page: all dies are always busy.

    The counts of page reads, host page writes and GC page writes give the mix and the WAF; without any, it is
    the bound for reads.
    """
    write_share = writes / (reads + writes) if reads + writes else 0.0
    u = gc_writes / (writes + gc_writes) if writes else 0.0
    write_us = timing.program_us + gc_time_us(timing, u)
    die_us = write_share * write_us + (1.0 - write_share) * timing.read_us
    bounds = [dies / die_us] if die_us else []
    bounds += [channels / timing.transfer_us] if timing.transfer_us else []
    return _US_PER_S * min(bounds)
