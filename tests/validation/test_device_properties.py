"""Random requests through the Python API: the invariants hold, every page and request is accounted for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftl_emul import schedulers, victim_policies
from tests.validation.drive import READ, WRITE, WRITE_ZEROES, apply, config, feed, state
from tests.validation.page_model import PageModel
from tests.validation.tenants import (
    PLACEMENTS,
    batch_lists,
    expect_models,
    expect_the_same_future,
    filled_drive,
    filled_models,
    play,
    request,
)

if TYPE_CHECKING:
    from ftl_emul import Config, Device

KINDS = ("reads", "writes", "trims", "write_zeroes", "flushes")


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Drives with room for three tenants of PAGES pages."""
    channels, dies_per_channel = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    return config(
        pages_per_block=draw(st.sampled_from([4, 7, 16])),
        blocks_per_die=300 // (channels * dies_per_channel),
        channels=channels,
        dies_per_channel=dies_per_channel,
        planes=draw(st.sampled_from([1, 2])),
        victim=draw(st.sampled_from([name for name, _ in victim_policies()])),
        separate_gc_frontier=draw(st.booleans()),
        free_floor=draw(st.integers(1, 2)),
        paper_timing=draw(st.booleans()),
        copyback=draw(st.booleans()),
        scheduler=draw(st.sampled_from([name for name, _ in schedulers()])),
        device_queue_depth=draw(st.sampled_from([None, 1, 5])),
        seed=draw(st.integers(0, 3)),
    )


def with_tenants(config: Config, placements: list[bool]) -> Device:
    """A drive with a tenant for each placement (isolated or not), filled sequentially."""
    dies = config.channels * config.dies_per_channel
    return filled_drive(config, placements, dies * (config.free_floor + 2 + config.separate_gc_frontier))


def expect(device: Device, models: dict[int, PageModel]) -> None:
    """The models agree; the counters of pages that GC moved are consistent."""
    for counters in expect_models(device, models):
        assert sum(counters["victim_histogram"]) == counters["victims"]
        assert counters["victim_valid_pages"] == counters["gc_page_writes"]


BATCHES = batch_lists(12)


@settings(max_examples=120)
@given(configs(), PLACEMENTS, BATCHES)
def test_counted_requests(config: Config, placements: list[bool], batches: Any) -> None:
    """apply(), while OPS blocks move."""
    play(with_tenants(config, placements), filled_models(placements), batches, expect)


@settings(max_examples=120)
@given(
    configs(),
    PLACEMENTS,
    BATCHES,
    st.lists(st.sampled_from([None, 1, 3, 32]), min_size=3, max_size=3),
    st.integers(0, 2_000_000),
)
def test_timed_requests(
    config: Config, placements: list[bool], batches: Any, depths: list[int | None], gap_ns: int
) -> None:
    """feed() and run(), closed loop at a queue depth or open loop by time stamps."""
    device, models = with_tenants(config, placements), filled_models(placements)
    fed: dict[int, list[tuple[int, int, int]]] = {tenant: [] for tenant in models}
    for tenant in models:
        device.open_queue(tenant, depths[tenant])
    for number, requests, steps in batches:
        tenant = number % len(placements)
        times = gap_ns * (len(fed[tenant]) + np.arange(len(requests)))
        feed(device, tenant, requests, times)
        fed[tenant] += requests
        if steps > 0:
            before = device.now_ns
            device.run(until_ns=before + 100_000 * steps)
            device.check()
            assert device.now_ns >= before
    for tenant in models:
        device.end_input(tenant)
    assert device.run() == ("idle", [])

    for tenant, requests in fed.items():
        for one in requests:
            models[tenant].request(*one)
        queue, latency = device.queue_counters(tenant), device.latency_us(tenant, [50.0, 99.0])
        ops = [op for op, _, _ in requests]
        assert [getattr(queue, kind) for kind in KINDS] == [ops.count(op) for op in range(len(KINDS))]
        assert queue.read_bytes == sum(length for op, _, length in requests if op == READ)
        assert queue.write_bytes == sum(length for op, _, length in requests if op in (WRITE, WRITE_ZEROES))
        assert device.outstanding(tenant) == 0
        assert queue.gc_ns <= queue.device_ns
        assert (latency.reads, latency.writes) == (queue.reads, queue.writes + queue.write_zeroes)
        assert latency.read == sorted(latency.read)
        assert latency.write == sorted(latency.write)
    expect(device, models)


@settings(max_examples=40)
@given(configs(), PLACEMENTS, st.lists(request(), min_size=1, max_size=60))
def test_the_same_requests_give_the_same_result(
    config: Config, placements: list[bool], requests: Any
) -> None:
    def result() -> dict[str, Any]:
        device = with_tenants(config, placements)
        for tenant in device.tenants():
            device.open_queue(tenant, 2)
            feed(device, tenant, requests)
            device.end_input(tenant)
        device.run()
        return state(device, queues=True)

    assert result() == result()


@settings(max_examples=40)
@given(configs(), PLACEMENTS, st.lists(request(), max_size=60), st.lists(request(), max_size=60))
def test_a_restored_drive_has_the_same_counters_and_the_same_future(
    tmp_path_factory: pytest.TempPathFactory,
    config: Config,
    placements: list[bool],
    before: Any,
    after: Any,
) -> None:
    path: Path = tmp_path_factory.getbasetemp() / "drive"
    device = with_tenants(config, placements)
    apply(device, 0, before)
    expect_the_same_future(path, device, config, after)
