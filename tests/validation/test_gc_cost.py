"""The cost of a GC page: the controller's equation, compared with the counters of the emulated SSD."""

import numpy as np
import pytest

from ftl_emul import Config, Device
from slo_ctl.decide.gc_model import write_time_us
from slo_ctl.model.sample import FlashTiming, TimingModel

PAGES_PER_BLOCK = 64
READ_US, PROGRAM_US, ERASE_US, TRANSFER_US = 60, 800, 1500, 102


@pytest.mark.parametrize("copyback", [True, False])
@pytest.mark.parametrize("model", [TimingModel.FULL, TimingModel.PAPER])
def test_the_equation_gives_the_emulators_time_of_a_write(copyback: bool, model: TimingModel) -> None:
    config = Config(
        page_bytes=4096,
        pages_per_block=PAGES_PER_BLOCK,
        blocks_per_die=600,
        channels=1,
        dies_per_channel=1,
        planes=1,
        read_ns=1000 * READ_US,
        program_ns=1000 * PROGRAM_US,
        erase_ns=1000 * ERASE_US,
        transfer_ns=1000 * TRANSFER_US,
        paper_timing=model is TimingModel.PAPER,
        copyback=copyback,
    )
    device = Device(config)
    pages, writes = 480 * PAGES_PER_BLOCK, 100_000
    tenant = device.create_tenant(pages, True, 100)
    device.precondition(1)
    offsets = np.random.default_rng(1).integers(0, pages, writes, dtype=np.uint64) * 4096
    device.open_queue(tenant, 1)
    before = device.counters(tenant)
    device.feed(
        tenant,
        np.zeros(writes, np.int64),
        np.ones(writes, np.uint8),
        offsets,
        np.full(writes, 4096, np.uint64),
    )
    device.end_input(tenant)
    assert device.run()[0] == "idle"
    after = device.counters(tenant)
    victims = after.victims - before.victims
    u = (after.victim_valid_pages - before.victim_valid_pages) / (victims * PAGES_PER_BLOCK)
    timing = FlashTiming(
        PAGES_PER_BLOCK, READ_US, PROGRAM_US, ERASE_US, TRANSFER_US, model=model, copyback=copyback
    )
    assert u > 0.5
    assert device.now_ns / 1000 / writes == pytest.approx(write_time_us(timing, u), rel=0.01)
