"""The limit controller in small simulations: who is limited, for how long, and when limits are given up."""

from dataclasses import dataclass, replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.decide.entitlement import LEAST_SHARE
from slo_ctl.decide.limit_control import (
    CONFIRMED_AFTER,
    JUDGED_AFTER,
    LONGEST_RETRY,
    MOST_DECREASE,
    RETRY_AFTER,
    Effect,
    LimitsInForce,
    LimitState,
    control,
)
from slo_ctl.decide.objectives import ControlledVm


@dataclass
class World:
    """A device on which `web` gets what the others leave, up to its own maximum rate."""

    capacity: float = 1000.0
    able: float = 1000.0
    min_iops: float = 300.0
    others: tuple[str, ...] = ("db", "mail")
    busy: bool = True

    def run(self, windows: int, state: LimitState | None = None) -> tuple[LimitState, list[dict[str, float]]]:
        state = state or LimitState()
        rates = []
        for _ in range(windows):
            wanted = 0.48 * self.capacity
            got = {vm: min(wanted, state.limits.get(vm, wanted)) for vm in self.others}
            got["web"] = min(self.able, self.capacity - sum(got.values()))
            rates.append(got)
            fair = self.capacity / 3
            vms = [ControlledVm(vm, got[vm], fair, busy=True) for vm in self.others]
            vms.append(ControlledVm("web", got["web"], fair, busy=self.busy, min_iops=self.min_iops))
            state, _ = control(state, vms)
        return state, rates


def test_missed_minimum_is_reached_by_throttling_others() -> None:
    state, rates = World().run(30)
    assert rates[0]["web"] < 50
    assert rates[-1]["web"] >= 0.98 * 300
    assert set(state.limits) == {"db", "mail"}


def test_limits_settle() -> None:
    _, rates = World().run(200)
    late = [rate["web"] for rate in rates[-50:]]
    assert max(late) < 1.5 * min(late)
    assert min(late) > 0.9 * 300


def test_one_bad_window_throttles_no_vm() -> None:
    state, _ = World().run(1)
    assert not state.limits


def test_a_vm_that_does_not_keep_requests_outstanding_is_not_protected() -> None:
    state, rates = World(busy=False).run(20)
    assert not state.limits
    assert rates[-1]["db"] == rates[0]["db"]


def test_useless_limits_are_lifted_and_retried_with_backoff() -> None:
    world = World(able=60.0)
    state, rates = world.run(JUDGED_AFTER + CONFIRMED_AFTER + 1)
    assert rates[-1]["db"] == 480
    assert state.not_helped == ("web",)
    limited = 0
    for _ in range(2000):
        state, (rate,) = world.run(1, state)
        limited += rate["db"] < 480
    assert limited < 0.1 * 2000
    assert RETRY_AFTER < state.retry_delays["web"].length_windows <= LONGEST_RETRY


def test_limits_are_lifted_when_the_protected_vm_stops_asking() -> None:
    state, _ = World().run(30)
    assert state.limits
    state, _ = World(busy=False).run(1, state)
    assert state.limits  # it may just have paused
    state, _ = World(busy=False).run(20, state)
    assert not state.limits


def with_p99(web: ControlledVm, windows: int = 3, state: LimitState | None = None) -> LimitState:
    """Some windows in which `web` has a p99 beside a VM that does 900 IOPS, or its limit."""
    state = state or LimitState()
    for _ in range(windows):
        db = min(900.0, state.limits.get("db", 900.0))
        state, _ = control(state, [ControlledVm("db", db, 500.0, busy=True), web])
    return state


P99_MISSED = ControlledVm("web", 100.0, 500.0, busy=True, p99_us=40e3, max_p99_us=20e3)


def test_p99_is_protected_like_a_minimum() -> None:
    state = with_p99(P99_MISSED)
    assert state.protected_vms == ("web",)
    assert state.limits["db"] < 900


