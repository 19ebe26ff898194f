"""Choice of a device's I/O scheduler, its parameters, and the mechanism that enforces weights. Pure.

The thresholds are in scheduler_parameters.py; every choice has a reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum

from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.decide.device_use import ManagedStreams, used_by
from slo_ctl.decide.profile_fit import Analysis, RatioSummary
from slo_ctl.decide.scheduler_parameters import (
    THRESHOLDS,
    Choice,
    Threshold,
    iocost_model,
    iocost_qos,
    parameters_of,
    too_fast_for_bfq,
)
from slo_ctl.model.host import DeviceNumber, Stream, Vm
from slo_ctl.model.measurement import Direction
from slo_ctl.model.setting import Knob, Lever, Setting
from slo_ctl.model.slo import Slo


class Character(StrEnum):
    """How much faster a device serves requests in sequence than at random."""

    SEEKS = "seeks"
    """Faster at every size: hard disks and RAID of them."""
    MERGES = "merges"
    """Faster for small requests only."""
    FLAT = "flat"
    """Not faster."""


class Weights(StrEnum):
    """Mechanism that enforces shares by weight."""

    NONE = "none"
    BFQ = "bfq"
    IO_COST = "io.cost"


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Properties of a device and its host, from /sys."""

    name: str
    number: str
    """`MAJOR:MINOR`."""
    rotational: bool | None
    hardware_queues: int | None
    offered: tuple[str, ...]
    """Schedulers that the kernel offers for the device."""
    current: str
    """Scheduler in use."""
    io_cost: bool
    """Whether the host has cgroup v2 with io.cost."""
    in_guest: bool = False
    """Whether it is a virtual disk, whose requests the host orders again."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What the SLOs in force require of a device."""

    weights: bool = False
    """Whether several VMs have to get shares by weight."""
    p99_target_us: float | None = None
    """Lowest target; None: no target."""
    waits: bool = True
    """Whether weights need bfq to wait for the next request of a VM (`idle_waits`)."""


def needs_of(slos: Iterable[Slo]) -> Needs:
    """Needs of these SLOs. Minimums need weights, too."""
    all_slos = list(slos)
    targets = [slo.p99_latency_us for slo in all_slos if slo.p99_latency_us is not None]
    weighted = len({slo.weight for slo in all_slos}) > 1 or any(slo.min_iops is not None for slo in all_slos)
    return Needs(len(all_slos) > 1 and weighted, min(targets, default=None))


@dataclass(frozen=True, slots=True)
class SchedulerChoice:
    """Scheduler, parameters and mechanism for weights of a device."""

    scheduler: str
    parameters: dict[str, str] = field(default_factory=dict)
    """Values by name below `queue/iosched/`."""
    weights: Weights = Weights.NONE
    iocost_model: str | None = None
    """Line for io.cost.model; None: the kernel's own model."""
    iocost_qos: str | None = None
    """Line for io.cost.qos; None: io.cost is not used."""
    waits_for_weights: bool = False
    """Whether weights are the only reason for which bfq may have to wait for the next request of a VM."""
    choices: tuple[Choice, ...] = ()
    """Reasons of all values, and the character of the device."""
    cautions: tuple[str, ...] = ()
    """Sentences on what makes the choice uncertain."""


def choose(
    facts: DeviceFacts,
    needs: Needs,
    analysis: Analysis | None,
    queue_depth: int = 1,
    given: str | None = None,
) -> SchedulerChoice:
    """Scheduler, parameters and mechanism for weights of a device.

    `analysis`: of the device's profile, None without a valid one; `queue_depth`: that of the profile.
    `given`: a scheduler that the operator has configured; None: it is chosen, too.
    """
    cautions: list[str] = []
    by_character = characterise(facts, analysis, cautions)
    character = Character(by_character.value)
    by_weights = _choose_weights(facts, needs, character, analysis, given)
    weights = Weights(by_weights.value)
    if given is not None:
        by_scheduler = Choice("scheduler", given, "the configuration says so")
    else:
        by_scheduler = _choose_scheduler(facts, needs, character, weights, too_fast_for_bfq(analysis))
    scheduler = by_scheduler.value
    # Where heads move, waiting for the next request of a sequence pays off by itself.
    has_heads = character is Character.SEEKS and _measured(analysis) is not None
    by_bfq = weights is Weights.BFQ
    waits_for_weights = by_bfq and not has_heads and needs.p99_target_us is None
    waits = needs.waits or not waits_for_weights
    parameters = parameters_of(scheduler, needs.p99_target_us, keeps_weights=by_bfq, waits=waits)
    by_parameters = [replace(each, what=f"{scheduler} {each.what}") for each in parameters]
    model = qos = None
    choices = [by_character, by_weights, by_scheduler, *by_parameters]
    if weights is Weights.IO_COST and analysis is not None:
        model = iocost_model(analysis).line(facts.number)
        qos, qos_reason = iocost_qos(facts.number, needs.p99_target_us)
        reason = f"{queue_depth} at a time: rates in sequence and at random, read off the profile's lines"
        choices.append(Choice("io.cost.model", model or "the kernel's own", reason))
        choices.append(Choice("io.cost.qos", qos, qos_reason))
        if queue_depth == 1:
            cautions.append(
                "the profile is of queue depth 1: proportions are exact below what the device can do, and "
                "the model says less than that; --queue-depth 32 profiles the capacity"
            )
        if analysis.summary(Direction.WRITE) is None:
            cautions.append("writes were not measured: the kernel keeps its own model of them")
    values = {each.what: each.value for each in parameters}
    reasons = tuple(choices), tuple(cautions)
    return SchedulerChoice(scheduler, values, weights, model, qos, waits_for_weights, *reasons)


