"""Which I/O scheduler a device should have, with which parameters, and by what weights are kept. Pure.

Every number that decides something is in THRESHOLDS, with where it comes from; every choice gives its reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from slo_ctl.decide.iocost_model import iocost_model, page_time_s
from slo_ctl.quantity import format_bytes_exact
from slo_ctl.serra.measurement import Access, Direction, Order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slo_ctl.model import Slo
    from slo_ctl.serra.analysis import Analysis, RatioSummary


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number that decides."""

    value: float
    unit: str
    meaning: str
    source: str


THRESHOLDS: Mapping[str, Threshold] = {
    "seek_average_ratio": Threshold(
        1.5,
        "x",
        "average read ratio over all sizes from which on a device counts as one that seeks",
        "Boito et al. 2015, table 6: reads of disks and RAID-0 2.24 to 3.48, of SSDs 1.04 to 1.10; "
        "this is near their "
        "geometric mean. Reads before writes: caches confound the write ratio",
    ),
    "seek_average_write_ratio": Threshold(
        1.5,
        "x",
        "the same for writes, where no reads were measured",
        "Boito et al. 2015, table 6: writes of disks and RAID-0 1.62 to 2.02, of SSDs 0.99 to 1.38",
    ),
    "merge_ratio": Threshold(
        3.0,
        "x",
        "largest ratio of any size from which on a device that does not seek still gains by order",
        "public iocost models: an SSD at queue depth 1 has 8.9 for reads, common SSDs 1.05, 36 "
        "measured SSDs at most "
        "2.91; this is just above these",
    ),
    "bfq_cost_us": Threshold(
        1.9,
        "us",
        "processor time of BFQ for each request",
        "BFQ 1.9 us, mq-deadline 0.7 us (kernel's bfq-iosched.rst)",
    ),
    "bfq_share": Threshold(
        0.1,
        "",
        "most of the shortest access time that BFQ may cost: 19 us, or 53 KIOPS at queue depth 1",
        "BFQ tops out at 80 to 400 KIOPS (bfq-iosched.rst): this stays below the lower of the two",
    ),
    "bfq_slice_idle_us": Threshold(
        8000,
        "us",
        "how long BFQ waits for the next request of the one it serves: without, there are no proportions",
        "measured: weights 100/300/600 gave 1:3.19:5.96 with 8 ms and low_latency=0, 1:1.29:2.11 with "
        "the defaults, 1:1:1 "
        "with 0",
    ),
    "bfq_max_budget": Threshold(
        512,
        "sectors",
        "most that BFQ serves one before the next: with budgets of its own choice shares wander",
        "measured on a loop device: the smallest share of 1:3:6 was 8 to 12 % with 0, 10 % with 512",
    ),
    "deadline_part": Threshold(
        0.5,
        "",
        "part of a latency target that a request may wait in mq-deadline before it must be sent",
        "the device needs the rest; a choice of ours, to be confirmed by experiment",
    ),
    "kyber_write_factor": Threshold(
        5.0,
        "x",
        "kyber's write target over its read target",
        "the kernel's defaults: 2 ms and 10 ms (kyber-iosched.c)",
    ),
}


class Character(StrEnum):
    """What a device is like."""

    SEEKS = "seeks"
    """Order matters at every size: hard disks and RAID of them."""
    MERGES = "merges"
    """Order matters for small requests only."""
    FLAT = "flat"
    """Order does not matter."""


class Weights(StrEnum):
    """By what shares in proportion are kept."""

    NONE = "none"
    BFQ = "bfq"
    IO_COST = "io.cost"


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What /sys says about a device and its host."""

    name: str
    number: str
    """`MAJOR:MINOR`."""
    rotational: bool | None
    hardware_queues: int | None
    offered: tuple[str, ...]
    """Schedulers that the kernel offers for it now."""
    current: str
    io_cost: bool
    """The host has cgroup v2 with io.cost."""
    in_guest: bool = False
    """A virtual disk: the host orders requests once more."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What the SLOs in force ask of a device."""

    weights: bool = False
    """More than one VM, and what they get is to be in proportion."""
    p99_target_us: float | None = None
    """The tightest."""


