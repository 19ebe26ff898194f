"""What an epoch publishes: the status that everybody reads, what changed in it, and counts for metrics."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from slo_ctl.base.numbers import sum_known
from slo_ctl.daemon.device_view import DeviceView
from slo_ctl.decide.slo_sources import DEFAULT
from slo_ctl.decide.verdict import Delivered, Judgement, judge, unknown_vm
from slo_ctl.model import (
    DEGRADED,
    DeviceNumber,
    GroupStatus,
    HostStatus,
    Knob,
    Lever,
    Outcome,
    OutcomeState,
    Slo,
    StreamWindow,
    Verdict,
    Vm,
    VmState,
    VmStatus,
)
from slo_ctl.model.decision import FTL_LEVERS
from slo_ctl.model.slo import ResolvedSlo, SloGroup
from slo_ctl.record.metrics import COUNTED_STATES, Counts

_HOW_TO_MANAGE = "name its device under [[device]], see docs/configuration.md"


def status_of(
    host: HostStatus,
    devices: Sequence[DeviceView],
    vms: Sequence[Vm],
    slos: Mapping[str, ResolvedSlo],
    named_by: Mapping[str, str],
    outcomes: Iterable[Outcome],
    backends: Mapping[tuple[str, str], str],
    groups: Mapping[str, SloGroup],
    in_groups: Mapping[str, Slo],
) -> HostStatus:
    """`host`, which has nothing but facts about the host yet, with its devices, VMs and groups.

    `slos` are those in force by VM, here or not; `named_by` says who names VMs that may not be here;
    `backends` is by VM and block device what steers it there; `in_groups` are the SLOs in force, with its
    part of a group's bounds, of each VM that has one.
    """
    unapplied = _unapplied(outcomes)
    on: dict[str, list[DeviceView]] = defaultdict(list)
    for device in devices:
        for name in device.vms:
            on[name].append(device)
    rows = []
    for vm in vms:
        name, resolved, of_vm = vm.name, slos[vm.name], unapplied.get(vm.name, ())
        if name not in on:
            rows.append(_nowhere(vm, resolved, of_vm))
            continue
        for device in on[name]:
            backend = backends.get((name, device.name))
            rows.append(_row(vm, resolved, device, of_vm, backend, in_groups.get(name)))
    here = {vm.name for vm in vms}
    for name, source in named_by.items():
        if name not in here:
            rows.append(_unknown(name, source, slos[name]))
    return replace(
        host,
        devices=tuple(device.status(host.window_s) for device in devices),
        vms=tuple(sorted(rows, key=lambda row: (row.vm, row.device))),
        groups=tuple(_group(group, here, slos, rows, devices) for _, group in sorted(groups.items())),
        notes=tuple(dict.fromkeys(host.notes)),
    )


def _unapplied(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.state is OutcomeState.UNAPPLIED:
            found[outcome.setting.vm].append(outcome)
    return found


def _maximums(slo: Slo) -> tuple[float | None, float | None]:
    return slo.max_iops, slo.max_bandwidth_bytes_s


def _row(
    vm: Vm,
    resolved: ResolvedSlo,
    device: DeviceView,
    unapplied: Sequence[Outcome],
    backend: str | None,
    in_group: Slo | None,
) -> VmStatus:
    got = device.vms[vm.name]
    mine = tuple(outcome for outcome in unapplied if _concerns(outcome, device))
    if device.problem:
        judgement = Judgement(Verdict.NO_MECHANISM, device.problem)
    else:
        judgement = judge(
            got,
            # The minimum of a group is kept by all of its VMs together.
            replace(in_group, min_iops=resolved.slo.min_iops) if in_group else resolved.slo,
            unapplied=mine,
            maximum="maximum of"
            if in_group is None or _maximums(in_group) == _maximums(resolved.slo)
            else f"part of the maximum of group {resolved.group_name},",
        )
    if judgement.verdict is Verdict.IDLE and not vm.state.may_do_io:
        judgement = Judgement(Verdict.IDLE, f"it is {vm.state.value}")
    window = got.window
    return VmStatus(
        vm=vm.name,
        device=device.name,
        disks=got.disks,
        slo=in_group or resolved.slo,
        slo_source=_source(resolved),
        state=_state(vm),
        backend=backend or device.backend,
        verdict=judgement.verdict,
        reason=judgement.reason,
        target_iops=got.target_iops,
        target_share=got.target_share,
        share=got.share,
        iops=window.iops,
        bandwidth_bytes_s=window.bandwidth_bytes_s,
        p99_read_us=window.p99_read_us,
        p99_write_us=window.p99_write_us,
        throttle_wait_us=window.throttle_wait_us,
        ops_blocks=window.ops_blocks,
        ops_bytes=window.ops_bytes,
        ops_share=window.ops_share,
        u=window.u,
        waf=window.waf,
        unapplied=mine,
        group=resolved.group_name or "",
    )


def _source(resolved: ResolvedSlo) -> str:
    if resolved.group_name is None:
        return resolved.slo_source
    group = f"group {resolved.group_name}"
    return group if resolved.slo_source == DEFAULT else f"{resolved.slo_source}, {group}"


def _group(
    group: SloGroup,
    here: Collection[str],
    slos: Mapping[str, ResolvedSlo],
    rows: Sequence[VmStatus],
    devices: Sequence[DeviceView],
) -> GroupStatus:
    """What the VMs of a group got together, and whether that is within its bounds."""
    vms = sorted(vm for vm in here if slos[vm].group_name == group.name)
    members = set(vms)
    mine = [row for row in rows if row.vm in members and row.device]
    views = [device.vms[vm] for device in devices for vm in vms if vm in device.vms]
    bounds = Slo(**group.fields)
    window = StreamWindow(
        *(group.name, 0.0),
        iops=sum_known(row.iops for row in mine),
        bandwidth_bytes_s=sum_known(row.bandwidth_bytes_s for row in mine),
    )
    got = Delivered(
        window,
        asked=any(row.verdict is not Verdict.IDLE for row in mine),
        wants_more=any(view.wants_more if view.busy is None else view.busy for view in views),
        guessed=all(view.guessed for view in views),
    )
    judgement = judge(got, bounds)
    if not mine:
        what = "is on a managed device" if vms else "is on this host"
        judgement = Judgement(Verdict.IDLE, f"no VM of the group {what}")
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


def _concerns(outcome: Outcome, device: DeviceView) -> bool:
    knob = outcome.setting.knob
    if knob.lever in FTL_LEVERS:
        return knob.place.startswith(f"{device.name}/")
    return device.kind == "block"


def _nowhere(vm: Vm, resolved: ResolvedSlo, unapplied: Sequence[Outcome]) -> VmStatus:
    """A VM that uses no managed device."""
    if not vm.state.may_do_io:
        judgement = Judgement(Verdict.IDLE, f"it is {vm.state.value}")
    elif unapplied:
        judgement = judge(Delivered(), resolved.slo, unapplied=unapplied)
    elif _source(resolved) == DEFAULT:
        judgement = Judgement(Verdict.OK, "no SLO is set, and it uses no managed device")
    else:
        # An SLO that nothing keeps is reported, also where it is only a weight.
        judgement = Judgement(Verdict.NO_MECHANISM, f"{_why_nowhere(vm)} ({_HOW_TO_MANAGE})")
    return _without_device(vm.name, resolved, judgement, vm, tuple(unapplied))


def _why_nowhere(vm: Vm) -> str:
    if vm.disks:
        return "none of its disks is on a managed device"
    return "none of its disks is known, and it did no I/O on a managed device"


def _unknown(name: str, source: str, resolved: ResolvedSlo) -> VmStatus:
    return _without_device(name, resolved, unknown_vm(source))


def _without_device(
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


# Which verdicts have changed since the epoch before.


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """A VM's verdict on a device is another one now."""

    vm: str
    device: str
    previous: Verdict | None
    """None for a VM that was not there in the epoch before."""
    verdict: Verdict
    reason: str
    at: float = field(default=0.0, compare=False)
    """End of the epoch, in seconds since 1970."""

    @property
    def is_degraded(self) -> bool:
        """The SLO is not kept any more."""
        return self.verdict in DEGRADED

    @property
    def was_degraded(self) -> bool:
        """Whether the SLO was not kept before."""
        return self.previous in DEGRADED