def characterise(facts: DeviceFacts, analysis: Analysis | None, cautions: list[str]) -> Choice:
    """Character of a device by its profile, or without one by the kernel's rotational flag; adds cautions."""
    if (measured := _measured(analysis)) is not None:
        summary, limit = measured
        average = summary.average or 0.0
        if summary.half_width is not None and _straddles(average, summary.half_width, limit.value):
            cautions.append(
                f"the average {summary.direction.value} ratio is {average:.2f} ± {summary.half_width:.0%}, "
                f"and {limit.value:g} decides: refine the profile (--budget)"
            )
        choice = _by_ratio(summary, limit, facts.rotational is True)
        if facts.rotational and choice.value != Character.SEEKS:
            cautions.append(
                "the kernel reports it as rotational, and the profile that it does not seek: if it is a "
                "disk, profile it again while the host is idle (--fresh, a larger --file-size)"
            )
        return choice
    cautions.append(f"{facts.name} has no valid profile: measure one with `slo-ctl device profile`")
    if facts.rotational:
        return Choice("character", Character.SEEKS, "the kernel reports it as rotational")
    return Choice("character", Character.FLAT, "the kernel does not report it as rotational")


def _measured(analysis: Analysis | None) -> tuple[RatioSummary, Threshold] | None:
    """Ratios of reads, else of writes, and the average from which on a device seeks; None: not measured."""
    for direction, name in (
        (Direction.READ, "seek_average_ratio"),
        (Direction.WRITE, "seek_average_write_ratio"),
    ):
        summary = analysis.summary(direction) if analysis is not None else None
        if summary is not None and summary.average is not None and summary.maximum is not None:
            return summary, THRESHOLDS[name]
    return None


def _straddles(average: float, half_width: float, limit: float) -> bool:
    return average / (1 + half_width) < limit < average * (1 + half_width)


def _by_ratio(summary: RatioSummary, limit: Threshold, rotates: bool) -> Choice:
    average, most = summary.average or 0.0, summary.maximum or 0.0
    at = next((ratio.size_bytes for ratio in summary.ratios if ratio.value == summary.maximum), 0)
    reason = (
        f"{summary.direction.value}s in sequence are {average:.2f} times as fast as at random on average, "
        f"{summary.minimum or 0.0:.2f} to {most:.2f} by size (most at {format_bytes_exact(at)})"
    )
    if average >= limit.value:
        return Choice("character", Character.SEEKS, reason, limit.source)
    merge = THRESHOLDS["merge_ratio"]
    if most >= merge.value and rotates:
        reason += (
            "; the kernel reports it as rotational: the profile's seeks were short beside large transfers"
        )
        return Choice("character", Character.SEEKS, reason, merge.source)
    if most >= merge.value:
        return Choice("character", Character.MERGES, reason, merge.source)
    return Choice("character", Character.FLAT, reason, limit.source)


def _choose_weights(
    facts: DeviceFacts, needs: Needs, character: Character, analysis: Analysis | None, given: str | None
) -> Choice:
    """The mechanism that enforces weights; `given`: the configured scheduler, None if it is chosen, too."""
    if not needs.weights:
        return Choice("weights", Weights.NONE, "no SLO needs shares in proportion")
    bfq = "bfq" in facts.offered
    if given == "bfq":
        return Choice("weights", Weights.BFQ, "it is the scheduler in use")
    if given is None and character is Character.SEEKS and bfq:
        reason = "on a device that seeks, time slices keep proportions that a linear cost model cannot"
        return Choice("weights", Weights.BFQ, reason)
    if facts.io_cost and analysis is not None:
        reason = "io.cost works with every scheduler, and the profile fills its model"
        return Choice("weights", Weights.IO_COST, reason)
    no_cost = "io.cost has no profile yet" if facts.io_cost else "io.cost is not available"
    if given is not None:
        return Choice("weights", Weights.NONE, f"{given} does not enforce shares: {no_cost}")
    too_fast = too_fast_for_bfq(analysis)
    if bfq and not too_fast:
        why = no_cost if facts.io_cost else "io.cost is not available (it needs cgroup v2)"
        return Choice("weights", Weights.BFQ, f"{why}, and bfq is offered")
    missing = too_fast or "bfq is not offered (modprobe bfq)"
    source = THRESHOLDS["bfq_share"].source if too_fast else ""
    reason = f"nothing on this host can enforce shares: {no_cost}; {missing}"
    return Choice("weights", Weights.NONE, reason, source)


