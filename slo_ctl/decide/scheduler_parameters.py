"""Parameters of a chosen scheduler and of io.cost, for a latency target or without one. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from slo_ctl.decide.profile_fit import Analysis
from slo_ctl.model.measurement import RAND_READ, RAND_WRITE, Access, Direction, accesses_of

# Thresholds of the choice of an I/O scheduler, each with its source.


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number that a choice depends on."""

    value: float
    unit: str
    meaning: str
    source: str


THRESHOLDS: Mapping[str, Threshold] = {
    "seek_average_ratio": Threshold(
        1.5,
        "x",
        "average read ratio over all sizes from which on a device counts as one that seeks",
        "Boito et al. 2015, table 6: reads of disks and RAID-0 2.24 to 3.48, of SSDs 1.04 to 1.10; this is "
        "near their geometric mean. Reads before writes: caches confound the write ratio",
    ),
    "seek_average_write_ratio": Threshold(
        1.5,
        "x",
        "the same for writes, if no reads were measured",
        "Boito et al. 2015, table 6: writes of disks and RAID-0 1.62 to 2.02, of SSDs 0.99 to 1.38",
    ),
    "merge_ratio": Threshold(
        3.0,
        "x",
        "largest ratio of any size from which on a device that does not seek still gains by order",
        "public iocost models: an SSD at queue depth 1 has 8.9 for reads, common SSDs 1.05, 36 measured SSDs "
        "at most 2.91; this is just above these",
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
        "how long BFQ waits for the next request of the current queue: without it, shares are not kept",
        "measured: weights 100/300/600 gave 1:3.19:5.96 with 8 ms and low_latency=0, 1:1.29:2.11 with the "
        "defaults, 1:1:1 with 0",
    ),
    "bfq_max_budget": Threshold(
        512,
        "sectors",
        "most that BFQ serves one queue before the next: with automatic budgets shares drift",
        "measured on a loop device: the smallest share of 1:3:6 was 8 to 12 % with 0, 10 % with 512",
    ),
    "bfq_target_budget": Threshold(
        128,
        "sectors",
        "the same with a latency target and no weights: requests wait for the turns of other queues",
        "measured on a modelled RAID-0, p99 of a reader beside two busy VMs, by round: 20, 22, 22 ms with "
        "128, 21, 27, 47 with 512, 100, 202, 215 with the kernel's defaults",
    ),
    "deadline_part": Threshold(
        0.5,
        "",
        "part of a latency target that a request may wait in mq-deadline before it must be sent",
        "the device needs the rest; not yet confirmed by experiment",
    ),
    "kyber_write_factor": Threshold(
        5.0,
        "x",
        "kyber's write target over its read target",
        "the kernel's defaults: 2 ms and 10 ms (kyber-iosched.c)",
    ),
}


_NO_TARGET_US = 25_000
"""Latency for io.cost.qos without a target (percentile 0): the kernel's accounting period is twice this
(`ioc_refresh_period_us` in blk-iocost.c). 25 ms is the kernel's default for SSDs. With 0, the period is 1 ms,
which is too short for slow drives: on an emulated NVMe drive, weights 1:3:6 gave 1:2.6:4.7, and 1:2.9:5.9
with 25 ms."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen value, and the reason."""

    what: str
    """Name of what was chosen, such as `scheduler`."""
    value: str
    reason: str
    source: str = ""
    """Source of the threshold that decided; empty if none did."""


def parameters_of(
    scheduler: str, p99_target_us: float | None, *, keeps_weights: bool, waits: bool = True
) -> list[Choice]:
    """Values of files below `queue/iosched/`; none if the kernel's defaults suffice.

    `keeps_weights`: bfq enforces weights. `waits`: for that it waits for the next request of a VM at present.
    """
    if scheduler == "bfq":
        return _of_bfq(p99_target_us, keeps_weights, waits)
    if p99_target_us is None:
        return []
    if scheduler == "mq-deadline":
        part = THRESHOLDS["deadline_part"]
        wait = f"{max(1, round(p99_target_us * part.value / 1000))}"
        # write_expire stays: with the same deadline, writes would delay reads, which guests wait for.
        reason = f"half of the p99 target of {p99_target_us:g} us, in ms"
        return [Choice("read_expire", wait, reason, part.source)]
    if scheduler == "kyber":
        factor = THRESHOLDS["kyber_write_factor"]
        return [
            Choice("read_lat_nsec", f"{p99_target_us * 1000:.0f}", f"the p99 target of {p99_target_us:g} us"),
            Choice(
                "write_lat_nsec",
                f"{p99_target_us * 1000 * factor.value:.0f}",
                f"{factor.value:g} times that of reads: writes wait in caches, reads are waited for",
                factor.source,
            ),
        ]
    return []


