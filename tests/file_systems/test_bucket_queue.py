"""The bucket queue, compared with a dictionary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsim.space import BucketQueue

CAPACITY = 8
counts = st.lists(st.integers(0, CAPACITY), min_size=1, max_size=12)
steps = st.lists(st.tuples(st.integers(0, 11), st.integers(0, CAPACITY), st.booleans()), max_size=80)


@given(free=counts, steps=steps, empty=st.booleans())
def test_queue_agrees_with_a_plain_model(
    free: list[int], steps: list[tuple[int, int, bool]], empty: bool
) -> None:
    queue = BucketQueue(free, CAPACITY, empty)
    plain = list(free)
    inside = set() if empty else set(range(len(free)))
    for number, count, move in steps:
        block = number % len(free)
        if move:
            (queue.take_out if block in inside else queue.put)(block)
            inside ^= {block}
        else:
            queue.change(block, count - plain[block])
            plain[block] = count
        most = queue.most_free()
        best = max((plain[b] for b in inside), default=0)
        assert (most is None) == (best == 0)
        if most is not None:
            assert most in inside
            assert plain[most] == best
        assert [queue.free(b) for b in range(len(free))] == plain
        assert {b for b in range(len(free)) if queue.holds(b)} == inside


def test_queue_refuses_inconsistent_calls() -> None:
    with pytest.raises(ValueError, match="between"):
        BucketQueue([3], 2)
    queue = BucketQueue([1, 2], 2)
    with pytest.raises(ValueError, match="is in the queue"):
        queue.put(0)
    queue.take_out(0)
    with pytest.raises(ValueError, match="not in the queue"):
        queue.take_out(0)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.sets(st.integers(0, 11)))
def test_cleared_queue_equals_an_empty_one(free: list[int], out: set[int]) -> None:
    queue = BucketQueue(free, 5)
    for block in out & set(range(len(free))):
        queue.take_out(block)
    queue.clear()
    assert queue.most_free() is None
    assert not any(queue.holds(block) for block in range(len(free)))
    for block in range(len(free)):
        queue.put(block)
    assert queue.free(queue.most_free() or 0) == max(free) or not any(free)