def _choose_scheduler(
    facts: DeviceFacts, needs: Needs, character: Character, weights: Weights, too_fast: str
) -> Choice:
    if weights is Weights.BFQ:
        return Choice("scheduler", "bfq", "it enforces the weights")
    for name, reason in _wanted(facts, needs, character, too_fast):
        if name in facts.offered or name == "none":
            return Choice("scheduler", name, reason)
    return Choice("scheduler", "none", "the kernel offers no other")


def _wanted(facts: DeviceFacts, needs: Needs, character: Character, too_fast: str) -> list[tuple[str, str]]:
    """Schedulers with reasons, the best first; `too_fast`: why bfq would slow the device down, or empty."""
    if facts.in_guest:
        return [("none", "a virtual disk: the host orders requests, and doing it twice only costs time")]
    single = facts.hardware_queues is None or facts.hardware_queues <= 1
    if character is Character.SEEKS:
        reason = (
            "a latency target on a device that seeks: turns are short, and a reader keeps its own"
            if needs.p99_target_us is not None
            else "on a device that seeks, one VM at a time keeps the heads in its area and its runs whole"
        )
        return [("bfq", reason), ("mq-deadline", "requests are sorted (bfq is not offered: modprobe bfq)")]
    if needs.p99_target_us is not None:
        reason = "a latency target: requests that delay others are throttled, not only reordered"
        others = [("kyber", reason), ("mq-deadline", "kyber is not offered (modprobe kyber-iosched)")]
        if not single or too_fast:
            return others
        return [
            ("bfq", "a latency target on one hardware queue: turns are short, and a reader keeps its own"),
            *others,
        ]
    if character is Character.MERGES:
        return [
            ("mq-deadline", "small requests gain by order: neighbours are merged and sorted at 0.7 us each")
        ]
    if single:
        return [
            ("mq-deadline", "one hardware queue: the kernel's own default, fair between reads and writes")
        ]
    return [("none", "order gains nothing, and several hardware queues need no lock between them")]


# Knobs and settings of a choice.


def scheduler_knob(name: str, number: str) -> Knob:
    """The knob for the scheduler of the block device `name` with the number `MAJOR:MINOR`."""
    return Knob(Lever.DEVICE_SCHEDULER, name, "scheduler", number)


def cost_knob(name: str, number: str, what: str) -> Knob:
    """The knob for io.cost.qos or io.cost.model (`what`: `qos` or `model`) of a block device."""
    return Knob(Lever.DEVICE_COST, name, what, number)


def tenant_scheduler_knob(device: str) -> Knob:
    """The knob for the scheduler of an emulated SSD that orders the requests of its namespaces."""
    return Knob(Lever.FTL_SCHEDULER, device, "scheduler")


def settings_of(choice: SchedulerChoice, facts: DeviceFacts) -> tuple[Setting, ...]:
    """Settings that apply a choice: the scheduler first, and the model of io.cost before it is enabled."""
    words = [choice.scheduler, *(f"{name}={value}" for name, value in choice.parameters.items())]
    settings = [
        Setting(scheduler_knob(facts.name, facts.number), " ".join(words), "", _reason(choice, "scheduler"))
    ]
    for what, line in (("model", choice.iocost_model), ("qos", choice.iocost_qos)):
        if line is not None:
            value = line.removeprefix(f"{facts.number} ")
            knob = cost_knob(facts.name, facts.number, what)
            settings.append(Setting(knob, value, "", _reason(choice, f"io.cost.{what}")))
    return tuple(settings)


def tenant_setting(device: str, choice: Choice) -> Setting:
    """The setting that applies a choice of the scheduler of an emulated SSD."""
    return Setting(tenant_scheduler_knob(device), choice.value, "", choice.reason)


def _reason(choice: SchedulerChoice, what: str) -> str:
    return next((each.reason for each in choice.choices if each.what == what), "")


# Needs of the VMs on a device, with a delay before they decrease.

