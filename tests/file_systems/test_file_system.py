"""Files, their metadata and the writes of syncs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsim.allocators import ALLOCATORS
from fsim.drives import requests
from fsim.file_system import CHECKPOINT_SYNCS, FileSystem, expand
from fsim.layout import LAYOUTS
from fsim.space import BLOCK_BYTES, Extent, SpaceMap
from fsim.workloads import fill

BLOCKS, LOGICAL = 1 << 16, 1 << 10


def made(name: str, layout: str | None = None) -> tuple[FileSystem, SpaceMap]:
    row = ALLOCATORS[name]
    space = SpaceMap(BLOCKS)
    own = LAYOUTS[layout or row.layout]()
    own.prepare(space)
    return FileSystem(own, row.allocator(space, LOGICAL)), space


actions = st.lists(
    st.tuples(st.sampled_from("cads"), st.integers(0, 99), st.integers(1, 200_000)), max_size=40
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ALLOCATORS)
@settings(max_examples=25)
@given(actions=actions)
def test_files_have_their_size_and_syncs_write_them(
    name: str, layout: str, actions: list[tuple[str, int, int]]
) -> None:
    system, space = made(name, layout)
    system.make_directory(0)
    system.make_directory(1)
    system.sync()
    before = space.free_blocks
    sizes: dict[int, int] = {}
    written: dict[int, set[int]] = {}
    for number, (what, pick, size) in enumerate(actions):
        file = sorted(sizes)[pick % len(sizes)] if sizes else None
        if what == "c":
            system.create(number, number % 2, size)
            sizes[number] = size
        elif what == "a" and file is not None:
            system.append(file, size)
            sizes[file] += size
        elif what == "d" and file is not None:
            system.delete(file)
            del sizes[file]
            written.pop(file, None)
        elif what == "s":
            done = set(system.sync().data.tolist())
            for each in sizes:
                blocks = set(expand(system.extents(each)).tolist())
                written.setdefault(each, set()).update(blocks & done)
                assert blocks == written[each] & blocks
            assert system.dirty_bytes == 0
        held = [b for each in sizes for s, n in system.extents(each) for b in range(s, s + n)]
        assert len(held) == len(set(held)) == sum(-(-size // BLOCK_BYTES) for size in sizes.values())
    for file in sizes:
        system.delete(file)
    # Leaves of the tree stay.
    assert before - space.free_blocks <= len(actions)
    if layout == "ext":
        assert space.free_blocks == before


def test_files_deleted_before_a_sync_are_never_written() -> None:
    system, _ = made("ext")
    system.make_directory(0)
    system.create(1, 0, 10 * BLOCK_BYTES)
    system.delete(1)
    assert len(system.sync().data) == 0


def test_metadata_is_journalled_at_once_and_written_in_place_later() -> None:
    system, _ = made("ext")
    system.make_directory(0)
    system.sync(last=True)
    for number in range(CHECKPOINT_SYNCS):
        system.create(number, 0, BLOCK_BYTES)
        done = system.sync()
        # Directory, inode table, inode bitmap, block bitmap; a descriptor and a commit block.
        assert len(done.journal) == 6
        assert np.all(np.diff(done.journal) == 1)
        assert len(done.metadata) in (0, 4)
    assert system.sync(last=True).metadata.size in (0, 4)


def test_an_append_rewrites_a_last_block_that_was_not_full() -> None:
    system, _ = made("greedy-space")
    system.make_directory(0)
    system.create(1, 0, BLOCK_BYTES + 1)
    system.sync()
    system.append(1, BLOCK_BYTES)
    first, second = expand(system.extents(1)).tolist()[1:]
    assert system.sync().data.tolist() == [first, second]


@pytest.mark.parametrize("name", ALLOCATORS)
def test_filling_reaches_the_utilisation_with_the_same_files(name: str) -> None:
    system, _ = made(name)
    fill(system, 0.5, seed=1, first_number=1000, churn=0.3)
    assert 0.5 <= system.utilisation < 0.5 + 4100 / BLOCKS


@given(st.sets(st.integers(0, 2000)))
def test_requests_cover_each_block_once(blocks: set[int]) -> None:
    ordered = np.array(sorted(blocks), dtype=np.int64)
    starts, counts = requests(ordered)
    covered = [b for s, c in zip(starts.tolist(), counts.tolist(), strict=True) for b in range(s, s + c)]
    assert covered == ordered.tolist()
    assert all(count <= 128 for count in counts.tolist())
    assert expand([Extent(3, 2), Extent(1, 3)]).tolist() == [1, 2, 3, 4]


def test_pointers_are_separated_from_data_if_the_allocator_does_so() -> None:
    system, _ = made("greedy-local")
    system.make_directory(0)
    system.create(1, 0, 100 * BLOCK_BYTES)
    (data,) = system.extents(1)
    assert data.blocks == 100
    assert data.start % LOGICAL == 0
    metadata = system.sync(last=True).metadata
    assert data.start // LOGICAL not in set((metadata // LOGICAL).tolist())
    beside, _ = made("greedy-space")
    beside.make_directory(0)
    beside.create(1, 0, 100 * BLOCK_BYTES)
    first = beside.extents(1)[0].start
    assert first - 1 in beside.sync(last=True).metadata.tolist()
