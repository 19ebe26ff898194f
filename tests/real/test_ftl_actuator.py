"""The actuator of a served emulated SSD: weights, limits and OPS are set, verified and restored."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Server, make_device, served
from waiting import until

from slo_ctl.act.journal import Journal
from slo_ctl.act.keeper import SettingKeeper
from slo_ctl.act.ssd import READING_VALID_S, ServedFtlActuator
from slo_ctl.model.decision import Decision, OpsMove
from slo_ctl.model.setting import ActError, Knob, Lever, OutcomeState, Setting

STREAMS = {"web": "a", "db": "b", "ci": "c"}


class Rig:
    """A device with three namespaces, and a keeper with its journal."""

    def __init__(self, root: Path) -> None:
        self.root = root
        make_device(root, "name=d,size=48MiB,op=60%,dies=2", "name=a", "name=b", "name=c")
        self.server = Server(root, "d", "--latency", "real")
        self.start()

    def start(self) -> None:
        self.journal = Journal(self.root / "journal.json")
        self.actuator = ServedFtlActuator("d", self.server.run.control, self.journal)
        self.keeper = SettingKeeper([self.actuator], self.journal)

    def state(self) -> dict[str, Any]:
        with self.server.control() as control:
            output = control.statistics()["namespaces"]
        return {
            n["name"]: (n["weight"], n["limit_iops"], n["limit_bytes_s"], n["space"]["ops_blocks"])
            for n in output
        }

    def move(self, *moves: OpsMove) -> list[str]:
        return self.actuator.apply(Decision(moves=moves), STREAMS)

    def settle(self) -> None:
        with self.server.control() as control:
            until(
                lambda: not any(n["space"]["pending_out_blocks"] for n in control.statistics()["namespaces"]),
                "all blocks have moved",
            )


@pytest.fixture
def rig(root: Path) -> Iterator[Rig]:
    rig = Rig(root)
    try:
        yield rig
    finally:
        rig.actuator.close()
        rig.server.stop()


def test_hanging_server_is_waited_for_once_not_per_setting(rig: Rig) -> None:
    wanted = [
        weight("a", 2.0),
        weight("b", 2.0),
        Setting(limit("a", "total_iops"), 500.0, "web", "its maximum"),
    ]
    rig.keeper.apply(wanted)
    took_s: list[float] = []
    pid = rig.server.pid()
    os.kill(pid, signal.SIGSTOP)
    stats = Path(f"/proc/{pid}/task").glob
    until(lambda: all(" T " in each.read_text() for each in stats("*/stat")), "all threads are stopped")
    time.sleep(READING_VALID_S)  # the cached reading has expired
    try:
        for _ in range(2):
            began_s = time.monotonic()
            outcomes = rig.keeper.apply(wanted, verify_all=True)
            took_s.append(time.monotonic() - began_s)
            assert {outcome.state for outcome in outcomes} == {OutcomeState.UNAPPLIED}
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "has not answered for 0.5 s" in outcomes[0].reason or "does not answer" in outcomes[0].reason
    # Not a performance test: waiting for three knobs with the default timeout of control sockets takes 30 s.
    assert max(took_s) < 15
    until(
        lambda: {o.state for o in rig.keeper.apply(wanted, verify_all=True)} == {OutcomeState.UNCHANGED},
        "the server answers again",
    )


def limit(namespace: str, name: str) -> Knob:
    return Knob(Lever.FTL_LIMIT, f"d/{namespace}", name)


def weight(namespace: str, value: float) -> Setting:
    return Setting(Knob(Lever.FTL_WEIGHT, f"d/{namespace}", "weight"), value, "web", "as decided")


def test_weights_and_limits_are_set_and_restored(rig: Rig) -> None:
    before = rig.state()
    wanted = [
        weight("a", 3.5),
        weight("b", 1.0),
        Setting(limit("a", "total_iops"), 500.0, "web", "as decided"),
        Setting(limit("a", "total_bytes_s"), 1e6, "web", "max_bandwidth"),
        Setting(limit("b", "total_bytes_s"), 2e6, "db", "max_bandwidth"),
    ]
    outcomes = rig.keeper.apply(wanted)
    assert [o.state for o in outcomes].count(OutcomeState.APPLIED) == len(wanted) - 1
    assert rig.state()["a"][:3] == (3.5, 500, 1e6)
    assert rig.state()["b"][:3] == (1, None, 2e6)
    rig.keeper.apply(wanted[:-2])
    assert rig.state()["a"][:3] == (3.5, 500, None)
    rig.keeper.undo()
    assert rig.state() == before


def test_ops_are_moved_and_restored(rig: Rig) -> None:
    before = rig.state()
    assert rig.move(OpsMove("web", "db", 3), OpsMove("ci", "db", 2), OpsMove("web", None, 1)) == []
    rig.settle()
    moved = {name: values[3] - before[name][3] for name, values in rig.state().items()}
    assert moved == {"a": -4, "b": 5, "c": -2}
    assert rig.keeper.apply([]) == []
    rig.move(OpsMove("db", "web", 1))
    rig.settle()
    rig.start()  # as after a crash
    outcomes = rig.keeper.undo()
    assert {o.state for o in outcomes} == {OutcomeState.RESTORED}, outcomes
    assert rig.state() == before
    assert len(rig.journal) == 0


def test_ops_of_a_resized_namespace_are_restored_without_what_it_took(rig: Rig) -> None:
    """The other namespaces get all of their OPS back, and the journal is empty."""
    before = rig.state()
    assert rig.move(OpsMove("db", "web", 3), OpsMove("ci", "web", 2)) == []
    rig.settle()
    blocks = 4
    with rig.server.control() as control:
        space = control.statistics()["namespaces"][0]["space"]
        block_bytes = 4096 * space["logical_pages"] // space["logical_blocks"]
        control.resize("a", (space["logical_blocks"] + blocks) * block_bytes)
    rig.start()  # as after a crash
    rig.actuator.restore_ops(time.monotonic() + 5.0)
    outcomes = rig.keeper.undo()
    assert {o.state for o in outcomes} == {OutcomeState.RESTORED}, outcomes
    changed = {name: values[3] - before[name][3] for name, values in rig.state().items()}
    assert changed == {"a": -blocks, "b": 0, "c": 0}
    assert len(rig.journal) == 0


def test_refused_ops_move_is_reported(rig: Rig) -> None:
    before = rig.state()
    (refusal,) = rig.move(OpsMove("web", "db", 10**6))
    assert refusal.startswith("unapplied: 1,000,000 blocks from web to db: ")
    (unknown,) = rig.move(OpsMove("stranger", "db", 1))
    assert "stranger has no namespace" in unknown
    assert rig.state() == before


def test_moves_go_on_over_a_connection_that_the_server_has_closed(rig: Rig) -> None:
    """The server closes a connection that is idle for a minute; statistics are read over another one."""
    rig.keeper.apply([weight("a", 2.0)])
    before = rig.state()["b"][3]
    rig.server.stop()
    with served(rig.root, "d", "--latency", "real") as rig.server:
        with rig.server.control() as control:
            rig.actuator.use_statistics(control.statistics())
        assert rig.move(OpsMove("web", "db", 2)) == []
        rig.settle()
        assert rig.state()["b"][3] == before + 2


def test_blocks_taken_by_others_are_reported_as_not_restored(rig: Rig) -> None:
    """OPS that cannot be restored is reported, and stays in the journal."""
    rig.move(OpsMove("web", None, 3))
    rig.settle()
    with rig.server.control() as control:
        control.move_ops(None, "c", 3)
        until(lambda: not control.statistics()["spare_blocks"], "c has the spare blocks")
    knob = Knob(Lever.FTL_OPS, "d/c", "ops_blocks")
    rig.journal.remove([knob])  # as if c had had this OPS before
    outcomes = {o.setting.knob.place: o for o in rig.keeper.undo()}
    assert outcomes["d/a"].state is OutcomeState.UNAPPLIED
    assert "lacks 3 OPS blocks, but the device has no spare blocks" in outcomes["d/a"].reason
    assert [knob.place for knob in rig.journal.originals()] == ["d/a"]


def test_restarted_server_is_used_again(rig: Rig) -> None:
    wanted = [weight("a", 3.5)]
    rig.keeper.apply(wanted)
    rig.server.stop()
    time.sleep(READING_VALID_S)
    (outcome,) = rig.keeper.apply(wanted, verify_all=True)
    assert outcome.state is OutcomeState.UNAPPLIED
    assert "d is not being served" in outcome.reason
    assert [o.state for o in rig.keeper.undo()] == [OutcomeState.UNAPPLIED]
    assert rig.move(OpsMove("web", "db", 1))[0].startswith("unapplied: no OPS of d were moved: ")
    with served(rig.root, "d", "--latency", "real") as rig.server:
        assert rig.state()["a"][0] == 3.5
        assert [o.state for o in rig.keeper.undo()] == [OutcomeState.RESTORED]
        assert rig.state()["a"][0] == 1


def test_settings_a_served_device_does_not_have_are_refused(rig: Rig) -> None:
    for knob in (limit("nobody", "total_iops"), limit("a", "read_iops")):
        with pytest.raises(ActError) as refused:
            rig.actuator.read(knob)
        assert refused.value.target_removed == (knob.place == "d/nobody")
    assert not rig.actuator.owns(Knob(Lever.FTL_LIMIT, "dd/a", "total_iops"))
    (outcome,) = rig.keeper.apply([Setting(Knob(Lever.FTL_WEIGHT, "d/a", "weight"), -1, "web", "bad")])
    assert outcome.state is OutcomeState.UNAPPLIED


def test_weights_without_latency_are_refused(root: Path) -> None:
    make_device(root, "name=d,size=128MiB")
    with served(root, "d") as server:
        journal = Journal(root / "journal.json")
        keeper = SettingKeeper([ServedFtlActuator("d", server.run.control, journal)], journal)
        (outcome,) = keeper.apply([Setting(Knob(Lever.FTL_WEIGHT, "d/d", "weight"), 2, "web", "test")])
        assert outcome.state is OutcomeState.UNAPPLIED
        assert "--latency real" in outcome.reason
