"""A maximum divided into limits on reads and on writes."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slo_ctl.decide.limit_split import (
    FLOOR,
    ReadWriteSplits,
    Split,
    first_split,
    granted_iops,
    nearest_granted,
    next_split,
)
from slo_ctl.model.host import DeviceNumber, IoCounters, Stream
from slo_ctl.model.slo import Slo

rates = st.floats(0, 1e6)
mixes = st.floats(0, 1)
maximums = st.floats(1, 1e9)
steps = st.sampled_from((10.0, 50.0))
"""One request in each slice of the kernel, of 100 or 20 ms."""


def served(
    split: Split, maximum: float, reads: float, writes: float, *, paired: bool, step: float = 0.0
) -> tuple[float, float]:
    """The part of a demand that is served; `paired` requests keep their mix, others are independent."""
    limits = tuple(granted_iops(limit, step) for limit in split.limits(maximum, step))
    if not paired:
        return min(reads, limits[0]), min(writes, limits[1])
    part = min(1.0, *(limit / want for limit, want in zip(limits, (reads, writes), strict=True) if want > 0))
    return reads * part, writes * part


@given(mixes, rates, rates, maximums)
def test_both_limits_add_up_to_the_maximum(mix: float, reads: float, writes: float, maximum: float) -> None:
    split = next_split(Split(mix), reads, writes, maximum)
    limits = split.limits(maximum)
    assert sum(limits) == pytest.approx(maximum)
    assert min(limits) >= 0.99 * FLOOR * maximum
    assert 0 <= split.mix <= 1


@given(rates, rates)
def test_first_split_is_the_observed_mix(reads: float, writes: float) -> None:
    split = first_split(reads, writes)
    if reads + writes == 0:
        assert split.read_share == 0.5
    else:
        assert split.read_share == pytest.approx(
            min(1 - FLOOR, max(FLOOR, reads / (reads + writes))), abs=1e-9
        )


@given(mixes, mixes, maximums, st.booleans())
def test_no_mix_stays_below_the_maximum_for_long(
    share: float, mix: float, maximum: float, paired: bool
) -> None:
    """Whatever the initial split: within some epochs a VM that demands twice the maximum nearly gets it."""
    split, wants = Split(share), (2 * maximum * mix, 2 * maximum * (1 - mix))
    for _ in range(40):
        split = next_split(split, *served(split, maximum, *wants, paired=paired), maximum)
    for _ in range(200):
        got = served(split, maximum, *wants, paired=paired)
        # 3 % below its maximum a VM counts as capped.
        assert 0.97 * maximum <= sum(got) <= maximum * (1 + 1e-9)
        split = next_split(split, *got, maximum)


@given(mixes, mixes, st.floats(100, 1e5), st.booleans(), steps)
@example(share=0.5, mix=0.8125, maximum=2031.0, paired=True, step=50.0).via("a step of writes was lost")
@example(share=0.5, mix=0.0078125, maximum=250.0, paired=True, step=10.0).via("a side below FLOOR")
def test_no_mix_stays_more_than_two_steps_below_the_maximum(
    share: float, mix: float, maximum: float, paired: bool, step: float
) -> None:
    """As above, but limits act in steps: reads and writes may each miss one."""
    split, wants = Split(share), (2 * maximum * mix, 2 * maximum * (1 - mix))
    for _ in range(40):
        got = served(split, maximum, *wants, paired=paired, step=step)
        split = next_split(split, *got, maximum, step)
    for _ in range(200):
        got = served(split, maximum, *wants, paired=paired, step=step)
        assert 0.97 * maximum - 2 * step <= sum(got) <= maximum + 2
        split = next_split(split, *got, maximum, step)


@given(mixes, st.floats(1, 1e6), steps)
def test_limits_in_steps_exceed_the_maximum_by_at_most_the_lowest_limit(
    share: float, maximum: float, step: float
) -> None:
    split = Split(share)
    reads, writes = split.limits(maximum, step)
    assert min(reads, writes) > 0
    assert reads + writes <= maximum + 2 + 1e-6
    granted = granted_iops(reads, step), granted_iops(writes, step)
    assert split.granted(maximum, step) <= sum(granted) <= reads + writes


def requests_granted(limit: int, slices: int, step: int) -> int:
    """Requests of a saturated VM in this many slices, according to a model of blk-throttle's accounting.

    A request passes if all so far are at most the allowance of the slices begun. After a request, completed
    slices are forgotten with the whole requests that they allowed, unless they allowed none.
    """
    passed = since = counted = 0
    for now in range(slices):
        while counted + 1 <= limit * (now + 1 - since) // step:
            passed, counted = passed + 1, counted + 1
            if over := limit * (now - since) // step:
                since, counted = now, max(0, counted - over)
    return passed


@settings(max_examples=60)
@given(st.integers(1, 1500), st.sampled_from((10, 50)))
def test_rate_granted_by_the_kernel_for_a_limit(limit: int, step: int) -> None:
    granted = granted_iops(limit, step)
    assert limit / 2 < granted <= limit
    seconds = 40 + 4000 // limit
    assert requests_granted(limit, seconds * step, step) / seconds == pytest.approx(granted, rel=0.02)


@given(st.floats(1, 1e5), steps, st.just(0.0) | st.floats(1, 1000))
def test_nearest_limit_is_granted_exactly(limit: float, step: float, least: float) -> None:
    chosen = nearest_granted(limit, step, least)
    granted = granted_iops(chosen, step)
    assert granted >= least
    if limit >= step and least <= limit - step:
        assert granted == chosen == pytest.approx(limit, abs=step / 2 + 1e-6)
    elif not least:
        assert 0.4 * limit <= granted <= 1.4 * limit


def test_writer_only_gets_limits_of_whole_steps() -> None:
    writer = Split(0.0)
    assert writer.limits(120, 10) == (2, 120)
    assert writer.limits(30, 10) == (2, 30)
    assert writer.limits(119, 10) == (5, 110)
    assert writer.limits(1000, 10) == (10, 990)
    assert writer.granted(30, 10) == pytest.approx(30, rel=0.02)
    reader = Split(1.0)
    assert reader.limits(120, 10) == (120, 2)
    assert reader.granted(120, 10) == 120
    # A VM with reads and writes gets no more than one of its limits permits.
    assert Split(0.5).granted(50, 10) == 40


@given(mixes, mixes, maximums)
def test_unthrottled_vm_keeps_its_limits(share: float, mix: float, maximum: float) -> None:
    """For any mix; after they have throttled it, it gets its maximum within an epoch."""
    split = Split(share)
    assert next_split(split, 0.001 * maximum * mix, 0.001 * maximum * (1 - mix), maximum) == split
    wants = (2 * maximum * mix, 2 * maximum * (1 - mix))
    split = next_split(split, *served(split, maximum, *wants, paired=True), maximum)
    assert sum(served(split, maximum, *wants, paired=True)) >= 0.97 * maximum


def test_a_side_that_was_starved_gets_more_when_both_are_throttled() -> None:
    split = Split(1.0)
    for _ in range(120):
        split = next_split(split, *split.limits(1000.0), 1000.0)
    assert split.read_share == pytest.approx(0.9, abs=FLOOR)


# All VMs, from the counters of their cgroups.

DISK, OTHER = DeviceNumber(8, 0), DeviceNumber(8, 16)
SLOS = {"web": Slo(max_iops=100), "free": Slo()}


def stream(vm: str, reads: int, writes: int, device: DeviceNumber = DISK) -> Stream:
    return Stream(vm, None, f"/{vm}", device, IoCounters(reads=reads, writes=writes))


def test_limits_follow_the_mix_of_a_vm() -> None:
    now_s = [10.0]
    mixes = ReadWriteSplits()

    def read_share(reads: int, writes: int) -> float:
        streams = [stream("web", reads, writes), stream("free", 5, 5), stream("web", 9, 9, OTHER)]
        mixes.observe(streams, SLOS, {DISK}, {}, now_s[0])
        assert set(mixes.splits) == {("web", DISK)}
        now_s[0] += 1.0
        return mixes.splits["web", DISK].iops.read_share

    assert read_share(300, 100) == 0.75
    held = mixes.splits
    assert read_share(300, 100) == 0.75
    assert mixes.splits is held
    # Throttled on writes, with room for reads: adjusted at once.
    assert read_share(325, 125) == 0.5
    # A new group with that name has done nothing that counts.
    assert read_share(0, 0) == 0.5
