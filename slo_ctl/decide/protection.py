"""Minimums, p99 and, between namespaces of a drive, shares by weight on block devices: kept by limits.

A block device reports neither what a request of a VM costs it nor who waits in its queue. So a VM that would
have taken more is known by what its threads waited for, by its own limit, or guessed by how busy the device
is (`daemon.throttle`). The rest is as on emulated devices: what VMs are entitled to (`decide.entitlement`),
and limits for those that miss it (`decide.limit_control`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from slo_ctl.decide.entitlement import LEAST_SHARE, Entitlements, claim_of, entitle
from slo_ctl.decide.limit_control import AT_LIMIT, Bounded, LimitState, at_limit, control, not_helped_text
from slo_ctl.model import DeviceNumber, Slo

FADES_PER_WINDOW = 0.05
"""Of what the device is known to deliver, while limits may keep it from delivering that."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One VM on the device, over the last window."""

    vm: str
    slo: Slo
    iops: float
    wants_more: bool
    """Whether it would have taken more."""
    limitable: bool = True
    """Whether its IOPS can be limited there."""
    p99_us: float | None = None
    """The worse one of reads and writes; None: not measured."""
    granted_iops: float | None = None
    """What its limit in force really grants; None: all of it."""

    def is_throttled(self, limits: Mapping[str, float]) -> bool:
        """Whether one of these limits, by VM, sets its rate, or its own maximum does."""
        if at_limit(self.iops, limits.get(self.vm), self.granted_iops):
            return True
        return self.vm not in limits and at_limit(self.iops, self.slo.max_iops)


@dataclass(frozen=True, slots=True)
class Protection:
    """Limits in force, and the state for the next step."""

    state: LimitState = field(default_factory=LimitState)
    known_iops: float = 0.0
    """Rate that the device delivers."""
    notes: tuple[str, ...] = ()
    """Reasons, one sentence each."""

    @property
    def limits(self) -> Mapping[str, float]:
        """IOPS, by VM throttled."""
        return self.state.limits

    @property
    def served(self) -> tuple[str, ...]:
        """VMs for which others are throttled."""
        return self.state.served


def step(
    before: Protection,
    vms: Sequence[Contender],
    *,
    by_weight: bool = False,
    effect_steps: int = 1,
    p99_effect_steps: int = 1,
) -> Protection:
    """Limits in force from now on.

    `by_weight`: shares by weight have to be kept too, as nothing else does it. After `effect_steps` the
    contenders' rates show what a change has brought, after `p99_effect_steps` their p99.
    """
    held = {v.vm for v in vms if at_limit(v.iops, before.limits.get(v.vm), v.granted_iops)}
    known = sum(v.iops for v in vms)
    if before.limits:
        known = max(known, (1.0 - FADES_PER_WINDOW) * before.known_iops)
    # A share that a VM cannot use is everybody else's.
    given_up = before.state.not_helped if by_weight else ()
    wanting = {v.vm for v in vms if v.vm in held or (v.wants_more and v.vm not in given_up)}
    due = entitle([claim_of(v.vm, v.slo, v.iops, 1.0, wants_more=v.vm in wanting) for v in vms], known)
    weights = sum(v.slo.weight for v in vms)
    bounded = [
        Bounded(
            vm=v.vm,
            iops=v.iops,
            fair_iops=known * v.slo.weight / weights,
            busy=v.vm in wanting,
            min_iops=_attainable_min_iops(v, due),
            due_iops=due.rates[v.vm],
            keeps_share=by_weight and len(wanting) > 1 and v.vm in wanting,
            # What a VM waits for its own limit is not due to others.
            p99_us=None if v.is_throttled(before.limits) else v.p99_us,
            max_p99_us=v.slo.p99_latency_us,
            limitable=v.limitable,
            effect_windows=p99_effect_steps if v.slo.p99_latency_us and v.p99_us else effect_steps,
            granted_iops=v.granted_iops,
        )
        for v in vms
    ]
    state, _ = control(before.state, bounded)
    notes = [f"{vm}: {not_helped_text(state, vm)}" for vm in state.not_helped]
    wanted = sum(v.slo.min_iops or 0.0 for v in vms if v.vm in wanting)
    if wanted > known > 0.0:
        notes.insert(
            0,
            f"the minimums of the active VMs add up to {wanted:,.0f} IOPS, but the device "
            f"delivers {known:,.0f}: each is reduced to {known / wanted:.0%}",
        )
    return Protection(state, known, tuple(notes))


def _attainable_min_iops(vm: Contender, due: Entitlements) -> float:
    """Its minimum, or the part of it that can be kept."""
    minimum = vm.slo.min_iops or 0.0
    return min(minimum, due.rates[vm.vm]) if due.overcommitted else minimum


# A limit of a VM on a whole drive, divided among the namespaces that it uses.

_ALL: Mapping[DeviceNumber, float] = MappingProxyType({})


def split_limit(
    limit_iops: float,
    iops: Mapping[DeviceNumber, float],
    before: Mapping[DeviceNumber, float],
    granted: Mapping[DeviceNumber, float] = _ALL,
) -> dict[DeviceNumber, float]:
    """Parts by namespace that add up to `limit_iops`, in proportion to what the VM does on each.

    `iops` is what it does, by namespace; `before` are the parts in force, whose proportion stays unless the
    VM is throttled on one namespace while it leaves room on another; `granted` is what they really grant. A
    namespace that it did nothing on gets no part, and is not limited, until it does; one with a part keeps
    it, and begins with `LEAST_SHARE` at least, so that the VM is not stopped there.
    """
    known = {name: before[name] for name in before if name in iops}
    used = [name for name, each in iops.items() if each > 0 or name in known]
    if len(used) < 2:
        return dict.fromkeys(used or iops.keys(), limit_iops)
    total = sum(iops[name] for name in used)
    held = any(at_limit(iops[name], part, granted.get(name)) for name, part in known.items())
    if len(known) == len(used) and not (held and total < AT_LIMIT * sum(known.values())):
        return _scaled(known, limit_iops)
    if total <= 0:
        return _scaled(dict.fromkeys(used, 1.0), limit_iops)
    return _scaled({name: max(LEAST_SHARE, iops[name] / total) for name in used}, limit_iops)


def _scaled(parts: Mapping[DeviceNumber, float], limit_iops: float) -> dict[DeviceNumber, float]:
    whole = sum(parts.values())
    return {name: limit_iops * part / whole for name, part in parts.items()}
