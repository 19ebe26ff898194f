"""Invariants of every allocator, compared with a plain set of blocks."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsim.allocators import ALLOCATORS, GROUP_BLOCKS, GreedyLocalAllocator, GreedySpaceAllocator
from fsim.space import Extent, NoSpaceError, SpaceMap

BLOCKS, LOGICAL = 256, 16
LOCAL = 512
NO_BLOCKS = np.empty(0, np.int64)

steps = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 60), st.integers(0, BLOCKS - 1), st.booleans()),
        st.tuples(st.just("give"), st.integers(0, 1000)),
        st.tuples(st.just("rewrite"), st.integers(0, 1000)),
        st.tuples(st.just("sync")),
    ),
    max_size=60,
)


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(1, 40)), max_size=40))
def test_free_blocks_of_each_range_are_counted(steps: list[tuple[bool, int, int]]) -> None:
    space = SpaceMap(2 * GROUP_BLOCKS + 1000)
    for release, place, count in steps:
        start = place * GROUP_BLOCKS // 15  # some in two block groups
        count = min(count * 100, space.blocks - start)
        free = space.free_in(start, start + count)
        if release and free == 0:
            space.release(start, count)
        elif free == count:
            space.occupy(start, count)
    for size in (GROUP_BLOCKS, 1000, 7777):
        starts = range(0, space.blocks, size)
        assert space.free_by(size) == [space.free_in(start, start + size) for start in starts]


@pytest.mark.parametrize("name", ALLOCATORS)
@given(fixed=st.sets(st.integers(0, BLOCKS - 1), max_size=40), steps=steps)
def test_blocks_are_not_allocated_twice_and_freed_ones_return(
    name: str, fixed: set[int], steps: list[tuple[Any, ...]]
) -> None:
    space = SpaceMap(BLOCKS)
    for block in fixed:
        space.occupy(block, 1)
    allocator = ALLOCATORS[name].allocator(space, LOGICAL)
    used = set(fixed)
    held: list[Extent] = []
    for what, *rest in steps:
        if what == "take":
            count, goal, metadata = rest
            if count > BLOCKS - len(used):
                with pytest.raises(NoSpaceError):
                    allocator.allocate(count, goal, metadata)
            else:
                got = allocator.allocate(count, goal, metadata)
                blocks = [block for start, length in got for block in range(start, start + length)]
                assert len(blocks) == count == len(set(blocks))
                assert not used & set(blocks)
                used |= set(blocks)
                held += got
        elif what == "give" and held:
            extent = held.pop(rest[0] % len(held))
            allocator.release(extent)
            used -= set(range(extent.start, extent.start + extent.blocks))
        elif what == "rewrite" and held:
            allocator.rewritten(held[rest[0] % len(held)].start)
        elif what == "sync":
            allocator.synced(NO_BLOCKS)
        assert space.free_blocks == BLOCKS - len(used)
        assert space.utilisation == pytest.approx(len(used) / BLOCKS)
        assert {b for b in range(BLOCKS) if not space.is_free(b)} == used
        if isinstance(allocator, GreedySpaceAllocator):
            for logical in range(BLOCKS // LOGICAL):
                start = logical * LOGICAL
                assert allocator.free_in(logical) == space.free_in(start, start + LOGICAL)


@given(fixed=st.sets(st.integers(0, BLOCKS - 1), max_size=200), wanted=st.lists(st.integers(1, 30)))
def test_greedy_space_takes_the_emptiest_and_stays_until_it_is_full(
    fixed: set[int], wanted: list[int]
) -> None:
    space = SpaceMap(BLOCKS)
    for block in fixed:
        space.occupy(block, 1)
    allocator = GreedySpaceAllocator(space, LOGICAL)
    free = {n: LOGICAL - sum(b // LOGICAL == n for b in fixed) for n in range(BLOCKS // LOGICAL)}
    current = None
    for count in wanted:
        if count > sum(free.values()):
            break
        for start, length in allocator.allocate(count, 0):
            for block in range(start, start + length):
                logical = block // LOGICAL
                if current is None or not free[current]:
                    assert free[logical] == max(free.values())
                    current = logical
                assert logical == current
                free[logical] -= 1


@pytest.mark.parametrize("allocator", [GreedySpaceAllocator, GreedyLocalAllocator])
@pytest.mark.parametrize(("gib", "mib"), [(32, 4), (64, 8), (64, 2)])
def test_memory_is_within_the_papers_36_bytes_per_logical_block(
    allocator: type[GreedySpaceAllocator | GreedyLocalAllocator], gib: int, mib: int
) -> None:
    logical = mib << 8
    space = SpaceMap(gib << 18)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    made = allocator(space, logical)
    # A sync that writes to every logical block.
    for block in range(0, space.blocks, logical):
        made.rewritten(block)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    logical_blocks = space.blocks // logical
    assert made.memory_bytes / logical_blocks <= 36
    assert (after - before) / logical_blocks <= 36


def test_greedy_local_puts_small_writes_where_this_sync_writes_anyway() -> None:
    space = SpaceMap(4 * LOCAL)
    space.occupy(LOCAL, LOCAL // 2)
    half = LOCAL + LOCAL // 2
    allocator = GreedyLocalAllocator(space, LOCAL)
    allocator.rewritten(LOCAL)
    assert allocator.allocate(1, 0) == [Extent(half, 1)]
    assert allocator.allocate(LOCAL // 2, 0) == [Extent(0, LOCAL // 2)], "large writes run in sequence"
    assert allocator.allocate(1, 0, metadata=True) == [Extent(2 * LOCAL, 1)], "metadata is apart"
    assert allocator.allocate(2, 0) == [Extent(half + 1, 2)]


def test_greedy_local_prefers_nothing_before_a_sync_or_after_it() -> None:
    untouched = GreedyLocalAllocator(SpaceMap(4 * LOCAL), LOCAL)
    assert untouched.allocate(1, 0) == [Extent(0, 1)]
    space = SpaceMap(2 * LOCAL)
    space.occupy(LOCAL, 1)
    allocator = GreedyLocalAllocator(space, LOCAL)
    allocator.rewritten(LOCAL)
    allocator.synced(NO_BLOCKS)
    assert allocator.allocate(1, 0) == [Extent(0, 1)]


def test_with_trim_greedy_local_takes_an_empty_logical_block_first() -> None:
    space = SpaceMap(2 * LOCAL)
    space.occupy(0, 1)
    allocator = GreedyLocalAllocator(space, LOCAL, trim=True)
    allocator.rewritten(0)
    assert allocator.allocate(1, 0) == [Extent(LOCAL, 1)]


def test_greedy_local_can_allocate_all_space() -> None:
    allocator = GreedyLocalAllocator(SpaceMap(2 * LOCAL), LOCAL)
    allocator.allocate(1, 0)
    allocator.allocate(1, 0, metadata=True)
    got = allocator.allocate(2 * LOCAL - 2, 0)
    assert sum(extent.blocks for extent in got) == 2 * LOCAL - 2


def test_ext_fills_its_group_before_the_next() -> None:
    group = 32_768
    space = SpaceMap(3 * group)
    allocator = ALLOCATORS["ext"].allocator(space, group)
    assert allocator.allocate(10, group + 5) == [Extent(group + 5, 10)]
    space.occupy(2 * group, group)
    space.occupy(group + 15, group - 15)
    assert allocator.allocate(5, 2 * group) == [Extent(0, 5)]
    assert allocator.allocate(5, group + 8) == [Extent(group, 5)]


def test_reiser_keeps_nodes_below_the_border() -> None:
    allocator = ALLOCATORS["reiser"].allocator(SpaceMap(100), 10)
    assert allocator.allocate(2, 50, metadata=True) == [Extent(0, 2)]
    assert allocator.allocate(2, 3) == [Extent(10, 2)]
    assert allocator.allocate(2, 60) == [Extent(60, 2)]
    # Full parts spill over.
    assert allocator.allocate(9, 2, metadata=True) == [Extent(2, 8), Extent(12, 1)]


def test_space_refuses_inconsistent_calls() -> None:
    space = SpaceMap(8)
    space.occupy(2, 2)
    for call, start, count in (
        (space.occupy, 3, 2),
        (space.occupy, 7, 2),
        (space.release, 1, 2),
        (space.release, 0, 0),
    ):
        with pytest.raises(ValueError, match="block"):
            call(start, count)
    assert space.free_blocks == 6
    assert space.used_extents() == [Extent(2, 2)]


@given(
    holes=st.sets(st.integers(0, (1 << 17) - 1), max_size=20),
    start=st.integers(0, (1 << 17) - 1),
    length=st.integers(1, 1 << 17),
    most=st.integers(1, 4),
)
def test_search_across_full_parts_finds_the_first_hole(
    holes: set[int], start: int, length: int, most: int
) -> None:
    space = SpaceMap(1 << 17)
    space.occupy(0, 1 << 17)
    for hole in holes:
        space.release(hole, 1)
    end = min(start + length, 1 << 17)
    inside = sorted(hole for hole in holes if start <= hole < end)
    run = space.free_run(start, end, most)
    if not inside:
        assert run is None
    else:
        assert run is not None
        assert run.start == inside[0]
        taken = range(run.start, run.start + run.blocks)
        assert holes >= set(taken)
        assert run.blocks == most or run.start + run.blocks == end or run.start + run.blocks not in holes
