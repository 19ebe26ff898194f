"""A small file system on a small emulated drive, from filling to elapsed time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsim.allocators import ALLOCATORS
from fsim.experiment import Experiment, run
from fsim.workloads import SETTINGS, PostmarkSetting
from lab.paper_drives import PAPER_DRIVES, plan_whole

SMALL = "size=1GiB,op=1%,page=4KiB,block=128KiB,dies=8,channels=4,cluster=8,mapping=bast"
BASE = Experiment(
    allocator="ext", setting="small", drive=SMALL, utilisation=0.5, sync_bytes=1 << 20, log_blocks=4
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, "small", PostmarkSetting(200, 10, 512, 100_000, 800))


@pytest.mark.parametrize("name", ALLOCATORS)
def test_run_is_repeatable_and_writes_all_data(name: str) -> None:
    first, again = run(replace(BASE, allocator=name)), run(replace(BASE, allocator=name))
    assert first == again
    assert first.elapsed_s > 0
    assert first.syncs > 10
    assert first.wear.host_page_writes > first.logical_blocks_written > 0


def test_greedy_space_writes_more_to_each_logical_block_than_ext_and_is_faster() -> None:
    ext, greedy = run(BASE), run(replace(BASE, allocator="greedy-space"))
    assert greedy.blocks_per_merge > ext.blocks_per_merge
    assert greedy.elapsed_s < ext.elapsed_s


def test_trim_leaves_merges_less_to_copy() -> None:
    kept, trimmed = run(BASE), run(replace(BASE, trim=True))
    assert trimmed.wear.merge_page_writes < kept.wear.merge_page_writes


@pytest.mark.parametrize(
    ("name", "capacity", "logical"), [("sandisk", 32, 4), ("samsung", 64, 8), ("mtron", 64, 2)]
)
def test_drives_are_those_of_table_i(name: str, capacity: int, logical: int) -> None:
    plan = plan_whole(PAPER_DRIVES[name], "file system")
    assert plan.total_pages * 4096 == capacity << 30
    assert plan.config.block_pages * 4096 == logical << 20