def _of_bfq(p99_target_us: float | None, keeps_weights: bool, waits: bool) -> list[Choice]:
    if not keeps_weights and p99_target_us is None:
        # Set explicitly: bfq may still have values for earlier weights or an earlier target.
        defaults = {"low_latency": "1", "slice_idle_us": "8000", "max_budget": "0"}
        return [Choice(name, value, "the kernel's default") for name, value in defaults.items()]
    guesses = (
        "its guesses at interactive tasks would override weights"
        if p99_target_us is None
        else "it favours new requests over waiting ones"
    )
    threshold = THRESHOLDS["bfq_slice_idle_us"]
    idle = Choice("slice_idle_us", f"{threshold.value:.0f}", threshold.meaning, threshold.source)
    if not waits:
        idle = Choice(
            "slice_idle_us", "0", "left out until a VM misses its share, because waiting slows others down"
        )
    budget = THRESHOLDS["bfq_max_budget" if keeps_weights else "bfq_target_budget"]
    return [
        Choice("low_latency", "0", guesses, threshold.source),
        idle,
        Choice("max_budget", f"{budget.value:.0f}", budget.meaning, budget.source),
    ]


def iocost_qos(number: str, p99_target_us: float | None) -> tuple[str, str]:
    """The line for io.cost.qos of the device `number` (`MAJOR:MINOR`), and the reason."""
    if p99_target_us is None:
        targets = f"rpct=0.00 rlat={_NO_TARGET_US} wpct=0.00 wlat={_NO_TARGET_US}"
        line = f"{number} enable=1 ctrl=user {targets} min=100.00 max=100.00"
        return line, "no latency target: the device runs at the rate of the model, so that shares are exact"
    target = f"{p99_target_us:.0f}"
    targets = f"rpct=99.00 rlat={target} wpct=99.00 wlat={target}"
    line = f"{number} enable=1 ctrl=user {targets} min=50.00 max=150.00"
    reason = f"the rate is lowered while p99 is over {p99_target_us:g} us, and raised while it is not"
    return line, reason


# The line for `io.cost.model`, from a device's access-time curves.
#
# The parameters of the kernel's linear model (Documentation/admin-guide/cgroup-v2.rst, "IO Interface Files")
# are, for reads and for writes, the sequential bandwidth and the rates of sequential and of random 4 KiB
# requests. SeRRa measures the ratio of these two rates.

PAGE_BYTES = 4096
"""Request size for rates in the kernel's model."""


@dataclass(frozen=True, slots=True)
class IoCostModel:
    """Coefficients of the kernel's model; None: not measured, so that the kernel keeps its own value."""

    rbps: int | None
    rseqiops: int | None
    rrandiops: int | None
    wbps: int | None
    wseqiops: int | None
    wrandiops: int | None

    def line(self, device: str) -> str | None:
        """Line for io.cost.model, for `device` (`MAJOR:MINOR`); None when nothing is known."""
        known = [f"{name}={value}" for name in self.__slots__ if (value := getattr(self, name)) is not None]
        return f"{device} ctrl=user model=linear {' '.join(known)}" if known else None


def iocost_model(analysis: Analysis) -> IoCostModel:
    """Coefficients from a profile. The first line is extended to sizes below the smallest one."""
    read, write = (_coefficients(analysis, direction) for direction in (Direction.READ, Direction.WRITE))
    return IoCostModel(*read, *write)


def page_time_s(analysis: Analysis, access: Access) -> float | None:
    """Access time of 4 KiB; if the line is not positive there, that of the profile's smallest size.

    None when not measured.
    """
    time = analysis.time_s(access, PAGE_BYTES)
    if time is not None:
        return time
    curve = analysis.curve(access, PAGE_BYTES)
    return None if curve is None else analysis.time_s(access, curve.interval.low_bytes)


def _coefficients(analysis: Analysis, direction: Direction) -> tuple[int | None, int | None, int | None]:
    sequential, random = accesses_of((direction,))
    rates = [
        size / time
        for curve in analysis.curves
        if curve.access == sequential
        for size in curve.interval.sizes()
        if (time := analysis.time_s(sequential, size)) is not None
    ]
    bps = max(rates, default=None)
    return (
        None if bps is None else max(1, math.floor(bps)),
        _iops(page_time_s(analysis, sequential)),
        _iops(page_time_s(analysis, random)),
    )


def _iops(time_s: float | None) -> int | None:
    return None if time_s is None else max(1, math.floor(1 / time_s))


# BFQ's processor time per request, compared with the device's access time.


def too_fast_for_bfq(analysis: Analysis | None) -> str:
    """Why BFQ would slow the device down; empty if it would not, or nothing was measured."""
    if analysis is None:
        return ""
    times = [
        time for access in (RAND_READ, RAND_WRITE) if (time := page_time_s(analysis, access)) is not None
    ]
    if not times:
        return ""
    share = THRESHOLDS["bfq_cost_us"].value / (min(times) * 1e6)
    limit = THRESHOLDS["bfq_share"].value
    return f"bfq would cost {share:.0%} of an access of {min(times) * 1e6:.0f} us" if share > limit else ""
