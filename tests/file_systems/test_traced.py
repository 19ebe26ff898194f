"""A block trace as files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsim.allocators import ALLOCATORS
from fsim.file_system import Action, FileSystem, Step, expand
from fsim.layout import LAYOUTS
from fsim.space import BLOCK_BYTES, SpaceMap
from fsim.workloads import steps_of
from traces.batch import Batch, Op

REGION = 4 * BLOCK_BYTES


def batch(*requests: tuple[Op, int, int, int]) -> Batch:
    """Requests as op, volume, first block, blocks."""
    count = len(requests)
    op, volume, first, blocks = (np.array(column) for column in zip(*requests, strict=True))
    return Batch(
        np.arange(count, dtype=np.int64),
        op.astype(np.uint8),
        (first * BLOCK_BYTES).astype(np.uint64),
        (blocks * BLOCK_BYTES).astype(np.uint64),
        volume.astype(np.int32),
    )


def steps(*requests: tuple[Op, int, int, int]) -> list[Step]:
    return list(steps_of([batch(*requests)], REGION))


def test_regions_are_files_that_grow_as_their_blocks_are_first_written() -> None:
    assert steps(
        (Op.WRITE, 0, 2, 4),
        (Op.READ, 0, 0, 4),
        (Op.WRITE, 0, 0, 3),
        (Op.WRITE, 1, 2, 1),
    ) == [
        Step(Action.CREATE, 0, 0, 2 * BLOCK_BYTES),
        Step(Action.CREATE, 1, 0, 2 * BLOCK_BYTES),
        Step(Action.OVERWRITE, 0, 0, BLOCK_BYTES, 0),
        Step(Action.APPEND, 0, 0, 2 * BLOCK_BYTES),
        Step(Action.CREATE, 2, 1, BLOCK_BYTES),
    ]


def test_a_file_whose_blocks_are_all_trimmed_is_deleted_and_made_anew() -> None:
    assert steps(
        (Op.WRITE, 0, 0, 2),
        (Op.TRIM, 0, 0, 1),
        (Op.TRIM, 0, 8, 4),
        (Op.WRITE, 0, 0, 1),
        (Op.TRIM, 0, 0, 4),
        (Op.WRITE, 0, 3, 1),
    ) == [
        Step(Action.CREATE, 0, 0, 2 * BLOCK_BYTES),
        Step(Action.OVERWRITE, 0, 0, BLOCK_BYTES, 0),
        Step(Action.DELETE, 0, 0, 0),
        Step(Action.CREATE, 1, 0, BLOCK_BYTES),
    ]


def test_a_region_is_whole_blocks() -> None:
    with pytest.raises(ValueError, match="whole number"):
        steps_of([], 6000)


requests = st.lists(
    st.tuples(
        st.sampled_from([Op.READ, Op.WRITE, Op.TRIM]),
        st.integers(0, 1),
        st.integers(0, 30),
        st.integers(1, 9),
    ),
    min_size=1,
    max_size=40,
)


@pytest.mark.parametrize("name", ALLOCATORS)
@settings(max_examples=20)
@given(requests=requests)
def test_every_allocator_plays_it_and_syncs_write_what_was_written(name: str, requests: list[Any]) -> None:
    row = ALLOCATORS[name]
    space = SpaceMap(1 << 16)
    layout = LAYOUTS[row.layout]()
    layout.prepare(space)
    system = FileSystem(layout, row.allocator(space, 1 << 10))
    for directory in range(2):
        system.make_directory(directory)
    system.sync()
    blocks: dict[int, set[int]] = {}
    for step in steps_of([batch(*requests)], REGION):
        system.apply(step)
        done = set(system.sync().data.tolist())
        if step.action is Action.DELETE:
            assert not done
            continue
        assert len(done) == step.size // BLOCK_BYTES
        assert done <= set(expand(system.extents(step.file)).tolist())
        held = blocks.setdefault(step.file, set())
        assert done <= held if step.action is Action.OVERWRITE else not done & held
        held |= done


def test_overwrite_beyond_the_end_is_refused() -> None:
    row = ALLOCATORS["ext"]
    space = SpaceMap(1 << 16)
    layout = LAYOUTS[row.layout]()
    layout.prepare(space)
    system = FileSystem(layout, row.allocator(space, 1 << 10))
    system.make_directory(0)
    system.create(1, 0, BLOCK_BYTES)
    with pytest.raises(ValueError, match="no bytes"):
        system.overwrite(1, BLOCK_BYTES, 1)
