"""Groups of VMs from epoch to epoch: what their VMs did, and the part that each has of its group's bounds."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence

from slo_ctl.daemon.device_view import DeviceView, VmView
from slo_ctl.decide.groups import Rates, slos_in_group
from slo_ctl.decide.slo_sources import ResolvedSlo
from slo_ctl.model import Slo, Vm
from slo_ctl.model.slo import SloGroup

_REMEMBERED = 5
"""A VM did what it did in the busiest of so many epochs: parts grow at once and shrink slowly."""


class Groups:
    """Divides the bounds of groups, epoch by epoch."""

    def __init__(self) -> None:
        self._counted: dict[tuple[str, str], tuple[float, int, int]] = {}
        """By VM and device: when, and requests and bytes until then."""
        self._did: dict[str, deque[Rates]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))
        self._last: dict[str, tuple[SloGroup, dict[str, Slo]]] = {}
        """By group, what was decided last."""

    def slos(
        self, vms: Iterable[Vm], resolved: Mapping[str, ResolvedSlo], groups: Mapping[str, SloGroup]
    ) -> dict[str, Slo]:
        """The SLOs of all VMs that have a part of a group's bounds now."""
        own: dict[str, dict[str, Slo]] = defaultdict(dict)
        for vm in vms:
            name = resolved[vm.name].group_name
            if name is not None and vm.state.may_do_io:
                own[name][vm.name] = resolved[vm.name].slo
        did = {vm: _most(rates) for vm, rates in self._did.items() if rates}
        self._last = {
            name: (groups[name], slos_in_group(groups[name], slos, did, self._before(groups[name])))
            for name, slos in own.items()
        }
        return {vm: slo for _, slos in self._last.values() for vm, slo in slos.items()}

    def _before(self, group: SloGroup) -> dict[str, Slo]:
        """What was decided last, unless the group has changed since."""
        last, slos = self._last.get(group.name, (None, {}))
        return slos if last is not None and last.fields == group.fields else {}

    def observe(self, devices: Sequence[DeviceView], now_s: float) -> None:
        """Take an epoch into account: what the VMs of groups did in it. `now_s` is monotonic time."""
        members = {vm for _, slos in self._last.values() for vm in slos}
        views = [(vm, device, device.vms[vm]) for device in devices for vm in device.vms if vm in members]
        counted = {(vm, device.name): (now_s, *_counts(view)) for vm, device, view in views}
        rates: dict[str, list[Rates]] = defaultdict(list)
        for vm, device, view in views:
            key = vm, device.name
            if key in self._counted and counted[key][0] > self._counted[key][0]:
                scale = device.time_scale / (counted[key][0] - self._counted[key][0])
                _, requests, length_bytes = map(_increase, counted[key], self._counted[key])
                rates[vm].append(Rates(requests * scale, length_bytes * scale, view.wants_more))
        self._counted = counted
        for vm in [vm for vm in self._did if vm not in members]:
            del self._did[vm]
        for vm, each in rates.items():
            self._did[vm].append(_together(each))


def _counts(view: VmView) -> tuple[int, int]:
    totals = [window.totals for window in view.windows]
    return (
        sum((each.reads or 0) + (each.writes or 0) for each in totals),
        sum((each.read_bytes or 0) + (each.written_bytes or 0) for each in totals),
    )


def _increase(now: float, before: float) -> float:
    """How much a counter grew; 0 when it was reset."""
    return max(0.0, now - before)


def _together(rates: Sequence[Rates]) -> Rates:
    """On several devices."""
    return Rates(
        sum(each.iops for each in rates),
        sum(each.bytes_s for each in rates),
        any(each.wants_more for each in rates),
    )


def _most(rates: Sequence[Rates]) -> Rates:
    """Of several epochs."""
    return Rates(max(each.iops for each in rates), max(each.bytes_s for each in rates), rates[-1].wants_more)
