"""Status of the host after an epoch, changes of verdicts, and counters for metrics."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from slo_ctl.base.numbers import sum_known
from slo_ctl.base.text import and_list
from slo_ctl.daemon.device import DeviceView
from slo_ctl.daemon.slos import EpochSlos
from slo_ctl.decide.slo_sources import DEFAULT
from slo_ctl.decide.verdict import Delivered, Judgement, judge, unknown_vm
from slo_ctl.model.host import DeviceNumber, Vm, VmState
from slo_ctl.model.sample import VmSample
from slo_ctl.model.setting import FTL_LEVERS, Knob, Lever, Outcome, OutcomeState
from slo_ctl.model.slo import ResolvedSlo, Slo, SloGroup
from slo_ctl.model.status import DEGRADED, GroupStatus, HostStatus, Verdict, VmStatus
from slo_ctl.record.metrics import COUNTED_STATES, Counts

_MANAGE_HINT = "name its device under [[device]], see docs/configuration.md"


class _RowParts(NamedTuple):
    """All that the row of a VM on a device is made from."""

    vm: Vm
    resolved: ResolvedSlo
    device: str
    problem: str
    """Why the device cannot be managed; empty if it can."""
    backend: str
    delivered: Delivered
    unapplied: tuple[Outcome, ...]
    group_slo: Slo | None


class StatusRows:
    """The rows of VMs on devices: the same objects as before while what they are made from is equal."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], tuple[_RowParts, VmStatus]] = {}
        """By VM and device."""
        self._last = self._made

    def begin(self) -> None:
        """Begin an epoch: rows that it does not ask for are forgotten."""
        self._last, self._made = self._made, {}

    def row(self, parts: _RowParts) -> VmStatus:
        key = parts.vm.name, parts.device
        made = self._last.get(key)
        if made is None or made[0] != parts:
            made = parts, _row(parts)
        self._made[key] = made
        return made[1]


def status_of(
    host: HostStatus,
    devices: Sequence[DeviceView],
    vms: Sequence[Vm],
    slos: EpochSlos,
    outcomes: Iterable[Outcome],
    backends: Mapping[tuple[str, str], str],
    groups: Mapping[str, SloGroup],
    numbers: Mapping[str, DeviceNumber],
    made: StatusRows,
) -> HostStatus:
    """`host` with its devices, VMs and groups.

    `backends`: what enforces the SLO, by VM and block device; `numbers`: of block devices, by name. `made`:
    rows of the epoch before.
    """
    made.begin()
    unapplied = _unapplied(outcomes, devices, numbers)
    devices_of: dict[str, list[DeviceView]] = defaultdict(list)
    for device in devices:
        for name in device.vms:
            devices_of[name].append(device)
    # A device that is gone has no VMs, though the operator has named it.
    problems = "; ".join(f"device {device.name}: {device.problem}" for device in devices if device.problem)
    rows = []
    for vm in vms:
        name, resolved, vm_outcomes = vm.name, slos.resolved[vm.name], unapplied.get(vm.name, ())
        if name not in devices_of:
            all_unapplied = tuple(outcome for outcome, _ in vm_outcomes)
            rows.append(_row_of_unmanaged(vm, resolved, all_unapplied, problems or _MANAGE_HINT))
            continue
        for device in devices_of[name]:
            # A weight is for all block devices; so may be what is for an unknown one.
            on_device = device.name, "" if device.kind == "block" else device.name
            on_it = tuple([outcome for outcome, place in vm_outcomes if place in on_device])
            backend = backends.get((name, device.name)) or device.backend
            parts = _RowParts(
                vm,
                resolved,
                device.name,
                device.problem,
                backend,
                device.vms[name],
                on_it,
                slos.in_groups.get(name),
            )
            rows.append(made.row(parts))
    existing = {vm.name for vm in vms}
    for name, source in slos.named_by.items():
        if name not in existing:
            rows.append(_row_without_device(name, slos.resolved[name], unknown_vm(source)))
    return replace(
        host,
        devices=tuple(device.status(host.window_s) for device in devices),
        vms=tuple(sorted(rows, key=attrgetter("vm", "device"))),
        groups=tuple(
            _group(group, existing, slos.resolved, rows, devices) for _, group in sorted(groups.items())
        ),
        notes=tuple(dict.fromkeys(host.notes)),
    )


