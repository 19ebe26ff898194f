"""Which scheduler suits which device, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from slo_ctl.decide.profile_fit import Analysis, analyse
from slo_ctl.decide.request_sizes import DEFAULT_INTERVALS, draw_points
from slo_ctl.decide.scheduler import (
    Character,
    DeviceFacts,
    Needs,
    Weights,
    choose,
    choose_tenant_scheduler,
    needs_of,
    why_not_kept,
)
from slo_ctl.decide.scheduler_parameters import THRESHOLDS, iocost_model
from slo_ctl.model.measurement import (
    ACCESSES,
    RAND_READ,
    RAND_WRITE,
    SEQ_READ,
    SEQ_WRITE,
    Access,
    Direction,
    Measurement,
)
from slo_ctl.model.slo import Slo

KIB = 1024
ALL = ("none", "mq-deadline", "kyber", "bfq")
FACTS = DeviceFacts("sdx", "8:0", None, 1, ALL, "mq-deadline", io_cost=True)
WEIGHTS = Needs(weights=True)


def profiled(
    lines: Mapping[Access, tuple[float, float]], accesses: tuple[Access, ...] = ACCESSES, repetitions: int = 3
) -> Analysis:
    """An analysis of linear access times: us per KiB, and us."""
    return analyse(
        DEFAULT_INTERVALS,
        [
            Measurement(
                access, size, repetition, (lines[access][0] * size / KIB + lines[access][1]) * 1e-6, 100, 1.0
            )
            for access in accesses
            for size in draw_points(DEFAULT_INTERVALS, 2, 0)
            for repetition in range(repetitions)
        ],
    )


HDD = {SEQ_WRITE: (8, 60), RAND_WRITE: (8, 5000), SEQ_READ: (8, 60), RAND_READ: (8, 8000)}
SSD = {SEQ_WRITE: (2, 60), RAND_WRITE: (2, 70), SEQ_READ: (2, 80), RAND_READ: (2, 85)}
READAHEAD_SSD = {SEQ_WRITE: (2, 30), RAND_WRITE: (2, 40), SEQ_READ: (2, 5), RAND_READ: (2, 110)}
FAST = dict.fromkeys(ACCESSES, (0.2, 8))


@pytest.mark.parametrize("needs", [Needs(), Needs(p99_target_us=20_000)])
def test_a_disk_without_weights_gets_bfq(needs: Needs) -> None:
    choice = choose(FACTS, needs, profiled(HDD))
    assert (choice.scheduler, choice.weights, choice.iocost_model) == ("bfq", Weights.NONE, None)
    short_turns = {"low_latency": "0", "slice_idle_us": "8000", "max_budget": "128"}
    as_the_kernel = {"low_latency": "1", "slice_idle_us": "8000", "max_budget": "0"}
    assert choice.parameters == (short_turns if needs.p99_target_us else as_the_kernel)
    assert choice.choices[0].value == Character.SEEKS
    without = replace(FACTS, offered=("none", "mq-deadline", "kyber"))
    assert choose(without, needs, profiled(HDD)).scheduler == "mq-deadline"


def test_weights_take_precedence_over_a_latency_target() -> None:
    assert choose(FACTS, Needs(True, 20_000), profiled(HDD)).parameters["max_budget"] == "512"


def test_rotational_device_that_gains_at_small_sizes_seeks() -> None:
    short = {SEQ_WRITE: (8, 60), RAND_WRITE: (8, 900), SEQ_READ: (8, 60), RAND_READ: (8, 900)}
    assert choose(FACTS, Needs(), profiled(short)).choices[0].value == Character.MERGES
    rotates = choose(replace(FACTS, rotational=True), Needs(), profiled(short))
    assert rotates.choices[0].value == Character.SEEKS
    assert "rotational" in rotates.choices[0].reason
    flat = choose(replace(FACTS, rotational=True), Needs(), profiled(SSD))
    assert flat.choices[0].value == Character.FLAT
    assert any("profile it again" in caution for caution in flat.cautions)


def test_a_disk_with_weights_gets_bfq_with_slices() -> None:
    choice = choose(FACTS, WEIGHTS, profiled(HDD))
    assert (choice.scheduler, choice.weights) == ("bfq", Weights.BFQ)
    assert choice.parameters == {"low_latency": "0", "slice_idle_us": "8000", "max_budget": "512"}


def test_a_flat_device_with_weights_gets_io_cost() -> None:
    choice = choose(replace(FACTS, hardware_queues=8), WEIGHTS, profiled(SSD))
    assert (choice.scheduler, choice.weights) == ("none", Weights.IO_COST)
    assert choice.iocost_model is not None
    assert choice.iocost_model.startswith("8:0 ctrl=user model=linear rbps=")
    assert choice.iocost_qos is not None
    assert "min=100.00 max=100.00" in choice.iocost_qos
    assert any("queue depth 1" in caution for caution in choice.cautions)


def test_without_io_cost_bfq_unless_it_costs_too_much() -> None:
    facts = replace(FACTS, io_cost=False)
    assert choose(facts, WEIGHTS, profiled(SSD)).scheduler == "bfq"
    fast = choose(facts, WEIGHTS, profiled(FAST))
    assert (fast.weights, fast.scheduler) == (Weights.NONE, "mq-deadline")
    assert "bfq would cost" in fast.choices[1].reason


def test_a_latency_target_on_one_queue_gets_short_turns_unless_they_cost_too_much() -> None:
    target = Needs(p99_target_us=20_000)
    choice = choose(FACTS, target, profiled(SSD))
    assert (choice.scheduler, choice.parameters["max_budget"]) == ("bfq", "128")
    assert choose(FACTS, target, profiled(FAST)).scheduler == "kyber"


def test_a_latency_target_on_many_queues_gets_kyber() -> None:
    facts = replace(FACTS, hardware_queues=8)
    choice = choose(facts, Needs(p99_target_us=2000), profiled(SSD))
    assert choice.scheduler == "kyber"
    assert choice.parameters == {"read_lat_nsec": "2000000", "write_lat_nsec": "10000000"}
    without = replace(facts, offered=("none", "mq-deadline"))
    deadlines = choose(without, Needs(p99_target_us=20_000), profiled(SSD))
    assert deadlines.scheduler == "mq-deadline"
    assert deadlines.parameters == {"read_expire": "10"}, "writes do not compete with reads"


def test_a_target_reaches_the_qos_line() -> None:
    qos = choose(FACTS, Needs(weights=True, p99_target_us=5000), profiled(SSD)).iocost_qos
    assert qos is not None
    assert "rpct=99.00 rlat=5000" in qos


def test_without_a_target_io_cost_keeps_the_kernels_period() -> None:
    """rlat and wlat set the period even without percentiles; 0 would make it a millisecond."""
    qos = choose(FACTS, Needs(weights=True), profiled(SSD)).iocost_qos
    assert qos is not None
    assert "rpct=0.00 rlat=25000 wpct=0.00 wlat=25000 min=100.00 max=100.00" in qos


def test_readahead_makes_order_pay_for_small_requests() -> None:
    facts = replace(FACTS, hardware_queues=8)
    choice = choose(facts, Needs(), profiled(READAHEAD_SSD))
    assert choice.choices[0].value == Character.MERGES
    assert choice.scheduler == "mq-deadline"
    assert choose(facts, Needs(), profiled(SSD)).scheduler == "none"


def test_scheduler_inside_a_guest_is_none() -> None:
    assert choose(replace(FACTS, in_guest=True), Needs(), profiled(HDD)).scheduler == "none"


def test_without_a_profile_the_rotational_flag_decides_and_that_is_reported() -> None:
    for rotational, character in ((True, Character.SEEKS), (False, Character.FLAT), (None, Character.FLAT)):
        choice = choose(replace(FACTS, rotational=rotational), WEIGHTS, None)
        assert choice.choices[0].value == character
        assert choice.weights is Weights.BFQ
        assert any("no valid profile" in caution for caution in choice.cautions)


def test_unavailable_scheduler_is_not_chosen() -> None:
    facts = replace(FACTS, offered=("none",), io_cost=False, hardware_queues=8)
    for lines in (HDD, SSD, READAHEAD_SSD):
        for needs in (Needs(), WEIGHTS, Needs(p99_target_us=1000)):
            choice = choose(facts, needs, profiled(lines))
            assert (choice.scheduler, choice.weights) == ("none", Weights.NONE)


def test_an_uncertain_ratio_is_reported() -> None:
    # Read ratios near the threshold, from repetitions that disagree.
    found = [
        Measurement(access, size, repetition, time * (1 + 0.4 * (repetition % 2)) * 1e-6, 100, 1.0)
        for access, time in ((SEQ_READ, 100.0), (RAND_READ, 150.0))
        for size in draw_points(DEFAULT_INTERVALS, 2, 0)
        for repetition in range(4)
        if not (access == SEQ_READ and repetition % 2)
    ]
    found += [
        Measurement(SEQ_READ, size, repetition, 100e-6, 100, 1.0)
        for size in draw_points(DEFAULT_INTERVALS, 2, 0)
        for repetition in (1, 3)
    ]
    choice = choose(FACTS, Needs(), analyse(DEFAULT_INTERVALS, found))
    assert any("refine the profile" in caution for caution in choice.cautions)


def test_read_only_profile_fills_the_read_model() -> None:
    analysis = profiled(SSD, (SEQ_READ, RAND_READ))
    model = iocost_model(analysis)
    assert (model.wbps, model.wseqiops, model.wrandiops) == (None, None, None)
    line = model.line("8:0")
    assert line is not None
    assert "w" not in line.split("rrandiops")[1]
    assert any("writes were not measured" in each for each in choose(FACTS, WEIGHTS, analysis).cautions)


def test_io_cost_model_matches_the_curves() -> None:
    model = iocost_model(profiled(SSD))
    # 4 KiB: 2 us/KiB x 4 + 80 (85) us; 4 MiB in sequence: 2 x 4096 + 80 us.
    assert model.rseqiops == pytest.approx(1e6 / 88, abs=1)
    assert model.rrandiops == pytest.approx(1e6 / 93, abs=1)
    assert model.rbps == pytest.approx((4 << 20) / 8272e-6, rel=1e-6)


def test_a_line_below_zero_at_4_kib_falls_back_on_the_smallest_size() -> None:
    steep = dict.fromkeys(ACCESSES, (2.0, -10.0))
    assert iocost_model(profiled(steep)).rseqiops == pytest.approx(1e6 / (2 * 8 - 10), abs=1)


def test_iocost_model_without_a_profile_is_empty() -> None:
    assert iocost_model(analyse(DEFAULT_INTERVALS, [])).line("8:0") is None


def test_needs_are_derived_from_slos() -> None:
    assert needs_of([]) == Needs()
    assert needs_of([Slo(weight=3)]) == Needs()
    assert needs_of([Slo(), Slo()]) == Needs()
    assert needs_of([Slo(weight=3), Slo()]).weights
    assert needs_of([Slo(min_iops=100), Slo()]).weights
    assert needs_of([Slo(p99_latency_us=500), Slo(p99_latency_us=200)]).p99_target_us == 200


def test_scheduler_of_an_emulated_device_depends_on_its_tenants() -> None:
    for rotates in (False, True):
        assert choose_tenant_scheduler(WEIGHTS, 1, rotates=rotates).value == "fifo"
        assert choose_tenant_scheduler(WEIGHTS, 3, rotates=rotates).value == "wfq"
        assert choose_tenant_scheduler(Needs(p99_target_us=1e4), 3, rotates=rotates).value == "wfq"
    assert choose_tenant_scheduler(Needs(), 3).value == "wfq"
    assert choose_tenant_scheduler(Needs(), 3, rotates=True).value == "fifo"


@pytest.mark.parametrize(
    ("profile", "rotates", "scheduler", "reason"),
    [
        ("seeks", True, "fifo", "the disks sort all waiting requests"),
        ("flat", True, "wfq", "none should take more device time"),
        ("seeks", False, "wfq", "does not sort requests"),
        ("flat", False, "wfq", "none should take more device time"),
    ],
)
def test_the_profile_of_an_emulated_device_decides(
    profile: str, rotates: bool, scheduler: str, reason: str
) -> None:
    analysis = {"seeks": profiled(HDD), "flat": profiled(SSD)}[profile]
    choice = choose_tenant_scheduler(Needs(), 3, rotates=rotates, analysis=analysis)
    assert choice.value == scheduler
    assert reason in choice.reason
    assert "by its profile reads in sequence are" in choice.reason
    # Weights and targets need wfq on any device.
    assert choose_tenant_scheduler(WEIGHTS, 3, rotates=rotates, analysis=analysis).value == "wfq"


@pytest.mark.parametrize("scheduler", ["fifo", "rr", "wfq"])
@pytest.mark.parametrize("ops", [False, True])
def test_weights_on_a_device_that_ignores_them_are_reported(scheduler: str, ops: bool) -> None:
    heavy, unequal, equal = [Slo(weight=3)], {1.0, 3.0}, {3.0}
    reason = why_not_kept("d", scheduler, heavy, unequal, timed=True, ops=ops)
    assert bool(reason) == (scheduler != "wfq" and not ops)
    assert not reason or (f"by {scheduler}" in reason and '[[device]] with name = "d"' in reason)
    assert not why_not_kept("d", scheduler, heavy, equal, timed=True, ops=ops)
    assert "without latency" in why_not_kept("d", scheduler, heavy, equal, timed=False, ops=ops)
    assert not why_not_kept("d", scheduler, [Slo()], unequal, timed=False, ops=ops)


def test_every_threshold_has_a_source_and_every_choice_a_reason() -> None:
    assert all(each.source and each.meaning for each in THRESHOLDS.values())
    for needs in (Needs(), WEIGHTS, Needs(True, 1000.0)):
        for lines in (HDD, SSD, READAHEAD_SSD, FAST):
            assert all(each.reason for each in choose(FACTS, needs, profiled(lines)).choices)


def test_choice_depends_on_its_arguments_only() -> None:
    analysis = profiled(HDD)
    assert choose(FACTS, WEIGHTS, analysis) == choose(FACTS, WEIGHTS, analysis)
    assert analysis.summary(Direction.READ) is not None