SETTLE_S = 60.0
"""Time until lower needs take effect: a change of the scheduler stalls all I/O of a device."""


def vms_on(
    number: DeviceNumber,
    vms: Sequence[Vm],
    streams: Sequence[Stream],
    with_slo: Collection[str],
    managed: Collection[DeviceNumber] = (),
) -> tuple[str, ...]:
    """Names of the VMs whose SLOs count for the block device `number`, as for the settings of VMs.

    These have a disk on the device or did I/O there; or they have an SLO of their own, and are not known to
    use another device of `managed`.
    """
    numbers = {number, *managed}
    on_devices = ManagedStreams(streams, numbers)
    return tuple(
        sorted(
            vm.name
            for vm in vms
            if not vm.state.is_off and number in used_by(vm, numbers, on_devices, named=vm.name in with_slo)
        )
    )


def tenants_on(device: str, streams: Sequence[Stream]) -> tuple[str, ...]:
    """Names of the VMs on namespaces of an emulated SSD."""
    return tuple(sorted({s.vm for s in streams if s.tenant and s.tenant.device == device}))


def needs_on(names: Collection[str], slos: Mapping[str, Slo]) -> Needs:
    """Needs of the SLOs of these VMs."""
    return needs_of(slos[name] for name in names if name in slos)


@dataclass(frozen=True, slots=True)
class SettledNeeds:
    """Needs that a device is configured for."""

    needs: Needs
    lower_since_s: float | None = None
    """Monotonic time since when the current needs are lower; None: they are not."""


def settle(before: SettledNeeds | None, now: Needs, now_s: float) -> SettledNeeds:
    """Higher needs take effect at once, lower ones after `SETTLE_S`. `now_s`: monotonic time."""
    if before is None:
        return SettledNeeds(now)
    targets = [needs.p99_target_us for needs in (before.needs, now) if needs.p99_target_us is not None]
    both = Needs(before.needs.weights or now.weights, min(targets, default=None))
    if both == now:
        return SettledNeeds(now)
    since_s = now_s if before.lower_since_s is None else before.lower_since_s
    return SettledNeeds(now) if now_s - since_s >= SETTLE_S else SettledNeeds(both, since_s)


# Scheduler of an emulated device, and whether it keeps an SLO.


FAIR_SCHEDULER = "wfq"
"""The only scheduler of emulated devices on which weights have an effect."""
_UNTIMED = (
    "it is served without latency, so that no VM can be throttled or preferred (serve with --latency real)"
)


def choose_tenant_scheduler(
    needs: Needs, tenants: int, *, rotates: bool = False, analysis: Analysis | None = None
) -> Choice:
    """The scheduler by which an emulated device orders the requests of its tenants.

    `rotates`: it is a hard disk or an array of them, which sort requests. `analysis`: of the device's
    profile; None without a valid one: then a hard disk counts as a device that seeks.
    """
    if tenants < 2:
        return Choice("scheduler", "fifo", "there is only one namespace")
    if needs.weights:
        reason = f"{tenants} namespaces share the drive, and weights are to be kept: device time by weight"
        return Choice("scheduler", "wfq", reason)
    if needs.p99_target_us is not None:
        reason = f"{tenants} namespaces share the drive: one with few requests must not queue behind others"
        return Choice("scheduler", "wfq", reason)
    seeks, by_profile = rotates, ""
    if (measured := _measured(analysis)) is not None:
        character = _by_ratio(*measured, rotates)
        seeks, by_profile = character.value == Character.SEEKS, f"; by its profile {character.reason}"
    if rotates and seeks:
        reason = (
            "no weights to keep: the disks sort all waiting requests, and wfq would pass them on one by one"
        )
        return Choice("scheduler", "fifo", f"{reason}{by_profile}")
    if seeks:
        by_profile += ", but it does not sort requests"
    reason = f"{tenants} namespaces share the drive, and none should take more device time than others"
    return Choice("scheduler", "wfq", f"{reason}{by_profile}")


def why_not_kept(
    device: str, scheduler: str, own: Collection[Slo], weights: Set[float], *, timed: bool, ops: bool
) -> str:
    """Why no mechanism of the device can keep the SLO of a VM; empty if one can.

    `own`: SLOs of the VM's namespaces; `weights`: of all namespaces; `timed`: requests take modelled
    time; `ops`: namespaces have over-provisioning of their own that a policy can move.
    """
    if not timed:
        return _UNTIMED if any(slo != Slo() for slo in own) else ""
    if ops or scheduler == FAIR_SCHEDULER or len(weights) < 2:
        return ""
    return (
        f"{device} divides itself by {scheduler}, by which weights have no effect, and has no OPS to move "
        f'(write scheduler = "auto" in a [[device]] with name = "{device}")'
    )