def needs_of(slos: Iterable[Slo]) -> Needs:
    """What these SLOs need; minimums are kept by weights, too."""
    known = list(slos)
    targets = [slo.p99_latency_us for slo in known if slo.p99_latency_us is not None]
    weighted = len({slo.weight for slo in known}) > 1 or any(slo.min_iops is not None for slo in known)
    return Needs(len(known) > 1 and weighted, min(targets, default=None))


@dataclass(frozen=True, slots=True)
class Choice:
    """One thing that was chosen, and why."""

    what: str
    value: str
    reason: str
    source: str = ""
    """Of the threshold that decided; empty where none did."""


@dataclass(frozen=True, slots=True)
class SchedulerChoice:
    """What a device should be set to."""

    scheduler: str
    parameters: dict[str, str] = field(default_factory=dict)
    """Names below `queue/iosched/`."""
    weights: Weights = Weights.NONE
    iocost_model: str | None = None
    """A line for io.cost.model."""
    iocost_qos: str | None = None
    """A line for io.cost.qos."""
    choices: tuple[Choice, ...] = ()
    """Everything above with its reason, and what the device was found to be."""
    cautions: tuple[str, ...] = ()


def choose(
    facts: DeviceFacts,
    needs: Needs,
    analysis: Analysis | None,
    queue_depth: int = 1,
    given: str | None = None,
) -> SchedulerChoice:
    """Scheduler, parameters and weights for a device.

    `analysis` is None where there is no valid profile, and `queue_depth` what it was measured at. `given` is
    a scheduler that the operator wants: the rest is chosen to go with it.
    """
    cautions: list[str] = []
    character, found = characterise(facts, analysis, cautions)
    if given is not None:
        weights, by_weights = _weights_beside(facts, needs, analysis, given)
        scheduler, by_scheduler = given, Choice("scheduler", given, "the configuration says so")
    else:
        weights, by_weights = _choose_weights(facts, needs, character, analysis)
        scheduler, by_scheduler = _choose_scheduler(facts, needs, character, weights)
    parameters, by_parameters = _parameters(scheduler, needs, weights)
    model = qos = None
    choices = [found, by_weights, by_scheduler, *by_parameters]
    if weights is Weights.IO_COST and analysis is not None:
        model = iocost_model(analysis).line(facts.number)
        qos = _qos(facts, needs)
        reason = f"{queue_depth} at a time: rates in sequence and at random, read off the profile's lines"
        choices.append(Choice("io.cost.model", model or "the kernel's own", reason))
        choices.append(Choice("io.cost.qos", qos, _qos_reason(needs)))
        if queue_depth == 1:
            cautions.append(
                "the profile is of queue depth 1: proportions are exact below what the device can do, "
                "and the model "
                "says less than that; --queue-depth 32 profiles the capacity"
            )
        if analysis.summary(Direction.WRITE) is None:
            cautions.append("writes were not measured: the kernel keeps its own model of them")
    return SchedulerChoice(scheduler, parameters, weights, model, qos, tuple(choices), tuple(cautions))


def choose_tenant_scheduler(needs: Needs, tenants: int) -> Choice:
    """The scheduler of an emulated SSD, which orders its tenants' requests by itself."""
    if tenants < 2:
        return Choice("scheduler", "fifo", "one namespace has nobody to be told apart from")
    why = "weights are to be kept" if needs.weights else "nobody should take more device time than others"
    return Choice(
        "scheduler", "wfq", f"{tenants} namespaces share the drive, and {why}: device time by weight"
    )


def characterise(
    facts: DeviceFacts, analysis: Analysis | None, cautions: list[str]
) -> tuple[Character, Choice]:
    """What the device is like, by its profile; without one by the kernel's rotational flag."""
    for direction, name in (
        (Direction.READ, "seek_average_ratio"),
        (Direction.WRITE, "seek_average_write_ratio"),
    ):
        summary = analysis.summary(direction) if analysis is not None else None
        if summary is None or summary.average is None or summary.maximum is None:
            continue
        limit = THRESHOLDS[name]
        if summary.half_width is not None and _straddles(summary.average, summary.half_width, limit.value):
            cautions.append(
                f"the average {direction.value} ratio is {summary.average:.2f} ± "
                f"{summary.half_width:.0%}, and "
                f"{limit.value:g} decides: refine the profile (--budget)"
            )
        return _by_ratio(summary, limit)
    cautions.append(f"{facts.name} has no valid profile: `slo-ctl device profile` makes one")
    if facts.rotational:
        return Character.SEEKS, Choice("character", Character.SEEKS, "the kernel says that it rotates")
    return Character.FLAT, Choice("character", Character.FLAT, "the kernel does not say that it rotates")


