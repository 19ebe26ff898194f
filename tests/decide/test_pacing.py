"""Pacing: limits that enforce shares over time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slo_ctl.decide.pacing import Paced, new_leads, pace

A = Paced("a", 1.0, 100.0, 100.0, 1.0, None, True, unlimited_rate=100.0)
B = Paced("b", 2.0, 300.0, 300.0, 1.0, None, True, unlimited_rate=300.0)


def test_faster_vm_is_limited_to_the_share_of_the_slower() -> None:
    limits = pace([A, B], {"a": 0.0, "b": 0.0})
    assert limits["b"] == pytest.approx(200.0)
    assert limits["a"] == pytest.approx(200.0)  # room for a fast phase, no more


def test_lead_is_reduced_gradually() -> None:
    limits = pace([A, B], {"a": 0.0, "b": 80.0})
    assert limits["b"] == pytest.approx(2 * (100 - 20))
    limits = pace([A, B], {"a": 0.0, "b": 1e6})
    assert limits["b"] == pytest.approx(2 * 50)


def test_bounds_are_respected() -> None:
    limits = pace([A, replace(B, min_rate=250.0, max_rate=260.0)], {"a": 0.0, "b": 0.0})
    assert limits["b"] == pytest.approx(1.02 * 250)
    limits = pace([A, replace(B, max_rate=150.0)], {"a": 0.0, "b": 0.0})
    assert limits["b"] == 150.0


def test_vm_at_its_maximum_or_below_its_share_has_no_lead() -> None:
    capped = replace(B, last_rate=300.0, max_rate=300.0)
    assert new_leads({}, [A, capped, replace(A, vm="c", saturating=False)]) == {"a": 0.0}


@pytest.mark.parametrize("measured", [True, False])
def test_shares_are_kept_although_every_vm_is_the_bottleneck_at_times(measured: bool) -> None:
    """Possible rates of VMs change by large factors, in phases of many windows."""
    random = np.random.default_rng(3)
    weights = {"a": 1.0, "b": 3.0, "c": 6.0}
    able = dict.fromkeys(weights, 100.0)
    limits: dict[str, float | None] = dict.fromkeys(weights)
    recent, leads = dict(able), dict.fromkeys(weights, 0.0)
    done = dict.fromkeys(weights, 0.0)
    for window in range(600):
        for vm in weights:
            if random.random() < 0.1:
                able[vm] = 100.0 * weights[vm] ** 0.5 * 4.0 ** random.uniform(-1, 1)
        rates = {vm: min(able[vm], limits[vm] or able[vm]) for vm in weights}
        vms = []
        for vm, rate in rates.items():
            recent[vm] += (rate - recent[vm]) / 4
            done[vm] += rate if window >= 200 else 0.0
            unheld = able[vm] if measured else None
            vms.append(Paced(vm, weights[vm], recent[vm], rate, 1.0, limits[vm], True, unlimited_rate=unheld))
        leads = new_leads(leads, vms)
        limits = pace(vms, leads)
    shares = {vm: done[vm] / sum(done.values()) * 10 / weights[vm] for vm in weights}
    assert shares == pytest.approx(dict.fromkeys(weights, 1.0), abs=0.03)
