"""Limits that keep minimums, p99 targets and, between namespaces of a drive, shares on block devices.

A block device reports neither the cost of a VM's requests nor whose requests wait in its queue. So whether a
VM wants more is derived from the wait times of its threads, from its own limit, or estimated from how busy
the device is (`daemon.throttle`). Entitlements (`decide.entitlement`) and limits (`decide.limit_control`) are
computed as for emulated devices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from slo_ctl.decide.entitlement import LEAST_SHARE, SLOW_MEMORY_WINDOWS, Entitlements, claim_of, entitle
from slo_ctl.decide.limit_control import LimitState, control, not_helped_text
from slo_ctl.decide.objectives import ControlledVm, at_limit
from slo_ctl.model.host import DeviceNumber
from slo_ctl.model.slo import Slo


@dataclass(frozen=True, slots=True)
class Contender:
    """Measurements of one VM on the device in the last window."""

    vm: str
    slo: Slo
    iops: float
    wants_more: bool
    """Whether the VM wanted more than it got."""
    limitable: bool = True
    """Whether the VM's IOPS can be limited on the device."""
    p99_us: float | None = None
    """The higher one of the p99 of reads and that of writes; None: not measured."""
    granted_iops: float | None = None
    """Rate that the limit in force really allows; None: exactly the limit."""

    def is_throttled(self, limits: Mapping[str, float]) -> bool:
        """Whether the VM's rate is set by its limit in `limits` (IOPS by VM) or its own maximum."""
        if at_limit(self.iops, limits.get(self.vm), self.granted_iops):
            return True
        return self.vm not in limits and at_limit(self.iops, self.slo.max_iops)


@dataclass(frozen=True, slots=True)
class Protection:
    """Limits in force on a device, and the state for the next step."""

    state: LimitState = field(default_factory=LimitState)
    capacity_iops: float = 0.0
    """Rate that the device can deliver, as far as it has been measured."""
    notes: tuple[str, ...] = ()
    """Why objectives are missed, one sentence each."""

    @property
    def limits(self) -> Mapping[str, float]:
        """IOPS by limited VM."""
        return self.state.limits

    @property
    def protected_vms(self) -> tuple[str, ...]:
        """VMs for which others are limited."""
        return self.state.protected_vms


def step(
    before: Protection,
    vms: Sequence[Contender],
    *,
    by_weight: bool = False,
    effect_steps: int = 1,
    p99_effect_steps: int = 1,
) -> Protection:
    """The limits for the next window.

    `by_weight`: limits keep shares by weight, too, because no fair queue does. The measurements show the
    effect of a change after `effect_steps` steps in rates, and after `p99_effect_steps` in the p99.
    """
    throttled = {v.vm for v in vms if at_limit(v.iops, before.limits.get(v.vm), v.granted_iops)}
    capacity = sum(v.iops for v in vms)
    if before.limits:
        # Limits may keep the device from delivering it.
        capacity = max(capacity, (1.0 - 1.0 / SLOW_MEMORY_WINDOWS) * before.capacity_iops)
    # A VM that limits did not help cannot use its share: the others are entitled to it.
    given_up = before.state.not_helped if by_weight else ()
    wanting = {v.vm for v in vms if v.vm in throttled or (v.wants_more and v.vm not in given_up)}
    due = entitle([claim_of(v.vm, v.slo, v.iops, 1.0, wants_more=v.vm in wanting) for v in vms], capacity)
    weights = sum(v.slo.weight for v in vms)
    controlled = [
        ControlledVm(
            vm=v.vm,
            iops=v.iops,
            fair_iops=capacity * v.slo.weight / weights,
            busy=v.vm in wanting,
            min_iops=_attainable_min_iops(v, due),
            due_iops=due.rates[v.vm],
            keeps_share=by_weight and len(wanting) > 1 and v.vm in wanting,
            # The latency of a throttled VM may include the wait for its own limit, as QEMU counts it.
            p99_us=None if v.is_throttled(before.limits) else v.p99_us,
            max_p99_us=v.slo.p99_latency_us,
            quiet=v.iops <= 0.0,
            limitable=v.limitable,
            effect_windows=p99_effect_steps if v.slo.p99_latency_us and v.p99_us else effect_steps,
            granted_iops=v.granted_iops,
        )
        for v in vms
    ]
    state, _ = control(before.state, controlled)
    notes = [f"{vm}: {not_helped_text(state, vm)}" for vm in state.not_helped]
    wanted = sum(v.slo.min_iops or 0.0 for v in vms if v.vm in wanting)
    if wanted > capacity > 0.0:
        notes.insert(
            0,
            f"the minimums of the active VMs add up to {wanted:,.0f} IOPS, but the device "
            f"delivers {capacity:,.0f}: the largest are reduced",
        )
    return Protection(state, capacity, tuple(notes))


def _attainable_min_iops(vm: Contender, due: Entitlements) -> float:
    """The VM's minimum, reduced if the device cannot deliver all minimums; 0 without a minimum."""
    minimum = vm.slo.min_iops or 0.0
    return min(minimum, due.rates[vm.vm]) if due.overcommitted else minimum


# Division of a VM's limit on a whole drive among the namespaces that the VM uses.

_EXACT: Mapping[DeviceNumber, float] = MappingProxyType({})


def split_limit(
    limit_iops: float,
    iops: Mapping[DeviceNumber, float],
    before: Mapping[DeviceNumber, float],
    granted: Mapping[DeviceNumber, float] = _EXACT,
) -> dict[DeviceNumber, float]:
    """Parts of `limit_iops` by namespace, in proportion to the VM's rates; they add up to the limit.

    `iops`: the VM's rate by namespace. `before`: the parts in force; their proportion stays unless the VM is
    throttled on one namespace while it is below its part on another. `granted`: the rates that these parts
    really allow, where they differ. A namespace gets a part, of at least `LEAST_SHARE`, with the VM's first
    I/O there and keeps it; until then it is not limited.
    """
    parts = {device: before[device] for device in before if device in iops}
    used = [device for device, rate in iops.items() if rate > 0 or device in parts]
    if len(used) < 2:
        return dict.fromkeys(used or iops.keys(), limit_iops)
    total = sum(iops[device] for device in used)
    throttled = any(at_limit(iops[device], part, granted.get(device)) for device, part in parts.items())
    if len(parts) == len(used) and not (throttled and not at_limit(total, sum(parts.values()))):
        return _scaled(parts, limit_iops)
    if total <= 0:
        return _scaled(dict.fromkeys(used, 1.0), limit_iops)
    return _scaled({device: max(LEAST_SHARE, iops[device] / total) for device in used}, limit_iops)


def _scaled(parts: Mapping[DeviceNumber, float], limit_iops: float) -> dict[DeviceNumber, float]:
    """The parts in the same proportion, scaled so that they add up to the limit."""
    total = sum(parts.values())
    return {device: limit_iops * part / total for device, part in parts.items()}
