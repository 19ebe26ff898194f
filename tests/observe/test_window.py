"""Sliding windows, and block devices from the counters of cgroups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.model.host import DeviceNumber, IoCounters, Stream
from slo_ctl.model.sample import VmSample
from slo_ctl.observe.block import BlockDevice, SlidingWindow

DISK = DeviceNumber(8, 0)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 200))
def test_window_has_the_requested_length(steps: list[int], window_s: int) -> None:
    sliding: SlidingWindow[int] = SlidingWindow(window_s)
    times = [0.0]
    sliding.add(0.0, 0)
    for number, step in enumerate(steps, 1):
        times.append(times[-1] + step)
        sliding.add(times[-1], number)
    assert sliding.last == len(steps)
    first = sliding.first
    assert first is not None
    assert sliding.length_s == times[-1] - times[first]
    if times[-1] >= window_s and len(times) > 2:
        assert sliding.length_s >= window_s or first == 0
        assert first + 1 == len(times) - 1 or times[-1] - times[first + 1] < window_s


def stream(vm: str, cgroup: str, **counters: Any) -> Stream:
    return Stream(vm, None, cgroup, DISK, IoCounters(**counters) if counters else None)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def device(clock: Clock, window_s: float = 10.0) -> BlockDevice:
    return BlockDevice(DISK, window_s=window_s, clock=clock)


def test_rates_are_computed_over_the_window() -> None:
    clock = Clock()
    fast = device(clock)
    elsewhere = Stream("a", None, "/a", DeviceNumber(8, 16), IoCounters(reads=10**6))
    (window,) = fast.update([stream("a", "/a", reads=5, writes=5, read_bytes=0), elsewhere]).values()
    assert (window.window_s, window.iops, window.bandwidth_bytes_s) == (0.0, None, None)
    clock.now_s += 4
    (window,) = fast.update([stream("a", "/a", reads=45, writes=5, read_bytes=8192), elsewhere]).values()
    assert (window.window_s, window.iops) == (4.0, 10.0)
    assert window.bandwidth_bytes_s == 2048.0
    assert (window.p99_read_us, window.u, window.waf) == (None, None, None)


def test_missing_counter_gives_unknown_rate() -> None:
    clock = Clock()
    fast = device(clock)
    fast.update([stream("a", "/a", read_bytes=1)])
    clock.now_s += 1
    window = fast.update([stream("a", "/a", read_bytes=2)])["a"]
    assert (window.iops, window.bandwidth_bytes_s) == (None, 1.0)


def test_new_counter_starts_at_zero() -> None:
    clock = Clock()
    fast = device(clock)
    fast.update([stream("a", "/a")])
    clock.now_s += 2
    assert fast.update([stream("a", "/a", writes=10)])["a"].iops == 5.0


def test_restarted_vm_gives_no_negative_rate() -> None:
    clock = Clock()
    fast = device(clock)
    fast.update([stream("a", "/a", reads=1000), stream("b", "/b", reads=1000)])
    clock.now_s += 1
    windows = fast.update([stream("a", "/a", reads=3), stream("b", "/b2", reads=2000)])
    assert [(w.window_s, w.iops) for w in windows.values()] == [(0.0, None), (0.0, None)]
    clock.now_s += 1
    assert fast.update([stream("a", "/a", reads=7)])["a"].iops == 4.0
    assert fast.update([]) == {}


@pytest.mark.parametrize(
    "counted", [lambda count: IoCounters(reads=count), lambda count: IoCounters(read_bytes=count)]
)
def test_window_without_io_is_the_same_object_until_there_is_io(counted: Callable[[int], IoCounters]) -> None:
    """Values derived from it need not be computed again. A kernel may count only requests, or only bytes."""
    clock, number = Clock(), DISK
    block = device(clock, window_s=2.0)

    def update(counters: IoCounters) -> VmSample:
        clock.now_s += 1.1
        return block.update([Stream("a", None, "/a", number, counters)])["a"]

    some, more = counted(5), counted(16)
    assert [update(some).window_s for _ in range(2)] == pytest.approx([0.0, 1.1])
    complete = update(some)
    assert update(some) is complete
    for _ in range(2):
        window = update(more)
        assert (window.iops or window.bandwidth_bytes_s) == pytest.approx(5.0)
    idle = update(more)
    assert {idle.iops, idle.bandwidth_bytes_s} == {0.0, None}
    assert update(more) is idle


@pytest.mark.parametrize(
    "counters", [IoCounters(), IoCounters(reads=5), IoCounters(1, 2, 3, 4), IoCounters(writes=3)]
)
def test_unchanged_vm_has_the_same_result(counters: IoCounters) -> None:
    """Equal counters in a new object each time take the slow path."""
    number, now_s = DeviceNumber(8, 0), [0.0]
    quick, slow = (BlockDevice(number, window_s=2.0, clock=lambda: now_s[0]) for _ in range(2))
    for _ in range(4):
        now_s[0] += 1.0
        one = quick.update([Stream("a", None, "/a", number, counters)])
        other = slow.update([Stream("a", None, "/a", number, counters._replace())])
        assert one == other