def _straddles(average: float, half_width: float, limit: float) -> bool:
    return average / (1 + half_width) < limit < average * (1 + half_width)


def _by_ratio(summary: RatioSummary, limit: Threshold) -> tuple[Character, Choice]:
    average, most = summary.average or 0.0, summary.maximum or 0.0
    at = next((ratio.size_bytes for ratio in summary.ratios if ratio.value == summary.maximum), 0)
    told = (
        f"{summary.direction.value}s in sequence are {average:.2f} times as fast as at random on average, "
        f"{summary.minimum or 0.0:.2f} to {most:.2f} by size (most at {format_bytes_exact(at)})"
    )
    if average >= limit.value:
        return Character.SEEKS, Choice("character", Character.SEEKS, told, limit.source)
    merge = THRESHOLDS["merge_ratio"]
    if most >= merge.value:
        return Character.MERGES, Choice("character", Character.MERGES, told, merge.source)
    return Character.FLAT, Choice("character", Character.FLAT, told, limit.source)


def _choose_weights(
    facts: DeviceFacts, needs: Needs, character: Character, analysis: Analysis | None
) -> tuple[Weights, Choice]:
    if not needs.weights:
        return Weights.NONE, Choice("weights", Weights.NONE, "no SLO needs shares in proportion")
    bfq = "bfq" in facts.offered
    if character is Character.SEEKS and bfq:
        reason = "on a device that seeks, time slices keep proportions that a linear cost cannot"
        return Weights.BFQ, Choice("weights", Weights.BFQ, reason)
    if facts.io_cost and analysis is not None:
        reason = "io.cost works with every scheduler, and the profile fills its model"
        return Weights.IO_COST, Choice("weights", Weights.IO_COST, reason)
    too_fast = _too_fast_for_bfq(analysis)
    if bfq and not too_fast:
        why = (
            "there is no io.cost here (cgroup v2 has it)"
            if not facts.io_cost
            else "io.cost has no profile yet"
        )
        return Weights.BFQ, Choice("weights", Weights.BFQ, f"{why}, and bfq is offered")
    missing = too_fast or "bfq is not offered (modprobe bfq)"
    no_cost = "io.cost has no profile yet" if facts.io_cost else "there is no io.cost"
    reason = f"nothing here can keep shares: {no_cost}; {missing}"
    return Weights.NONE, Choice(
        "weights", Weights.NONE, reason, THRESHOLDS["bfq_share"].source if too_fast else ""
    )


def _weights_beside(
    facts: DeviceFacts, needs: Needs, analysis: Analysis | None, scheduler: str
) -> tuple[Weights, Choice]:
    """By what weights are kept beside a scheduler that was not ours to choose."""
    if not needs.weights:
        return Weights.NONE, Choice("weights", Weights.NONE, "no SLO needs shares in proportion")
    if scheduler == "bfq":
        return Weights.BFQ, Choice("weights", Weights.BFQ, "it is what the scheduler keeps")
    if facts.io_cost and analysis is not None:
        reason = "io.cost works with every scheduler, and the profile fills its model"
        return Weights.IO_COST, Choice("weights", Weights.IO_COST, reason)
    no_cost = "io.cost has no profile yet" if facts.io_cost else "there is no io.cost"
    reason = f"{scheduler} keeps no shares: {no_cost}"
    return Weights.NONE, Choice("weights", Weights.NONE, reason)