def test_one_measurement_of_a_p99_limits_no_vm() -> None:
    # It is measured every ten windows, and reported in each of them.
    assert not with_p99(P99_MISSED._replace(effect_windows=10), windows=10).limits
    assert with_p99(P99_MISSED._replace(effect_windows=10), windows=11).limits


def test_p99_of_a_vm_that_has_stopped_lowers_no_limit() -> None:
    state = with_p99(P99_MISSED)
    assert (
        with_p99(P99_MISSED._replace(busy=False, quiet=True), windows=20, state=state).limits == state.limits
    )


def test_limits_end_with_the_vm_they_are_for_whatever_others_are_promised() -> None:
    state = with_p99(P99_MISSED)
    mail = ControlledVm("mail", 200.0, 500.0, busy=True, min_iops=100.0)
    state, reason = control(state, [ControlledVm("db", 600.0, 500.0, busy=True), mail])
    assert not state.limits
    assert reason == "limits lifted: no VM has an objective that they help to meet"


def test_a_vm_that_pauses_keeps_its_limit_while_others_have_theirs() -> None:
    state = with_p99(P99_MISSED)
    limit = state.limits["db"]
    mail = ControlledVm("mail", 200.0, 500.0, busy=True)
    assert state.in_force
    in_force = replace(state.in_force, iops={"db": limit, "mail": 200.0})
    state = replace(state, in_force=in_force, hold_windows=0)
    state, _ = control(state, [mail, P99_MISSED], idle={"db"})
    assert state.limits["db"] == limit
    kept = P99_MISSED._replace(p99_us=10e3)
    for _ in range(50):
        pause = ControlledVm("db", 0.0, 500.0, busy=False, quiet=True)
        at_limit = mail._replace(iops=state.limits["mail"])
        state, _ = control(state, [pause, at_limit, kept])
    assert state.limits["mail"] > 200.0
    assert state.limits["db"] > limit


def test_limits_leave_a_part_of_the_share_that_a_vm_had_before_them() -> None:
    # The share of the total falls with the total; at first the p99 is missed by less, so limits keep falling.
    state, db = LimitState(), 900.0
    for _ in range(60):
        db = min(900.0, state.limits.get("db", 900.0))
        web = P99_MISSED._replace(p99_us=20e3 * (1.1 + db / 900.0), fair_iops=(db + 100.0) / 2)
        state, _ = control(state, [ControlledVm("db", db, (db + 100.0) / 2, busy=True), web])
        assert min(state.limits.values(), default=db) >= LEAST_SHARE * 500.0


def test_step_up_that_is_too_much_for_a_p99_is_taken_back_and_the_next_is_smaller() -> None:
    state, limits = LimitState(), [900.0]
    for _ in range(400):
        db = min(900.0, state.limits.get("db", 900.0))
        if db != limits[-1]:
            limits.append(db)
        web = P99_MISSED._replace(p99_us=40e3 if db > 500.0 else 5e3)
        state, _ = control(state, [ControlledVm("db", db, 500.0, busy=True), web])
    ups = [(before, after) for before, after in pairwise(limits) if after > before]
    missed = [(before, after) for before, after in ups if after > 500.0]
    assert len(missed) > 3
    for before, after in missed:
        assert limits[limits.index(after) + 1] == before
    steps = [after / before for before, after in missed]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] <= 1 / (1 - MOST_DECREASE) + 1e-9
    assert steps[-1] < 1.05


@given(st.lists(st.floats(0.0, 5000.0), min_size=3, max_size=60), st.floats(1.0, 5000.0))
def test_every_vm_keeps_a_part_of_its_share_and_limits_change_in_steps(
    web: list[float], minimum: float
) -> None:
    state = LimitState()
    for iops in web:
        vms = [
            ControlledVm("db", 1000.0, 800.0, busy=True),
            ControlledVm("web", iops, 800.0, busy=True, min_iops=minimum),
        ]
        before = dict(state.limits)
        state, _ = control(state, vms)
        assert "web" not in state.limits
        for vm, limit in state.limits.items():
            assert limit >= LEAST_SHARE * 800.0
            if vm in before:
                assert limit >= 0.69 * min(before[vm], 1000.0)


