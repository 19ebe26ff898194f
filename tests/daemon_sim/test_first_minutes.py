"""The live example of the README in virtual time: every verdict of the first five minutes is right."""

from __future__ import annotations

import numpy as np
import pytest

from daemon_sim.checks import check
from daemon_sim.result import Result
from daemon_sim.run import simulate
from daemon_sim.scenario import Drive, Event, EventKind, Fields, Load, Scenario, SimulatedVm
from daemon_sim.scenarios import DRIVES
from slo_ctl.model.status import Verdict

LENGTH_S, WINDOW_S = 300, 10
TOLERANCE = 0.10
"""Tolerance of a share: docs/daemon.md, Verdicts."""


def first_minutes(apart_s: float, fields: Fields) -> Result:
    """`web` and `db` of the README are idle when the daemon starts, become active, and one of them pauses."""
    load = Load("uniform", queue_depth=8)
    events = (
        Event(0.5, EventKind.SLEEP, "web"),
        Event(0.5, EventKind.SLEEP, "db"),
        Event(8.0, EventKind.SET_SLO, "web", fields),
        Event(20.0, EventKind.WAKE, "web"),
        Event(20.0 + apart_s, EventKind.WAKE, "db"),
        Event(150.0, EventKind.SLEEP, "db"),
        Event(180.0, EventKind.WAKE, "db"),
    )
    vms = (SimulatedVm("web", 0, load), SimulatedVm("db", 1, load))
    return simulate(Scenario("README", Drive(DRIVES["8GiB"], 2), vms, events, float(LENGTH_S)))


@pytest.mark.parametrize("apart_s", [0.0, 5.0, 33.5])
@pytest.mark.parametrize("fields", [(("weight", 3.0), ("min_iops", 50.0)), (("weight", 1.0),)])
def test_every_verdict_is_right_while_vms_wake_up(apart_s: float, fields: Fields) -> None:
    run = first_minutes(apart_s, fields)
    assert check(run, names=["epochs", "status", "ok", "insufficient", "entitled", "moves"]) == []
    due = {"web": dict(fields)["weight"], "db": 1.0}
    changes_s = [at_s for at_s, _ in run.happened]
    requests, pages, waits_ns = (run.of(name) for name in ("requests", "pages", "queued_ns"))
    seen = dict.fromkeys(Verdict, 0)
    for epoch in run.epochs[1:]:
        window = slice(max(0, round(epoch.at_s) - WINDOW_S), round(epoch.at_s))
        changed = any(window.start - 1 <= at_s <= window.stop for at_s in changes_s)
        wants = (waits_ns[:, window] >= 0.95e9).all(axis=1)
        for row in epoch.status.vms:
            vm = run.vms.index(row.vm)
            seen[row.verdict] += 1
            where = f"{row.vm} at {epoch.at_s} s: {row.verdict}: {row.reason}"
            match row.verdict:
                case Verdict.IDLE:
                    assert requests[vm, window].sum() < 20, where
                case Verdict.SETTLING:
                    assert changed or epoch.at_s < WINDOW_S, where
                case Verdict.OK:
                    assert requests[vm, window].any(), where
                    if wants.all() and not changed:
                        share = pages[vm, window].sum() / pages[:, window].sum()
                        rightful = due[row.vm] / sum(due.values())
                        assert share >= (1.0 - TOLERANCE - 0.02) * rightful, where
                case _:
                    pytest.fail(where)
    assert seen[Verdict.OK] > 400
    assert seen[Verdict.IDLE] > 30
    assert np.isinf(run.of("limit_iops")).all(), "the queue keeps these shares"
