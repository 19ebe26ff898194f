"""Moves of OPS: only if they pay, a few blocks at a time, and never below the minimum."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.decide import gc_model
from slo_ctl.decide.ops_plan import (
    FLOOR_OF_OWN_OPS,
    KNOWN_FROM_DRIVE_WRITES,
    STEPS_PER_OPS,
    OpsState,
    assume_rates,
    best_blocks,
    next_moves,
    next_ops_state,
    own_blocks,
)
from slo_ctl.model.sample import DeviceSample, FlashTiming, TimingModel, VmSample
from slo_ctl.model.slo import Slo

TIMING = FlashTiming(128, 60.0, 800.0, 1500.0, 102.0, TimingModel.FULL)
LOGICAL, OPS = 8192, 1228


def vm(name: str, writes: int, ops: int = OPS, weight: float = 1.0, logical: int = LOGICAL) -> VmSample:
    """A window of uniform writes in steady state."""
    u = gc_model.u_at_alpha((logical + ops) / logical, 128)
    victims = round(writes / (1 - u))
    return VmSample(
        vm=name,
        slo=Slo(weight=weight),
        active=True,
        window_s=1.0,
        requests=writes,
        host_page_writes=writes,
        gc_page_writes=victims - writes,
        victim_pages=victims,
        victim_valid_pages=victims - writes,
        logical_blocks=logical,
        ops_blocks=ops,
        min_ops_blocks=16,
    )


def sample(*vms: VmSample) -> DeviceSample:
    return DeviceSample(TIMING, vms)


def watched(drive_writes: float, *vms: VmSample) -> OpsState:
    """The state after `vms` have written this much."""
    state, window = OpsState(), sample(*vms)
    pages = 128 * sum(v.logical_blocks for v in vms)
    written = sum(v.host_page_writes for v in vms)
    for _ in range(round(drive_writes * pages / written)):
        state = next_ops_state(state, window)
    return state


def test_nothing_moves_before_the_device_has_been_observed_for_a_while() -> None:
    vms = vm("web", 20000), vm("db", 0)
    assert next_moves(watched(0.05, *vms), sample(*vms))[1] == ()


def test_profitable_move_goes_to_the_writer_step_by_step() -> None:
    vms = vm("web", 20000), vm("db", 2000)
    state, moves, plans = next_moves(watched(1.0, *vms), sample(*vms))
    (move,), (plan,) = moves, plans
    assert (move.source, move.target) == ("db", "web")
    assert 0 < move.blocks <= 2 * OPS // STEPS_PER_OPS
    assert plan.saving_s > plan.cost_s > 0
    assert state.plan_left == plan.blocks > move.blocks


@pytest.mark.parametrize("writes", [0, 200, 1000, 2000, 4000, 6000, 7000, 8000])
def test_announced_plan_is_the_part_that_pays(writes: int) -> None:
    vms = vm("web", 10000), vm("db", writes)
    state = watched(1.0, *vms)
    _, moves, plans = next_moves(state, sample(*vms))
    assert len(moves) == len(plans)
    wanted = best_blocks(state, sample(*vms))["web"] - OPS
    for plan in plans:
        assert plan.saving_s > plan.cost_s, "no announced move loses time"
        assert plan.blocks <= wanted


def test_last_steps_to_the_best_split_are_not_announced_if_they_cost_more_than_they_save() -> None:
    vms = vm("web", 10000), vm("db", 5000)
    state = watched(1.0, *vms)
    _, _, (plan,) = next_moves(state, sample(*vms))
    assert 0 < plan.blocks < best_blocks(state, sample(*vms))["web"] - OPS


def test_even_writers_with_even_ops_are_left_alone() -> None:
    vms = vm("web", 10000), vm("db", 10000)
    assert next_moves(watched(2.0, *vms), sample(*vms))[1:] == ((), ())


def test_a_gain_smaller_than_the_cost_moves_nothing() -> None:
    vms = vm("web", 10300), vm("db", 10000)
    state = watched(2.0, *vms)
    assert best_blocks(state, sample(*vms)) != {"web": OPS, "db": OPS}
    assert next_moves(state, sample(*vms))[1] == ()


def test_an_idle_vm_lends_only_a_part() -> None:
    vms = vm("web", 20000), vm("db", 0)
    state = watched(10.0, *vms)
    assert best_blocks(state, sample(*vms))["db"] >= FLOOR_OF_OWN_OPS * OPS - 1


def test_low_weight_vm_keeps_ops_by_weight() -> None:
    vms = vm("web", 20000, weight=1000.0), vm("db", 20)
    kept = best_blocks(watched(10.0, *vms), sample(*vms))["db"]
    web, db = own_blocks(((1000.0, LOGICAL), (1.0, LOGICAL)), 2 * OPS, 128)
    assert web + db == pytest.approx(2 * OPS)
    assert FLOOR_OF_OWN_OPS * db - 1 <= kept < 0.25 * OPS


def test_idle_high_weight_vm_keeps_at_most_an_even_part() -> None:
    vms = vm("web", 20000), vm("db", 0, weight=100.0)
    assert best_blocks(watched(10.0, *vms), sample(*vms))["db"] == int(FLOOR_OF_OWN_OPS * OPS)


def test_own_ops_are_even_for_equal_vms_and_grow_less_than_their_weights() -> None:
    assert own_blocks(((1.0, LOGICAL), (1.0, LOGICAL)), 2 * OPS, 128) == pytest.approx([OPS, OPS])
    light, heavy = own_blocks(((1.0, LOGICAL), (4.0, LOGICAL)), 2 * OPS, 128)
    assert light < heavy < 4.0 * light


def test_latency_bound_vm_keeps_all_its_ops() -> None:
    vms = vm("web", 20000), vm("db", 500)
    state = OpsState()
    for _ in range(200):
        state = next_ops_state(state, sample(*vms), {"db"})
    assert best_blocks(state, sample(*vms))["db"] >= OPS - 1
    assert next_moves(state, sample(*vms))[1] == (), "without it, most of the OPS would move"
    assert next_moves(watched(10.0, *vms), sample(*vms))[1] != ()


def test_latency_bound_vm_keeps_its_ops_from_the_first_plan_on() -> None:
    vms = vm("web", 20000), vm("db", 500)
    state, windows = OpsState(), 0
    while state.drive_writes < KNOWN_FROM_DRIVE_WRITES or not state.tracks["web"].fitted:
        state, windows = next_ops_state(state, sample(*vms), {"db"}), windows + 1
        assert next_moves(state, sample(*vms))[1] == (), windows
    assert 0.1 < state.drive_writes < 1.0


def test_vm_that_appears_later_is_judged_by_what_was_observed_of_it() -> None:
    web, db = vm("web", 20000), vm("db", 500)
    state = watched(10.0, web, vm("db", 0))
    state = replace(state, tracks={"web": state.tracks["web"]})
    for _ in range(10):
        state = next_ops_state(state, sample(web, db), {"db"})
    assert state.tracks["db"].is_latency_bound
    assert not state.tracks["web"].is_latency_bound


def test_progress_counts_from_where_the_plan_began() -> None:
    vms = vm("web", 20000), vm("db", 2000)
    state, _, (plan,) = next_moves(watched(1.0, *vms), sample(*vms))
    assert plan.share_done == 0.0
    half = plan.blocks // 2
    later = sample(vm("web", 20000, OPS + half), vm("db", 2000, OPS - half))
    state, _, (plan,) = next_moves(next_ops_state(state, later), later)
    assert plan.share_done == pytest.approx(half / (half + plan.blocks))
    assert 0.3 < plan.share_done < 0.7


def test_a_plan_that_grows_keeps_its_progress() -> None:
    vms = vm("web", 20000), vm("db", 2000)
    state, _, _ = next_moves(watched(1.0, *vms), sample(*vms))
    ops, done = OPS, [0.0]
    for _ in range(20):
        ops += 5
        # db writes less and less, so that web should have more and more of its OPS.
        later = sample(vm("web", 20000, ops), vm("db", 2000 // (ops - OPS), 2 * OPS - ops))
        state, _, plans = next_moves(next_ops_state(state, later), later)
        done += [plan.share_done for plan in plans]
    assert len(done) > 10
    assert done == sorted(set(done)), "it grows with every step"


def test_progress_of_a_finished_plan_does_not_count_for_the_next() -> None:
    vms = vm("web", 20000), vm("db", 2000)
    state, _, (plan,) = next_moves(watched(1.0, *vms), sample(*vms))
    settled = sample(vm("web", 20000, OPS + plan.blocks), vm("db", 2000, OPS - plan.blocks))
    state, moves, _ = next_moves(next_ops_state(state, settled), settled)
    assert not moves
    assert state.plan_moved == state.plan_left == 0


@given(
    st.lists(
        st.tuples(st.integers(1, 9000), st.integers(16, 3000), st.integers(0, 50000)), min_size=2, max_size=6
    )
)
def test_every_split_adds_up_and_keeps_the_floors(drawn: list[tuple[int, int, int]]) -> None:
    vms = [vm(f"vm{i}", writes, ops=ops, logical=logical) for i, (logical, ops, writes) in enumerate(drawn)]
    device = sample(*vms)
    state = next_ops_state(assume_rates(device), device)
    blocks = best_blocks(state, device)
    total = device.total_ops_blocks
    assert sum(blocks.values()) == total
    own = own_blocks(tuple((1.0, v.logical_blocks) for v in vms), total, 128)
    even = [total * v.logical_blocks / sum(v.logical_blocks for v in vms) for v in vms]
    kept = [int(FLOOR_OF_OWN_OPS * min(each)) for each in zip(own, even, strict=True)]
    floors = [max(v.min_ops_blocks, least) for v, least in zip(vms, kept, strict=True)]
    if sum(floors) <= total:
        assert all(blocks[v.vm] >= floor for v, floor in zip(vms, floors, strict=True))


def test_plan_ends_if_the_recipient_has_no_gc() -> None:
    busy, idle = vm("busy", 20_000), vm("idle", 0)
    state = watched(2.0, busy, idle)
    _, moves, _ = next_moves(state, sample(busy, idle))
    assert [move.target for move in moves] == ["busy"]
    # It now writes sequentially: victims are empty while its OPS grows, before u counts as settled.
    grown = busy._replace(ops_blocks=OPS + moves[0].blocks, victim_valid_pages=0, gc_page_writes=0)
    state = next_ops_state(state, sample(grown, idle._replace(ops_blocks=OPS - moves[0].blocks)))
    _, moves, _ = next_moves(state, sample(grown, idle._replace(ops_blocks=OPS - moves[0].blocks)))
    assert moves == ()


def test_a_vm_whose_u_jumps_with_less_ops_than_before_gets_them_back() -> None:
    """As with sequential writes, whose u depends on OPS more than the curve through one point predicts."""
    writer, other = vm("writer", 20_000), vm("other", 5_000)

    def with_u(u: float, ops: int) -> VmSample:
        victims = round(20_000 / (1 - u))
        valid = victims - 20_000
        return writer._replace(
            ops_blocks=ops, victim_pages=victims, victim_valid_pages=valid, gc_page_writes=valid
        )

    before = with_u(0.1, OPS), other
    after = with_u(0.5, OPS - 200), other._replace(ops_blocks=OPS + 200)
    state = watched(1.0, *before)
    assert best_blocks(state, sample(*before))["writer"] < OPS - 200
    state = next_ops_state(state, sample(*after))
    assert OPS - 200 < best_blocks(state, sample(*after))["writer"] < OPS + 100
    _, (move, *_), _ = next_moves(state, sample(*after))
    assert (move.source, move.target) == ("other", "writer")


def test_u_still_falling_after_a_move_does_not_end_a_plan() -> None:
    busy, idle = vm("busy", 20_000), vm("idle", 0)
    state = watched(2.0, busy, idle)
    _, moves, _ = next_moves(state, sample(busy, idle))
    after = sample(
        busy._replace(ops_blocks=OPS + moves[0].blocks), idle._replace(ops_blocks=OPS - moves[0].blocks)
    )
    state = next_ops_state(state, after)
    assert next_moves(state, after)[1]