def p99_world(
    least_ms: float, target_ms: float, windows: int, state: LimitState | None = None
) -> tuple[LimitState, list[float]]:
    """The p99 of `web`, which sends occasional requests, falls from 40 ms in proportion to IOPS of `db`."""
    state, rates = state or LimitState(), []
    for _ in range(windows):
        db = min(900.0, state.limits.get("db", 900.0))
        rates.append(db)
        p99_ms = least_ms + (40.0 - least_ms) * db / 900.0
        web = ControlledVm("web", 10.0, 500.0, busy=False, p99_us=1e3 * p99_ms, max_p99_us=1e3 * target_ms)
        state, _ = control(state, [ControlledVm("db", db, 500.0, busy=True), web])
    return state, rates


def test_p99_is_reached_for_a_vm_with_pauses() -> None:
    state, rates = p99_world(1.0, 10.0, 60)
    assert state.protected_vms == ("web",)
    assert 1.0 + 39.0 * rates[-1] / 900.0 < 10.2
    assert min(rates[20:]) > 100, "not further than necessary"


def test_unreachable_p99_costs_little_and_is_reported() -> None:
    state, rates = p99_world(20.0, 10.0, 2000)
    assert sum(rates) > 0.97 * 900 * 2000
    assert state.retry_delays["web"].result.startswith("p99 at least 2")
    assert "ms with db limited to" in state.retry_delays["web"].result


def test_unreachable_p99_lifts_the_limits() -> None:
    state, _ = p99_world(12.0, 10.0, 60)
    assert not state.limits
    assert state.not_helped == ("web",)


def test_p99_target_that_is_changed_after_an_unreachable_one_is_tried_at_once() -> None:
    state, _ = p99_world(12.0, 10.0, 60)
    assert state.retry_delays["web"].windows > CONFIRMED_AFTER
    state, _ = p99_world(12.0, 14.0, CONFIRMED_AFTER, state)
    assert state.limits
    state, _ = p99_world(12.0, 14.0, 60, state)
    assert state.limits
    assert not state.not_helped


def test_limits_that_were_raised_and_then_did_not_help_do_not_delay_those_for_another_vm() -> None:
    db = ControlledVm("db", 500.0, 333.0, busy=True)
    web = ControlledVm("web", 100.0, 333.0, busy=True, min_iops=300.0)
    mail = ControlledVm("mail", 200.0, 333.0, busy=True, p99_us=900.0, max_p99_us=1000.0)
    raised = LimitState(
        LimitsInForce({"db": 500.0}, ("web",), 2100.0, raised_from={"db": 455.0}),
        missed_windows=CONFIRMED_AFTER - 1,
        effects={"web": Effect(1.0, 2000.0, steps=JUDGED_AFTER)},
    )
    state, reason = control(raised, [db, web, mail])
    assert "did not help" in reason
    state, _ = control(state, [db, web, mail])
    for _ in range(CONFIRMED_AFTER):
        state, _ = control(state, [db, web, mail._replace(p99_us=2000.0)])
    assert state.limits["db"] < 500.0
    assert state.in_force
    assert state.in_force.raise_after == JUDGED_AFTER


def test_limits_that_end_with_their_vms_leave_nothing_to_the_next_ones() -> None:
    web = ControlledVm("web", 100.0, 500.0, busy=True, min_iops=300.0)
    raised = LimitState(
        LimitsInForce({"db": 500.0}, ("web",), 900.0, raise_after=LONGEST_RETRY, raised_from={"db": 455.0})
    )
    state, _ = control(raised, [web])
    for _ in range(CONFIRMED_AFTER):
        state, _ = control(state, [web, ControlledVm("mail", 800.0, 500.0, busy=True)])
    assert state.in_force
    assert state.in_force.raise_after == JUDGED_AFTER
    assert state.in_force.iops["mail"] < 800.0
