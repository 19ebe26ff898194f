"""The write cost model, fitted to synthetic response times, and to an emulated drive that merges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftl_emul import Device
from lab.write_cost import WriteCost, find_band, fit_write_cost
from tests.validation.drive import PAGE, WRITE, apply, config, feed

KIB = 1024


def made_up(
    seed: int, *, merge_us: float = 20_000.0, spikes: float = 0.2, jitter: float = 0.03, requests: int = 2000
) -> dict[int, np.ndarray]:
    """100 us and 50 MB/s; `spikes` of the requests wait for a merge, whose time varies by a quarter."""
    rng = np.random.default_rng(seed)
    times = {}
    for size in (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB):
        base = (100.0 + size / 50.0) * (1.0 + jitter * rng.standard_normal(requests))
        merges = merge_us * (1.0 + 0.25 * rng.standard_normal(requests))
        times[size] = base + np.where(rng.random(requests) < spikes, merges, 0.0)
    return times


@pytest.mark.parametrize("spikes", [0.02, 0.2, 0.6, 0.9])
def test_known_parameters_are_recovered(spikes: float) -> None:
    fit = fit_write_cost(made_up(1, spikes=spikes))
    assert fit.merge_us is not None
    assert fit.merge_us.value == pytest.approx(20_000.0, rel=0.03)
    assert fit.bandwidth_bytes_s.value == pytest.approx(50e6, rel=0.01)
    assert fit.fixed_us.value == pytest.approx(100.0, abs=10.0)
    drawn = 4.0 * math.sqrt(spikes * (1.0 - spikes) / 8000)
    assert fit.spikes_per_request == pytest.approx(spikes, abs=drawn)
    assert all(abs(size.residual_us) < 0.05 * size.band.centre_us for size in fit.sizes)


def test_confidence_intervals_hold_as_often_as_they_say() -> None:
    fits = [fit_write_cost(made_up(seed, requests=400), confidence=0.9) for seed in range(200)]
    merge = sum(fit.merge_us is not None and 20_000.0 in fit.merge_us for fit in fits)
    bandwidth = sum(50e6 in fit.bandwidth_bytes_s for fit in fits)
    assert 165 <= merge <= 197
    assert 150 <= bandwidth <= 200


def test_more_requests_narrow_the_intervals() -> None:
    few, many = (fit_write_cost(made_up(3, requests=n)) for n in (200, 20_000))
    assert few.merge_us is not None
    assert many.merge_us is not None
    assert many.merge_us.high - many.merge_us.low < 0.2 * (few.merge_us.high - few.merge_us.low)


def test_without_spikes_there_is_no_merge() -> None:
    fit = fit_write_cost(made_up(2, spikes=0.0, jitter=0.01))
    assert (fit.merge_us, fit.spikes_per_request) == (None, 0.0)


def test_one_size_gives_bandwidth_only_without_fixed_cost() -> None:
    fit = fit_write_cost({64 * KIB: np.full(100, 1000.0)})
    assert fit.bandwidth_bytes_s.value == pytest.approx(64 * KIB / 1e-3)
    assert (fit.fixed_us.value, fit.fixed_us.high) == (0.0, 1000.0)


@settings(max_examples=50)
@given(st.lists(st.floats(1.0, 1e7), min_size=8, max_size=200))
def test_any_response_times_can_be_split(times: list[float]) -> None:
    band = find_band(np.array(times))
    assert min(times) <= band.centre_us <= max(times)
    assert band.limit_us > band.centre_us
    assert band.requests == len(times)
    assert 0 <= band.spikes < len(times)


@given(st.floats(1e-3, 1e3))
def test_units_do_not_matter(scale: float) -> None:
    once = find_band(made_up(5, requests=100)[4 * KIB])
    scaled = find_band(scale * made_up(5, requests=100)[4 * KIB])
    assert scaled.centre_us == pytest.approx(scale * once.centre_us)
    assert scaled.spikes == once.spikes


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        ({}, "request sizes"),
        ({0: np.ones(9)}, "request sizes"),
        ({4096: np.ones(7)}, "7 response times"),
        ({4096: np.zeros(9)}, "positive and finite"),
        ({4096: np.full(9, math.inf)}, "positive and finite"),
        ({4096: np.full(9, 2.0), 8192: np.ones(9)}, "not slower"),
    ],
)
def test_unfittable_data_is_refused(times: dict[int, np.ndarray], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        fit_write_cost(times)


def emulated(mapping: str) -> tuple[WriteCost, int, int]:
    """Random aligned writes of 1 to 8 pages: the fit, the drive's own counter of overhead (ns), requests."""
    device = Device(config(mapping=mapping, blocks_per_die=260))
    pages = 3200
    tenant = device.create_tenant(pages, True, 40)
    apply(device, tenant, [(WRITE, 0, pages * PAGE)])
    device.open_queue(tenant, 1)
    rng = np.random.default_rng(7)
    times: dict[int, list[float]] = {PAGE * n: [] for n in (1, 2, 4, 8)}
    for warm in (True, False):
        before = device.queue_counters(tenant).gc_ns
        for _ in range(4000):
            size = PAGE * int(rng.choice((1, 2, 4, 8)))
            began = device.now_ns
            feed(device, tenant, [(WRITE, size * int(rng.integers(pages * PAGE // size)), size)])
            device.run()
            if not warm:
                times[size].append((device.now_ns - began) / 1000.0)
    fit = fit_write_cost({size: np.array(t) for size, t in times.items()})
    return fit, device.queue_counters(tenant).gc_ns - before, sum(map(len, times.values()))


def test_write_cost_of_an_emulated_log_block_drive() -> None:
    """One die, pages in sequence: B is a page over transfer and program, and the fixed cost is zero."""
    for mapping in ("bast", "fast"):
        fit, overhead_ns, requests = emulated(mapping)
        assert fit.bandwidth_bytes_s.value == pytest.approx(PAGE / 902e-6, rel=0.01)
        assert abs(fit.fixed_us.value) < 20.0
        assert fit.merge_us is not None
        # The drive's own counter of merge time, divided by the requests that met one.
        merged = fit.spikes_per_request * requests
        assert fit.merge_us.value == pytest.approx(overhead_ns / 1000.0 / merged, rel=0.02)
        assert fit.merge_us.value > 5_000.0