def _too_fast_for_bfq(analysis: Analysis | None) -> str:
    """Why BFQ would slow the device down; empty when it would not."""
    if analysis is None:
        return ""
    times = [
        time
        for direction in Direction
        if (time := page_time_s(analysis, Access(Order.RANDOM, direction))) is not None
    ]
    if not times:
        return ""
    share = THRESHOLDS["bfq_cost_us"].value / (min(times) * 1e6)
    limit = THRESHOLDS["bfq_share"].value
    return f"bfq would cost {share:.0%} of an access of {min(times) * 1e6:.0f} us" if share > limit else ""


def _choose_scheduler(
    facts: DeviceFacts, needs: Needs, character: Character, weights: Weights
) -> tuple[str, Choice]:
    if weights is Weights.BFQ:
        return "bfq", Choice("scheduler", "bfq", "it is what keeps the weights")
    for name, reason in _wanted(facts, needs, character):
        if name in facts.offered or name == "none":
            return name, Choice("scheduler", name, reason)
    return "none", Choice("scheduler", "none", "the kernel offers no other")


def _wanted(facts: DeviceFacts, needs: Needs, character: Character) -> list[tuple[str, str]]:
    """Schedulers from the best on, with reasons."""
    if facts.in_guest:
        return [("none", "a virtual disk: the host orders requests, and doing it twice only costs time")]
    single = facts.hardware_queues is None or facts.hardware_queues <= 1
    if character is Character.SEEKS:
        reason = "order pays on a device that seeks: requests are sorted, and none starves"
        return [("mq-deadline", reason), ("bfq", f"{reason} (mq-deadline is not offered)")]
    if needs.p99_target_us is not None and not single:
        reason = "a latency target, and several hardware queues: kyber throttles by latency, without sorting"
        return [
            ("kyber", reason),
            ("mq-deadline", f"{reason}; kyber is not offered (modprobe kyber-iosched)"),
        ]
    if needs.p99_target_us is not None:
        return [
            ("mq-deadline", "a latency target on one hardware queue: requests are sent by their deadline")
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


def _parameters(scheduler: str, needs: Needs, weights: Weights) -> tuple[dict[str, str], list[Choice]]:
    found: dict[str, tuple[str, str, str]] = {}
    target = needs.p99_target_us
    if scheduler == "bfq" and weights is Weights.BFQ:
        idle = THRESHOLDS["bfq_slice_idle_us"]
        found["low_latency"] = ("0", "its guesses at interactive tasks would override weights", idle.source)
        found["slice_idle_us"] = (f"{idle.value:.0f}", idle.meaning, idle.source)
        budget = THRESHOLDS["bfq_max_budget"]
        found["max_budget"] = (f"{budget.value:.0f}", budget.meaning, budget.source)
    elif scheduler == "mq-deadline" and target is not None:
        part = THRESHOLDS["deadline_part"]
        wait = f"{max(1, round(target * part.value / 1000))}"
        reason = f"half of the p99 target of {target:g} us, in ms"
        found["read_expire"] = (wait, reason, part.source)
        found["write_expire"] = (wait, reason, part.source)
    elif scheduler == "kyber" and target is not None:
        factor = THRESHOLDS["kyber_write_factor"]
        found["read_lat_nsec"] = (f"{target * 1000:.0f}", f"the p99 target of {target:g} us", "")
        found["write_lat_nsec"] = (
            f"{target * 1000 * factor.value:.0f}",
            f"{factor.value:g} times that of reads: writes wait in caches, reads are waited for",
            factor.source,
        )
    choices = [Choice(f"{scheduler} {name}", *rest) for name, rest in found.items()]
    return {name: rest[0] for name, rest in found.items()}, choices


def _qos(facts: DeviceFacts, needs: Needs) -> str:
    if needs.p99_target_us is None:
        return f"{facts.number} enable=1 ctrl=user rpct=0.00 rlat=0 wpct=0.00 wlat=0 min=100.00 max=100.00"
    target = f"{needs.p99_target_us:.0f}"
    targets = f"rpct=99.00 rlat={target} wpct=99.00 wlat={target}"
    return f"{facts.number} enable=1 ctrl=user {targets} min=50.00 max=150.00"


def _qos_reason(needs: Needs) -> str:
    if needs.p99_target_us is None:
        return "no latency target: the device's rate is what the model says, so that shares are exact"
    return f"the rate is lowered while p99 is over {needs.p99_target_us:g} us, and raised while it is not"
