"""What a chosen scheduler and io.cost are set to, for a latency target or without one. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from slo_ctl.decide.scheduler_thresholds import THRESHOLDS

_NO_TARGET_US = 25_000
"""With a percentile of 0 no latency is a target, and still the kernel accounts in periods of twice this
(`ioc_refresh_period_us` in blk-iocost.c). 25 ms is its own default for SSDs. With 0 periods are 1 ms: hardly
a request of a slow drive fits in, and on an emulated NVMe drive 1:3:6 came out as 1:2.6:4.7, where it is
1:2.9:5.9 with 25 ms."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value below `queue/iosched/`, and why."""

    value: str
    reason: str
    source: str = ""
    """Of the threshold that decided; empty where none did."""


def parameters_of(
    scheduler: str, p99_target_us: float | None, *, keeps_weights: bool
) -> dict[str, Parameter]:
    """By name; `keeps_weights`: bfq keeps the shares of VMs. Empty where the kernel's defaults do."""
    if scheduler == "bfq":
        return _of_bfq(p99_target_us, keeps_weights)
    if p99_target_us is None:
        return {}
    if scheduler == "mq-deadline":
        part = THRESHOLDS["deadline_part"]
        wait = f"{max(1, round(p99_target_us * part.value / 1000))}"
        # Not write_expire: writes that are due as soon would go before the reads that are waited for.
        reason = f"half of the p99 target of {p99_target_us:g} us, in ms"
        return {"read_expire": Parameter(wait, reason, part.source)}
    if scheduler == "kyber":
        factor = THRESHOLDS["kyber_write_factor"]
        return {
            "read_lat_nsec": Parameter(
                f"{p99_target_us * 1000:.0f}", f"the p99 target of {p99_target_us:g} us"
            ),
            "write_lat_nsec": Parameter(
                f"{p99_target_us * 1000 * factor.value:.0f}",
                f"{factor.value:g} times that of reads: writes wait in caches, reads are waited for",
                factor.source,
            ),
        }
    return {}


def _of_bfq(p99_target_us: float | None, keeps_weights: bool) -> dict[str, Parameter]:
    if not keeps_weights and p99_target_us is None:
        # Said, as a scheduler that stays keeps what was set for weights or a target before.
        defaults = {"low_latency": "1", "slice_idle_us": "8000", "max_budget": "0"}
        return {name: Parameter(value, "the kernel's default") for name, value in defaults.items()}
    guesses = (
        "its guesses at interactive tasks would override weights"
        if p99_target_us is None
        else "it favours what has just begun, not what is waited for"
    )
    idle = THRESHOLDS["bfq_slice_idle_us"]
    budget = THRESHOLDS["bfq_max_budget" if keeps_weights else "bfq_target_budget"]
    return {
        "low_latency": Parameter("0", guesses, idle.source),
        "slice_idle_us": Parameter(f"{idle.value:.0f}", idle.meaning, idle.source),
        "max_budget": Parameter(f"{budget.value:.0f}", budget.meaning, budget.source),
    }


def iocost_qos(number: str, p99_target_us: float | None) -> tuple[str, str]:
    """The line for io.cost.qos of the device `number` (`MAJOR:MINOR`), and why."""
    if p99_target_us is None:
        targets = f"rpct=0.00 rlat={_NO_TARGET_US} wpct=0.00 wlat={_NO_TARGET_US}"
        line = f"{number} enable=1 ctrl=user {targets} min=100.00 max=100.00"
        return line, "no latency target: the device's rate is what the model says, so that shares are exact"
    target = f"{p99_target_us:.0f}"
    targets = f"rpct=99.00 rlat={target} wpct=99.00 wlat={target}"
    line = f"{number} enable=1 ctrl=user {targets} min=50.00 max=150.00"
    reason = f"the rate is lowered while p99 is over {p99_target_us:g} us, and raised while it is not"
    return line, reason
