"""The Rust core, compared with a naive model request by request."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftl_emul import Device
from tests.validation.drive import PAGE, TRIM, WRITE, config
from tests.validation.naive_ftl import NaiveFtl


def both(
    seed: int, ftl: NaiveFtl, pages: int, requests: int, trims: float, skew: float
) -> tuple[NaiveFtl, Device, int]:
    """Run the same random requests on the model and on the core."""
    victim = "greedy" if ftl.greedy else "fifo"
    device = Device(
        config(
            pages_per_block=ftl.pages_per_block,
            blocks_per_die=ftl.blocks,
            victim=victim,
            separate_gc_frontier=ftl.separate_gc_frontier,
            free_floor=ftl.free_floor,
        )
    )
    tenant = device.create_tenant(pages, True, ftl.blocks - -(-pages // ftl.pages_per_block))
    rng = np.random.default_rng(seed)
    page = (pages * rng.random(requests) ** skew).astype(np.uint64)
    op = np.where(rng.random(requests) < trims, TRIM, WRITE).astype(np.uint8)
    length = np.full(requests, PAGE, np.uint64)
    device.apply(np.full(requests, tenant, np.uint16), op, page * np.uint64(PAGE), length)
    device.check()
    for which, where in zip(op.tolist(), page.tolist(), strict=True):
        (ftl.trim if which == TRIM else ftl.write)(where)
    return ftl, device, tenant


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    pages_per_block=st.sampled_from([4, 7, 16, 64]),
    blocks=st.integers(12, 60),
    spare_share=st.floats(0.02, 0.6),
    separate=st.booleans(),
    free_floor=st.integers(1, 3),
    trims=st.sampled_from([0.0, 0.1, 0.45]),
    skew=st.sampled_from([1.0, 4.0]),
)
def test_fifo_moves_exactly_the_pages_of_the_model(
    seed: int,
    pages_per_block: int,
    blocks: int,
    spare_share: float,
    separate: bool,
    free_floor: int,
    trims: float,
    skew: float,
) -> None:
    least = free_floor + 2 + separate
    logical_blocks = min(blocks - least, max(1, round(blocks / (1.0 + spare_share))))
    model, device, tenant = both(
        seed,
        NaiveFtl(blocks, pages_per_block, separate_gc_frontier=separate, free_floor=free_floor),
        logical_blocks * pages_per_block,
        12 * blocks * pages_per_block,
        trims,
        skew,
    )
    counters = device.counters(tenant)
    assert counters.victims == model.victims > 0
    assert counters.gc_page_writes == model.gc_page_writes
    assert counters.victim_histogram == model.victim_histogram
    space = device.space(tenant)
    assert (space.mapped_pages, space.free_blocks) == (len(model.place), model.erased)


@pytest.mark.parametrize("skew", [1.0, 3.0])
def test_greedy_moves_about_as_many_pages_as_the_model(skew: float) -> None:
    """Any of several equally full blocks may be collected, so the counts are close, not equal."""
    model, device, tenant = both(3, NaiveFtl(261, 32, greedy=True), 225 * 32, 150_000, 0.0, skew)
    counters = device.counters(tenant)
    assert counters.gc_page_writes == pytest.approx(model.gc_page_writes, rel=0.01)
    assert counters.victims == pytest.approx(model.victims, rel=0.01)