class VerdictChanges:
    """Remembers the verdicts of the epoch before."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], Verdict] = {}

    def of(self, status: HostStatus) -> list[VerdictChange]:
        """Changes of verdicts. The first verdict of a VM is a change only if its SLO is not kept."""
        before = self._before
        self._before = {(row.vm, row.device): row.verdict for row in status.vms}
        return [
            VerdictChange(row.vm, row.device, previous, row.verdict, row.reason, status.at)
            for row in status.vms
            if (previous := before.get((row.vm, row.device))) != row.verdict
            and (previous is not None or row.verdict in DEGRADED)
        ]


# Counters behind the metrics, updated every epoch.


_LIMITS = {
    "total_iops": "total",
    "read_iops": "read",
    "write_iops": "write",
    "total_bytes_s": "total",
    "read_bytes_s": "read",
    "write_bytes_s": "write",
}
"""Kind of requests that a limiting knob applies to, by name."""
_NOT_IN_FORCE = frozenset({OutcomeState.PLANNED, OutcomeState.RESTORED, OutcomeState.RESTORING})


class Tally:
    """Counts what the status of a single epoch does not show: how often something has happened."""

    def __init__(self) -> None:
        self.counts: Callable[[], Counts] = Counts
        """Makes the counts as of the last epoch, in any thread: they are needed only where metrics are."""
        self._settings: Counter[tuple[str, str]] = Counter(
            {(lever, state): 0 for lever in Lever for state in COUNTED_STATES}
        )

    def add(
        self,
        outcomes: Sequence[Outcome],
        devices: Sequence[DeviceView],
        numbers: Mapping[str, DeviceNumber],
        *,
        epochs: int,
        missed_epochs: int,
        hooks: Counter[tuple[str, str]],
    ) -> None:
        """One more epoch. `numbers` are those of block devices, by name."""
        self._settings.update(
            (outcome.setting.knob.lever, outcome.state)
            for outcome in outcomes
            if outcome.state in COUNTED_STATES
        )
        counted = Counts(epochs, missed_epochs, self._settings.copy(), hooks)
        self.counts = partial(_counts, counted, outcomes, devices, numbers)


def _counts(
    counted: Counts,
    outcomes: Sequence[Outcome],
    devices: Sequence[DeviceView],
    numbers: Mapping[str, DeviceNumber],
) -> Counts:
    """What was `counted`, and what the outcomes and devices of the epoch say."""
    return replace(
        counted,
        vms={(vm, device.name): got.window.totals for device in devices for vm, got in device.vms.items()},
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
    """Limits as read back, by VM, device and requests that they are of; of several namespaces their sum."""
    names = {str(number): name for name, number in numbers.items()}
    limits: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for outcome in outcomes:
        knob, vm = outcome.setting.knob, outcome.setting.vm
        limited = _LIMITS.get(knob.name) if knob.name.endswith(unit) else None
        if limited is None or outcome.state in _NOT_IN_FORCE or not isinstance(outcome.after, float | int):
            continue
        device = _device_of(knob, vm, devices, names)
        if device:
            limits[vm, device, limited] += outcome.after
    return dict(limits)


def _device_of(knob: Knob, vm: str, devices: Sequence[DeviceView], names: Mapping[str, str]) -> str:
    """Empty where it is not known."""
    if knob.lever is Lever.FTL_LIMIT:
        return knob.place.partition("/")[0]
    if knob.lever is Lever.LIBVIRT_LIMIT:
        target = knob.device.partition(",")[0]
        having = [device.name for device in devices if vm in device.vms and target in device.vms[vm].disks]
        return having[0] if having else ""
    return names.get(knob.device, "")