def _unapplied(
    outcomes: Iterable[Outcome], devices: Sequence[DeviceView], numbers: Mapping[str, DeviceNumber]
) -> dict[str, list[tuple[Outcome, str]]]:
    """Settings that could not be applied, by VM, with the name of their device as `_device_of` has it."""
    names = {str(number): name for name, number in numbers.items()}
    by_vm: dict[str, list[tuple[Outcome, str]]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.state is OutcomeState.UNAPPLIED:
            vm = outcome.setting.vm
            by_vm[vm].append((outcome, _device_of(outcome.setting.knob, vm, devices, names)))
    return by_vm


def _maximums(slo: Slo) -> tuple[float | None, float | None]:
    return slo.max_iops, slo.max_bandwidth_bytes_s


_OF_DEMAND = frozenset({Verdict.IDLE, Verdict.SETTLING, Verdict.INSUFFICIENT})
"""Verdicts that compare what a VM got in the window with what it wants now."""


def _row(parts: _RowParts) -> VmStatus:
    vm, resolved, device, problem, backend, delivered, unapplied, group_slo = parts
    if problem:
        judgement = Judgement(Verdict.NO_MECHANISM, problem)
    else:
        judgement = judge(
            delivered,
            # The minimum of a group applies to all of its VMs together.
            replace(group_slo, min_iops=resolved.slo.min_iops) if group_slo else resolved.slo,
            unapplied=unapplied,
            maximum="maximum of"
            if group_slo is None or _maximums(group_slo) == _maximums(resolved.slo)
            else f"part of the maximum of group {resolved.group_name},",
        )
    first_reading = judgement.verdict is Verdict.IDLE and delivered.first_reading
    if judgement.verdict in _OF_DEMAND and not vm.state.may_do_io:
        judgement = Judgement(Verdict.IDLE, f"it is {vm.state.value}")
    window = delivered.window
    return VmStatus(
        vm=vm.name,
        device=device,
        disks=delivered.disks,
        slo=group_slo or resolved.slo,
        slo_source=_source(resolved),
        state=_state(vm),
        backend=backend,
        verdict=judgement.verdict,
        reason=judgement.reason,
        target_iops=delivered.target_iops,
        target_share=delivered.target_share,
        share=delivered.share,
        iops=window.iops,
        bandwidth_bytes_s=window.bandwidth_bytes_s,
        p99_read_us=window.p99_read_us,
        p99_write_us=window.p99_write_us,
        throttle_wait_us=window.throttle_wait_us,
        ops_blocks=window.ops_blocks if window.block_bytes else None,
        ops_bytes=window.ops_bytes,
        ops_share=window.ops_share,
        u=window.u,
        waf=window.waf,
        unapplied=unapplied,
        group=resolved.group_name or "",
        first_reading=first_reading and vm.state.may_do_io,
    )


def _source(resolved: ResolvedSlo) -> str:
    """Sources of the SLO in force and of the group."""
    if resolved.group_name is None:
        return resolved.slo_source
    group = f"group {resolved.group_name}"
    return group if resolved.slo_source == DEFAULT else f"{resolved.slo_source}, {group}"


_NOT_LIMITED = frozenset({Verdict.NO_MECHANISM, Verdict.UNAPPLIED})
_CLEARLY_ABOVE = 1.5
"""Rate relative to a maximum above which none can be in force; limiters err by far less."""


def _is_above_maximum(window: VmSample, bounds: Slo) -> bool:
    """Whether rates are so far above a maximum that no limit can be in force."""
    rates = ((window.iops, bounds.max_iops), (window.bandwidth_bytes_s, bounds.max_bandwidth_bytes_s))
    return any(rate is not None and most is not None and rate > _CLEARLY_ABOVE * most for rate, most in rates)


def _group(
    group: SloGroup,
    existing: Collection[str],
    slos: Mapping[str, ResolvedSlo],
    rows: Sequence[VmStatus],
    devices: Sequence[DeviceView],
) -> GroupStatus:
    """Rates of the VMs of a group together, judged by the bounds of the group."""
    vms = sorted(vm for vm in existing if slos[vm].group_name == group.name)
    members = set(vms)
    member_rows = [row for row in rows if row.vm in members and row.device]
    parts = [device.vms[vm] for device in devices for vm in vms if vm in device.vms]
    bounds = Slo(**group.fields)
    window = VmSample(
        group.name,
        window_s=0.0,
        iops=sum_known(row.iops for row in member_rows),
        bandwidth_bytes_s=sum_known(row.bandwidth_bytes_s for row in member_rows),
    )
    delivered = Delivered(
        window,
        asked=any(row.verdict is not Verdict.IDLE for row in member_rows),
        wants_more=any(part.wants_more if part.busy is None else part.busy for part in parts),
        guessed=all(part.guessed for part in parts),
    )
    judgement = judge(delivered, bounds)
    free = next((row for row in member_rows if row.verdict in _NOT_LIMITED), None)
    if free is not None and _is_above_maximum(window, bounds):
        judgement = Judgement(free.verdict, f"above its maximum, {free.vm}: {free.reason}")
    limited = [
        row.vm
        for row in member_rows
        if row.verdict is Verdict.CAPPED and _maximums(row.slo) != _maximums(slos[row.vm].slo)
    ]
    if limited and judgement.verdict is Verdict.OK:
        names = and_list(dict.fromkeys(limited))
        reason = f"its maximum limits {names}; the others keep a little more than they use"
        judgement = Judgement(Verdict.CAPPED, reason)
    if not member_rows:
        place = "on a managed device" if vms else "on this host"
        judgement = Judgement(Verdict.IDLE, f"no VM of the group is {place}")
    return GroupStatus(
        name=group.name,
        vms=tuple(vms),
        verdict=judgement.verdict,
        reason=judgement.reason,
        min_iops=bounds.min_iops,
        max_iops=bounds.max_iops,
        max_bandwidth_bytes_s=bounds.max_bandwidth_bytes_s,
        iops=window.iops,
        bandwidth_bytes_s=window.bandwidth_bytes_s,
    )


def _row_of_unmanaged(vm: Vm, resolved: ResolvedSlo, unapplied: tuple[Outcome, ...], hint: str) -> VmStatus:
    """Status of a VM that uses no managed device. `hint`: what may be the reason."""
    if not vm.state.may_do_io:
        judgement = Judgement(Verdict.IDLE, f"it is {vm.state.value}")
    elif unapplied:
        judgement = judge(Delivered(), resolved.slo, unapplied=unapplied)
    elif _source(resolved) == DEFAULT:
        judgement = Judgement(Verdict.OK, "no SLO is set, and it uses no managed device")
    else:
        # An SLO that cannot be enforced is reported, even if it is only a weight.
        reason = "none of its disks is known, and it did no I/O on a managed device"
        if vm.disks:
            reason = "none of its disks is on a managed device"
        judgement = Judgement(Verdict.NO_MECHANISM, f"{reason} ({hint})")
    return _row_without_device(vm.name, resolved, judgement, vm, unapplied)


def _row_without_device(
    name: str,
    resolved: ResolvedSlo,
    judgement: Judgement,
    vm: Vm | None = None,
    unapplied: tuple[Outcome, ...] = (),
) -> VmStatus:
    return VmStatus(
        vm=name,
        device="",
        disks=tuple(disk.target for disk in vm.disks) if vm else (),
        slo=resolved.slo,
        slo_source=_source(resolved),
        state=_state(vm) if vm else "",
        backend="none",
        verdict=judgement.verdict,
        reason=judgement.reason,
        unapplied=unapplied,
        group=resolved.group_name or "",
    )


def _state(vm: Vm) -> str:
    return "" if vm.state is VmState.UNKNOWN else vm.state.value


# Changes of verdicts.


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """A change of a VM's verdict on a device."""

    vm: str
    device: str
    previous: Verdict | None
    """None: the VM was not in the previous status."""
    verdict: Verdict
    reason: str
    at: float = field(default=0.0, compare=False)
    """End of the epoch, in seconds since 1970."""

    @property
    def is_degraded(self) -> bool:
        """Whether the SLO is not met."""
        return self.verdict in DEGRADED

    @property
    def was_degraded(self) -> bool:
        """Whether the SLO was not met before."""
        return self.previous in DEGRADED


class VerdictChanges:
    """Compares the verdicts of each epoch with those of the epoch before."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], Verdict] = {}

    def update(self, status: HostStatus) -> list[VerdictChange]:
        """Changes since the last call. The first verdict of a VM is a change only if it is a degraded one."""
        last, self._last = self._last, {}
        changes = []
        for row in status.vms:
            key = row.vm, row.device
            previous = last.get(key)
            verdict = previous if row.first_reading else row.verdict
            if verdict is None:
                continue
            self._last[key] = verdict
            if verdict != previous and (previous is not None or verdict in DEGRADED):
                changes.append(VerdictChange(*key, previous, verdict, row.reason, status.at))
        return changes


# Counters for metrics.

_LIMITS = {
    "total_iops": "total",
    "read_iops": "read",
    "write_iops": "write",
    "total_bytes_s": "total",
    "read_bytes_s": "read",
    "write_bytes_s": "write",
}
"""Kind of requests that a limit applies to, by name of the knob."""
_NOT_IN_FORCE = frozenset({OutcomeState.PLANNED, OutcomeState.RESTORED, OutcomeState.RESTORING})


class EventCounters:
    """Counts events over all epochs, which the status of a single epoch does not show."""

    def __init__(self) -> None:
        self.counts: Callable[[], Counts] = Counts
        """Computes the counts as of the last epoch, only when metrics are read. Thread-safe."""
        self._settings: Counter[tuple[str, str]] = Counter(
            {(lever, state): 0 for lever in Lever for state in COUNTED_STATES}
        )

    def add(
        self,
        outcomes: Sequence[Outcome],
        changes: Iterable[Outcome],
        devices: Sequence[DeviceView],
        numbers: Mapping[str, DeviceNumber],
        *,
        epochs: int,
        missed_epochs: int,
        hooks: Counter[tuple[str, str]],
    ) -> None:
        """Add an epoch. `changes`: all outcomes of settings that changed or could not be applied, at least.
        `numbers`: of block devices, by name.
        """
        self._settings.update(
            (outcome.setting.knob.lever, outcome.state)
            for outcome in changes
            if outcome.state in COUNTED_STATES
        )
        counts = Counts(epochs, missed_epochs, self._settings.copy(), hooks)
        self.counts = partial(_with_devices, counts, outcomes, devices, numbers)


def _with_devices(
    counts: Counts,
    outcomes: Sequence[Outcome],
    devices: Sequence[DeviceView],
    numbers: Mapping[str, DeviceNumber],
) -> Counts:
    """`counts` with the counters of devices, and the limits in force."""
    return replace(
        counts,
        vms={(vm, device.name): part.window.totals for device in devices for vm, part in device.vms.items()},
        moved_s={device.name: device.moved_s for device in devices if device.moved_s is not None},
        moved_blocks={
            device.name: device.moved_blocks for device in devices if device.moved_blocks is not None
        },
        limits_iops=limits_in_force(outcomes, devices, numbers, "_iops"),
        limits_bytes_s=limits_in_force(outcomes, devices, numbers, "_bytes_s"),
    )


def limits_in_force(
    outcomes: Iterable[Outcome], devices: Sequence[DeviceView], numbers: Mapping[str, DeviceNumber], unit: str
) -> dict[tuple[str, str, str], float]:
    """Limits in force by VM, device and kind of requests; summed over several namespaces of a device."""
    names = {str(number): name for name, number in numbers.items()}
    limits: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for outcome in outcomes:
        knob, vm = outcome.setting.knob, outcome.setting.vm
        kind = _LIMITS.get(knob.name) if knob.name.endswith(unit) else None
        if kind is None or outcome.state in _NOT_IN_FORCE or not isinstance(outcome.after, float | int):
            continue
        device = _device_of(knob, vm, devices, names)
        if device:
            limits[vm, device, kind] += outcome.after
    return dict(limits)


def _device_of(knob: Knob, vm: str, devices: Sequence[DeviceView], names: Mapping[str, str]) -> str:
    """Name of the device that a knob of a VM is for; empty if it is for several, or unknown.

    `names`: by device number.
    """
    if knob.lever in FTL_LEVERS:
        return knob.emulated_device
    if knob.device in names:
        return names[knob.device]
    target = knob.device.partition(",")[0]
    found = (device.name for device in devices if vm in device.vms and target in device.vms[vm].disks)
    return next(found, "")
