"""Splits that spare VMs each other's GC."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slo_ctl.decide.curve import GcCurve
from slo_ctl.decide.relief import relieve
from slo_ctl.decide.service import ServiceModel, VmModel
from slo_ctl.decide.targets import Claim, solve

from .plant import FULL

NOW = {"a": 30, "b": 150, "c": 270}


def claims(waiting_us: float, min_ops_blocks: int = 2) -> list[Claim]:
    """Requests of b write six pages, those of the others one; those of c wait."""
    prior = ServiceModel.prior(FULL)
    services = {
        "a": prior,
        "b": replace(prior, writes_per_request=6.0),
        "c": replace(prior, base_us=prior.base_us + waiting_us),
    }
    return [
        Claim(vm, weight, VmModel(GcCurve.prior(1000, 128), services[vm]), min_ops_blocks)
        for vm, weight in (("a", 1.0), ("b", 1.0), ("c", 4.0))
    ]


def test_without_waiting_every_vm_gets_what_it_needs() -> None:
    feasible = solve(claims(0.0), 450)
    assert relieve(claims(0.0), 450, feasible, NOW) is feasible


def test_where_vms_wait_the_heavy_writer_gets_more_than_it_needs() -> None:
    waiting = claims(2500.0)
    feasible = solve(waiting, 450)
    relieved = relieve(waiting, 450, feasible, NOW)
    assert relieved.level > feasible.level
    assert not relieved.ops_suffices  # so b is paced
    blocks = {vm: target.ops_blocks or 0 for vm, target in relieved.targets.items()}
    assert sum(blocks.values()) == 450
    assert blocks["b"] > (feasible.targets["b"].ops_blocks or 0)
    assert relieved.targets["c"].iops == pytest.approx(4 * (relieved.targets["a"].iops or 0.0))


def test_who_is_paced_anyway_keeps_ops_that_gain_little_elsewhere() -> None:
    floored = claims(0.0, min_ops_blocks=60)
    feasible = solve(floored, 450)
    assert not feasible.ops_suffices
    relieved = relieve(floored, 450, feasible, NOW)
    assert relieved.level > 0.98 * feasible.level
    assert (relieved.targets["a"].ops_blocks or 0) > 60


def test_an_idle_vm_and_overcommitted_minimums_change_nothing() -> None:
    alone = [replace(c, active=c.vm == "a") for c in claims(1000.0)]
    feasible = solve(alone, 450)
    assert relieve(alone, 450, feasible, NOW) is feasible
    greedy = [replace(c, min_iops=900.0) for c in claims(1000.0)]
    feasible = solve(greedy, 450)
    assert relieve(greedy, 450, feasible, NOW) is feasible
