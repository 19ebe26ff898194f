"""Each check finds its own kind of fault in fake results, and no other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from daemon_sim.checks import Violation, check
from daemon_sim.entitlement import Ledger, ideal_pages
from daemon_sim.result import COUNTERS, GAUGES, Epoch, Result, SloChange
from daemon_sim.scenario import DEVICE, Drive, Event, EventKind, Load, Scenario, SimulatedVm
from slo_ctl.model.slo import Slo
from slo_ctl.model.status import HostStatus, Verdict, VmStatus

SECONDS = 600
SPEC = "preset=fast15,size=64MiB,op=25%,channels=2,dies=2,block=128KiB"


def status(at_s: float, rows: dict[str, tuple[Verdict, str, Slo]]) -> HostStatus:
    vms = tuple(
        VmStatus(vm, DEVICE, (), slo, "vm set", "", "", verdict, reason)
        for vm, (verdict, reason, slo) in rows.items()
    )
    return HostStatus(at_s, 10.0, 1.0, 0, 0.0, "", vms=vms)


def result(weights: dict[str, float], hostile: str = "") -> Result:
    """VMs that all want more and get exactly their shares of 1,000 pages a second, with verdict ok."""
    vms = tuple(
        SimulatedVm(
            vm, number, Load(queue_depth=8), (("weight", weight),), honest=Load() if vm == hostile else None
        )
        for number, (vm, weight) in enumerate(weights.items())
    )
    scenario = Scenario("made up", Drive(SPEC, len(vms)), vms, length_s=SECONDS)
    well = dict.fromkeys(weights, (Verdict.OK, "", Slo()))
    by_second = {name: np.zeros((len(vms), SECONDS)) for name in (*COUNTERS, *GAUGES)}
    for row, weight in enumerate(weights.values()):
        share = weight / sum(weights.values())
        by_second["device_ns"][row] = 2e9 * share
        by_second["requests"][row] = by_second["pages"][row] = 1000 * share
        by_second["queued_ns"][row] = 1e9
        by_second["weight"][row] = weight
    by_second["limit_iops"][:] = np.inf
    return Result(
        scenario,
        tuple(weights),
        by_second,
        np.ones((len(vms), SECONDS), np.bool_),
        moves_ns=np.zeros(SECONDS),
        epochs=[Epoch(float(at_s), status(at_s, well)) for at_s in range(SECONDS)],
        slo_changes=[SloChange(0.0, vm, Slo(weight)) for vm, weight in weights.items()],
    )


def say(
    run: Result, vm: str, verdict: Verdict, start_s: int, end_s: int, reason: str = "", slo: Slo | None = None
) -> None:
    for at_s in range(start_s, end_s):
        rows = {row.vm: (row.verdict, row.reason, row.slo) for row in run.epochs[at_s].status.vms}
        reported = rows | {vm: (verdict, reason, slo or rows[vm][2])}
        run.epochs[at_s] = Epoch(float(at_s), status(at_s, reported))


def names(violations: list[Violation]) -> set[str]:
    return {violation.check for violation in violations}


def test_correct_run_violates_nothing() -> None:
    run = result({"a": 1.0, "b": 3.0})
    assert check(run, result({"a": 1.0, "b": 3.0})) == []


def test_lower_total_than_without_the_daemon_is_a_violation() -> None:
    run, without = result({"a": 1.0, "b": 1.0}), result({"a": 1.0, "b": 1.0})
    run.of("pages")[:, 100:110] *= 0.8
    assert check(run, without, names=["conserved"]) == [], "the drive is as busy: shares need its time"
    run.of("device_ns")[:, 100:110] *= 0.8
    (found,) = check(run, without, names=["conserved"])
    assert 90 < found.at_s <= 100
    run.moves_ns[100:110] = 0.2 * without.of("device_ns")[:, 100:110].sum(axis=0)
    assert check(run, without, names=["conserved"]), "moves take more than their budget"
    run.of("device_ns")[:, 100:110] *= 0.9 / 0.8
    assert check(run, without, names=["conserved"]) == [], "moves take the rest, within their budget"
    run.of("device_ns")[:, 100:110] *= 0.8 / 0.9
    run.moves_ns[:] = 0
    lumpy = result({"a": 1.0, "b": 1.0})
    lumpy.of("pages")[:, 115:130] *= 0.8
    assert check(run, lumpy, names=["conserved"]) == [], "without the daemon it serves no more in that window"
    say(run, "b", Verdict.OK, 90, 125, "500 IOPS, minimum 400")
    assert check(run, without, names=["conserved"]), "no VM has a minimum"


def test_idle_dies_while_requests_wait_are_a_violation() -> None:
    run, without = result({"a": 1.0, "b": 1.0}), result({"a": 1.0, "b": 1.0})
    run.of("device_ns")[:, 100:110] *= 0.96
    assert check(run, without, names=["busy"]) == []
    run.of("device_ns")[:, 100:110] *= 0.96
    (found,) = check(run, without, names=["busy"])
    assert found.at_s == 97, "the first window with 7 such seconds"
    assert "92% of the device time" in found.text
    run.moves_ns[100:110] = 0.1 * without.of("device_ns")[:, 100:110].sum(axis=0)
    assert check(run, without, names=["busy"]) == []
    run.moves_ns[:] = 0
    run.of("queued_ns")[:, 105] = 0
    assert check(run, without, names=["busy"]) == [], "no request waits for the drive"


def test_lower_total_of_the_fluid_ideal_is_allowed_if_reported() -> None:
    run, without = result({"a": 1.0, "b": 1.0}), result({"a": 1.0, "b": 1.0})
    # A page of a takes 1 ms and one of b 9 ms: equal shares are 174 pages/s each.
    without.of("pages")[:] = np.array((900, 100))[:, None]
    without.of("device_ns")[:] = 0.9e9
    run.of("device_ns")[:] = 0.8e9
    run.of("pages")[:] = 160
    assert check(run, without, names=["conserved"]), "status does not report it"
    reason = "each page takes 9.0 times the device time of one of a"
    say(run, "b", Verdict.OK, 0, SECONDS, reason)
    assert check(run, without, names=["conserved"]) == []
    run.of("pages")[0, 300:400] = 150
    run.of("pages")[1, 300:400] = 150
    (found,) = check(run, without, names=["conserved"])
    assert 290 < found.at_s <= 300, "a tenth less than the ideal"
    run.of("pages")[:] = 160
    # A VM whose requests do not wait wants what it had without the daemon.
    run.of("queued_ns")[:] = 0.3e9
    assert check(run, without, names=["conserved"]), (
        "b asks for 160, which leaves 306 of the 900 that a asks for"
    )


def test_bounds_in_force_excuse_what_they_cost_and_no_more() -> None:
    run, without = result({"a": 1.0, "b": 1.0}), result({"a": 1.0, "b": 1.0})
    run.slo_changes.append(SloChange(0.0, "a", Slo(1.0, max_iops=100.0)))
    say(run, "a", Verdict.CAPPED, 0, SECONDS, "at its maximum of 100 IOPS", Slo(max_iops=100.0))
    for name in ("pages", "requests", "device_ns"):
        run.of(name)[0] *= 0.2
        run.of(name)[1] *= 1.8
    assert check(run, without, names=["conserved", "busy"]) == [], "b has what a may not use"
    for name in ("pages", "requests", "device_ns"):
        run.of(name)[1] /= 1.8
    assert names(check(run, without, names=["conserved", "busy"])) == {"conserved", "busy"}
    run.of("queued_ns")[:] *= 0.1
    assert check(run, without, names=["conserved", "busy"]) == [], "b has what it asks for"
    kept = result({"a": 1.0, "b": 1.0})
    say(kept, "a", Verdict.OK, 0, SECONDS, "500 IOPS, minimum 400", Slo(min_iops=400.0))
    assert check(kept, without, names=["conserved", "busy"]) == []
    for name in ("pages", "requests", "device_ns"):
        kept.of(name)[:, 300:400] *= 0.8
    assert names(check(kept, without, names=["conserved", "busy"])) == {"conserved", "busy"}


def test_while_a_server_does_not_answer_its_last_status_counts() -> None:
    run, without = result({"a": 1.0, "b": 1.0}), result({"a": 1.0, "b": 1.0})
    for name in ("pages", "device_ns"):
        run.of(name)[:, 100:200] *= 0.3
    for vm in "ab":
        say(run, vm, Verdict.NO_MECHANISM, 100, 250, "the server does not answer")
    assert check(run, without, names=["conserved"])
    say(run, "a", Verdict.OK, 99, 100, "b is limited for it", Slo(p99_latency_us=1e4))
    assert check(run, without, names=["conserved"]) == []


def test_the_fluid_ideal_keeps_minimums_and_maximums() -> None:
    run, without = result({"a": 1.0, "b": 1.0}), result({"a": 1.0, "b": 1.0})
    without.of("pages")[:] = np.array((900, 100))[:, None]
    without.of("device_ns")[:] = 0.9e9

    def ideal(vm: str, slo: Slo) -> float:
        run.slo_changes = [SloChange(0.0, vm, slo)]
        return ideal_pages(Ledger(run), Ledger(without), 100, 110, 20) / 10

    assert ideal("a", Slo()) == pytest.approx(347, abs=2)
    assert ideal("a", Slo(weight=9.0)) == pytest.approx(1000, rel=0.02)
    assert ideal("b", Slo(max_iops=100.0)) == pytest.approx(1000, rel=0.02)
    assert ideal("b", Slo(min_iops=180.0)) == pytest.approx(180 + 108, abs=4)
    assert ideal("b", Slo(min_iops=1e4)) == pytest.approx(191, abs=2), "all of the time of the dies"


def test_missed_entitlement_is_a_violation_in_windows_and_overall() -> None:
    run = result({"a": 1.0, "b": 1.0})
    run.of("pages")[0, 200:400] *= 0.85
    found = check(run, names=["entitled"])
    assert {violation.at_s for violation in found if "until 600" not in violation.text} >= {240.0, 300.0}
    assert check(run, names=["ok"]) == [], "one tenth less than due is ok"
    slightly = result({"a": 1.0, "b": 1.0})
    slightly.of("pages")[0] *= 0.94
    (first, second) = check(slightly, names=["entitled"])
    assert {first.vm, second.vm} == {"a", "b"}
    assert "until 600 s" in first.text, "only the long run is held to 2 %"


def test_entitlements_beside_a_minimum_are_those_of_the_current_speed() -> None:
    run = result({"a": 1.0, "b": 1.0})
    run.slo_changes[0] = SloChange(0.0, "a", Slo(1.0, min_iops=600.0))
    # The minimum takes all but 5 % until the drive gets faster.
    rates = np.array([[475.0, 25.0]] * 90 + [[1000.0, 1000.0]] * (SECONDS - 90)).T
    run.of("requests")[:] = run.of("pages")[:] = rates
    assert check(run, names=["entitled"]) == []
    run.of("requests")[:, 60:90] = run.of("pages")[:, 60:90] = np.array([[400.0], [100.0]])
    assert {violation.vm for violation in check(run, names=["entitled"])} == {"a", "b"}


def test_beside_a_minimum_that_does_not_fit_all_others_share_the_rest() -> None:
    """A VM of few requests outstanding takes its part of the rest, and no more."""
    run = result({"minimum": 1.0, "deep": 1.0, "shallow": 1.0})
    vms = run.scenario.vms
    shallow = replace(vms[2], load=Load(queue_depth=1))
    run = replace(run, scenario=replace(run.scenario, vms=(*vms[:2], shallow)))
    run.slo_changes[0] = SloChange(0.0, "minimum", Slo(1.0, min_iops=2000.0))
    # 5 % of all are left to the weights.
    run.of("requests")[:] = run.of("pages")[:] = np.array([[950.0], [25.0], [25.0]])
    assert check(run, names=["entitled"]) == []
    run.of("requests")[:] = run.of("pages")[:] = np.array([[950.0], [20.0], [30.0]])
    assert {violation.vm for violation in check(run, names=["entitled"])} == {"deep"}
    run.of("requests")[:] = run.of("pages")[:] = np.array([[970.0], [15.0], [15.0]])
    assert {violation.vm for violation in check(run, names=["entitled"])} == {"deep", "minimum"}


def test_drive_that_serves_nothing_keeps_no_entitlement() -> None:
    run = result({"a": 1.0, "b": 3.0})
    run.of("requests")[:] = run.of("pages")[:] = 0.0
    assert names(check(run, names=["entitled"])) == {"entitled"}


def test_no_entitlement_is_checked_within_a_minute_of_a_change() -> None:
    run = result({"a": 1.0, "b": 1.0})
    run.of("pages")[0, 300:360] *= 0.5
    assert check(run, names=["entitled"])
    run.happened.append((300.0, Event(300.0, EventKind.SET_SLO, "a")))
    assert check(run, names=["entitled"]) == []


def test_vm_that_does_not_want_more_is_not_checked() -> None:
    run = result({"a": 1.0, "b": 1.0, "c": 1.0})
    run.of("pages")[0] *= 0.2
    run.of("queued_ns")[0] *= 0.3
    assert check(run, names=["entitled", "ok"]) == []


def test_false_verdicts_are_violations() -> None:
    run = result({"a": 1.0, "b": 1.0})
    say(run, "a", Verdict.INSUFFICIENT, 200, 220)
    (found,) = check(run, names=["insufficient"])
    assert (found.vm, found.at_s) == ("a", 200.0)
    run.of("pages")[0, 150:300] *= 0.5
    assert check(run, names=["insufficient"]) == []
    assert [each.vm for each in check(run, names=["ok"])].count("a") == 2, "before and after the report"


def test_vm_that_gets_nothing_is_insufficient_and_not_ok() -> None:
    run = result({"a": 1.0, "b": 1.0})
    run.of("pages")[0] = run.of("requests")[0] = 0.0
    assert "0% of the pages" in next(each.text for each in check(run, names=["ok"]) if each.vm == "a")
    say(run, "a", Verdict.INSUFFICIENT, 0, SECONDS)
    assert check(run, names=["ok", "insufficient"]) == []


def test_a_minimum_that_is_missed_is_not_ok() -> None:
    run = result({"a": 1.0, "b": 1.0})
    run.slo_changes.append(SloChange(100.0, "a", Slo(1.0, min_iops=800.0)))
    assert {each.vm for each in check(run, names=["ok"])} >= {"a"}


def test_rate_above_the_maximum_is_a_violation() -> None:
    run = result({"a": 1.0, "b": 1.0})
    run.slo_changes.append(SloChange(100.0, "a", Slo(1.0, max_iops=490.0)))
    run.happened.append((100.0, Event(100.0, EventKind.SET_SLO, "a")))
    assert check(run, names=["maximum"]) == [], "500, and 539 in 10 s are saved up"
    run.of("requests")[0, 300:310] = 560.0
    (found,) = check(run, names=["maximum"])
    assert (found.vm, found.text) == ("a", "104% of what its maximum allows, until 311 s")
    run.happened.append((290.0, Event(290.0, EventKind.STOP_DAEMON, lasts_s=20.0)))
    assert check(run, names=["maximum"]) == []


def test_moves_beyond_the_budget_are_violations() -> None:
    run = result({"a": 1.0, "b": 1.0})
    run.of("backlog_ns")[0] = 1e9
    dies = run.scenario.drive.record().drive.dies
    run.moves_ns[:] = 0.099e9 * dies
    assert check(run, names=["moves"]) == []
    run.moves_ns[100:105] = 0.2e9 * dies
    (found,) = check(run, names=["moves"])
    assert found.text.startswith("15.0% of die time"), "five seconds at 20 %, five at 9.9 %"
    run.of("backlog_ns")[0, 90:110] = 0.0
    assert check(run, names=["moves"]) == [], "moves on an idle drive are not limited"


def test_oscillating_limits_are_violations() -> None:
    run = result({"a": 1.0, "b": 1.0})
    run.of("limit_iops")[1, ::2] = 400.0
    (found,) = check(run, names=["settled"])
    assert found.vm == "b"


def test_a_weight_may_follow_a_cost_but_not_oscillate() -> None:
    def settles(weights: NDArray[np.float64]) -> bool:
        run = result({"a": 1.0, "b": 1.0})
        run.of("weight")[1] = weights
        found = check(run, names=["settled"])
        assert {violation.vm for violation in found} <= {"b"}
        return not found

    def zigzag(swing: float, steps: int) -> NDArray[np.float64]:
        """Up by `swing` in so many equal steps of 2 s each, down again, and so on."""
        up = np.repeat(np.linspace(0.0, np.log1p(swing), steps + 1), 2)
        return np.exp(np.resize(np.concatenate([up, up[::-1]]), SECONDS))

    at_s = np.arange(SECONDS)
    assert settles(np.exp2(at_s / 60)), "a slow drift, as costs change"
    assert settles(np.exp2(at_s // 5 / 12)), "in steps of 6 %"
    assert settles(np.where(at_s < 300, 1.0, 3.0)), "at once"
    assert settles(np.exp(np.abs(at_s - 360) / 60)), "down and up again: one turn"
    assert settles(zigzag(0.08, 1)), "noise"
    assert not settles(zigzag(0.30, 1))
    assert not settles(zigzag(0.30, 6)), "steps of 5 %"
    assert not settles(zigzag(0.30, 20)), "steps of 1.3 %, every 40 s"


@pytest.mark.parametrize("gain", [0.02, 0.2])
def test_gain_of_a_hostile_vm_is_a_violation(gain: float) -> None:
    run, honest = result({"a": 1.0, "b": 1.0}, "a"), result({"a": 1.0, "b": 1.0})
    run.of("pages")[0] *= 1 + gain
    run.of("requests")[1] *= 1 - gain
    found = check(run, None, honest, names=["hostile"])
    assert [each.vm for each in found] == (["a", "b"] if gain > 0.05 else [])


def test_vm_that_a_hostile_one_starves_completely_is_a_violation() -> None:
    run, honest = result({"a": 1.0, "b": 1.0}, "a"), result({"a": 1.0, "b": 1.0})
    run.of("pages")[0] *= 2
    run.of("pages")[1] = run.of("requests")[1] = 0.0
    assert [each.vm for each in check(run, None, honest, names=["hostile"])] == ["a", "b"]


def test_hostile_pages_that_slow_all_vms_alike_are_no_gain() -> None:
    run, honest = result({"a": 1.0, "b": 1.0}, "a"), result({"a": 1.0, "b": 1.0})
    run.of("pages")[:] *= 0.8
    run.of("requests")[:] *= 0.8
    assert check(run, None, honest, names=["hostile"]) == []
    run.of("pages")[1] *= 0.9
    assert [each.vm for each in check(run, None, honest, names=["hostile"])] == ["b"]


def test_missing_status_and_epochs_are_violations() -> None:
    run = result({"a": 1.0, "b": 1.0})
    run.running[1, 100:200] = False
    (found,) = check(run, names=["status"])
    assert (found.vm, found.text) == ("b", "is in the status but not running")
    say(run, "a", Verdict.UNAPPLIED, 50, 60, "refused")
    run.failures.append((7.0, "epoch: KeyError"))
    run.not_restored = ("ns0 weight: 1 before, 3 now",)
    assert names(check(run, names=["epochs", "restored"])) == {"epochs", "restored"}
    run.happened.append((45.0, Event(45.0, EventKind.SILENCE, lasts_s=10.0)))
    assert [each.at_s for each in check(run, names=["epochs"])] == [7.0]
