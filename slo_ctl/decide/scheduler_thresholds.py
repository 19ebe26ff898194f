"""The numbers that decide which I/O scheduler a device should have, each with where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    "bfq_target_budget": Threshold(
        128,
        "sectors",
        "the same where there is a latency target and no weights: who waits, waits for the others' turns",
        "measured on a modelled RAID-0, p99 of a reader beside two busy VMs, by round: 20, 22, 22 ms with "
        "128, 21, 27, 47 with 512, 100, 202, 215 with the kernel's defaults",
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
