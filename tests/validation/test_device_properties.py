"""Random requests through the Python face: the invariants hold, every page and request is accounted for."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ftl_emul import Device, DriveError, schedulers, victim_policies
from tests.validation.drive import (
    FLUSH,
    PAGE,
    READ,
    TRIM,
    WRITE,
    WRITE_ZEROES,
    apply,
    config,
    feed,
    plain,
    state,
)
from tests.validation.page_model import PageModel

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from ftl_emul import Config

OPS = st.sampled_from([READ, WRITE, WRITE, WRITE, TRIM, WRITE_ZEROES, FLUSH])
PAGES = 150
"""Of every tenant."""
BYTES = PAGES * PAGE
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
        wear_spread_limit=draw(st.sampled_from([None, 2])),
        paper_timing=draw(st.booleans()),
        copyback=draw(st.booleans()),
        scheduler=draw(st.sampled_from([name for name, _ in schedulers()])),
        device_queue_depth=draw(st.sampled_from([None, 1, 5])),
        seed=draw(st.integers(0, 3)),
    )


@st.composite
def request(draw: st.DrawFn) -> tuple[int, int, int]:
    """Any request inside a namespace: aligned or not, empty, or all of it; reads and writes have a length."""
    op = draw(OPS)
    unit = draw(st.sampled_from([1, 512, PAGE, PAGE]))
    offset = unit * draw(st.integers(0, BYTES // unit))
    length = min(BYTES - offset, unit * draw(st.integers(0, 40 * PAGE // unit)))
    if length == 0 and op in (READ, WRITE):
        return (op, BYTES - unit, unit)
    return (op, offset, length)


def with_tenants(config: Config, placements: list[bool]) -> Device:
    """A drive with a tenant for each placement (isolated or not), filled sequentially."""
    device = Device(config)
    dies = config.channels * config.dies_per_channel
    ops_blocks = dies * (config.free_floor + 2 + config.separate_gc_frontier)
    for isolated in placements:
        tenant = device.create_tenant(PAGES, isolated, ops_blocks)
        apply(device, tenant, [(WRITE, 0, BYTES)])
    return device


def expect(device: Device, models: dict[int, PageModel]) -> None:
    """The invariants hold and the counters are those of the model."""
    device.check()
    for tenant, model in models.items():
        seen = plain(device.counters(tenant)) | plain(device.space(tenant))
        assert {name: seen[name] for name in model.counters()} == model.counters()
        assert sum(seen["moved_pages_of"]) == seen["gc_page_writes"]
        assert sum(seen["victim_histogram"]) == seen["victims"]
        assert seen["victim_valid_pages"] + seen["wear_page_writes"] == seen["gc_page_writes"]


def filled(placements: list[bool]) -> dict[int, PageModel]:
    """The models of `with_tenants`."""
    return {tenant: PageModel(set(range(PAGES)), host_page_writes=PAGES) for tenant in range(len(placements))}


PLACEMENTS = st.lists(st.booleans(), min_size=1, max_size=3)
BATCHES = st.lists(
    st.tuples(st.integers(0, 2), st.lists(request(), max_size=30), st.integers(-20, 20)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=120, deadline=None)
@given(configs(), PLACEMENTS, BATCHES)
def test_counted_requests(config: Config, placements: list[bool], batches: Any) -> None:
    """apply(), with OPS blocks moving at any moment."""
    device, models = with_tenants(config, placements), filled(placements)
    for number, requests, blocks in batches:
        tenant = number % len(placements)
        for one in requests:
            models[tenant].request(*one)
        apply(device, tenant, requests)
        source, target = (tenant, None) if blocks < 0 else (None, tenant)
        with suppress(DriveError):
            device.request_move(source, target, abs(blocks))
        device.advance_moves(abs(blocks) % 3)
        expect(device, models)


@settings(max_examples=120, deadline=None)
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
    device, models = with_tenants(config, placements), filled(placements)
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


@settings(max_examples=40, deadline=None)
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


@settings(max_examples=40, deadline=None)
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
    device.save(path, "a label, 標籤")
    restored, label = Device.restore(path, config)
    assert label == "a label, 標籤"
    assert state(restored) == state(device)
    for drive in (device, restored):
        for tenant in drive.tenants():
            apply(drive, tenant, after)
        drive.check()
    assert state(restored) == state(device)
