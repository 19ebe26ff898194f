"""The search for the optimal write size: on mock drives with noise, and on emulated ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.write_size import (
    Closeness,
    Finding,
    Outcome,
    Pair,
    Rule,
    conclude,
    doubled_sizes,
    judge,
    next_size,
)
from lab.write_size_session import EmulatedDrive, PassWriter, Search, passes_at_most, search
from slo_ctl.base.errors import UserError
from slo_ctl.base.progress import Silent
from slo_ctl.model.measurement import Order

KIB, MIB = 1 << 10, 1 << 20
SIZES = doubled_sizes(8 * KIB, 16 * MIB)
CHIPS = "page=4KiB,block=512KiB,channels=4,read_us=25,program_us=200,erase_us=1500,transfer_us=25"
RULE = Rule()

Passes = dict[tuple[Order, int, int], float]
"""Throughput by order and size of the requests, and number of the pass."""


class Merging:
    """A drive by formula: a random write below the block size costs a merge of the rest; with noise."""

    def __init__(self, block_bytes: int, noise: float = 0.0, seed: int = 0) -> None:
        self._block_bytes = block_bytes
        self._noise = noise
        self._rng = np.random.default_rng([seed, block_bytes])

    def write_pass(self, order: Order, request_bytes: int, number: int) -> float:
        del number
        copied = max(0, self._block_bytes - request_bytes) if order is Order.RANDOM else 0
        speed = 100e6 * request_bytes / (request_bytes + copied)
        return float(speed * np.exp(self._noise * self._rng.standard_normal()))


class Noisy:
    """An emulated drive measured on a busy host.

    `exact` caches the passes written so far, for any seed: seeds differ only in the noise.
    """

    def __init__(self, drive: EmulatedDrive, noise: float, seed: int, exact: Passes) -> None:
        self._drive = drive
        self._noise = noise
        self._rng = np.random.default_rng(seed)
        self._exact = exact

    def write_pass(self, order: Order, request_bytes: int, number: int) -> float:
        key = order, request_bytes, number
        if key not in self._exact:
            self._exact[key] = self._drive.write_pass(*key)
        return float(self._exact[key] * np.exp(self._noise * self._rng.standard_normal()))


def pair(size_bytes: int, sequential_bytes_s: float, random_bytes_s: float) -> Pair:
    return Pair(size_bytes=size_bytes, sequential_bytes_s=sequential_bytes_s, random_bytes_s=random_bytes_s)


def found_on(writer: PassWriter, rule: Rule = RULE, sizes: tuple[int, ...] = SIZES) -> tuple[Finding, Search]:
    result = search(writer, sizes, rule, [], Silent(), lambda _: None)
    return conclude(result.pairs, sizes, rule), result


def hybrid(mapping: str, dies: int, span_bytes: int = 256 * MIB) -> EmulatedDrive:
    """A small drive whose clustered block has dies x 512 KiB, with fewer log blocks than the span."""
    # 24 MiB of log blocks.
    return EmulatedDrive(
        f"size=512MiB,op=5%,dies={dies},cluster={dies},mapping={mapping},{CHIPS}", span_bytes
    )


@pytest.mark.parametrize("mapping", ["bast", "fast"])
@pytest.mark.parametrize("dies", [4, 8, 16])
def test_write_size_of_emulated_hybrid_drives_is_the_clustered_block(mapping: str, dies: int) -> None:
    drive = hybrid(mapping, dies)
    finding, _ = found_on(drive)
    assert drive.block_bytes == dies * 512 * KIB
    assert (finding.outcome, finding.block_bytes) == (Outcome.FOUND, drive.block_bytes)
    assert finding.sure


# The span has to be several times the log blocks: 64, 128 and 256 MiB. Writes of less than 64 KiB, of which
# such a span takes many, are tested on the smaller drives above.
@pytest.mark.parametrize(
    ("name", "block_mib", "span_mib"), [("mtron", 2, 512), ("sandisk", 4, 512), ("samsung", 8, 1024)]
)
@pytest.mark.slow
def test_write_size_of_the_papers_drives_is_that_of_table_1(name: str, block_mib: int, span_mib: int) -> None:
    finding, _ = found_on(EmulatedDrive(name, span_mib * MIB), sizes=doubled_sizes(64 * KIB, 16 * MIB))
    assert (finding.block_bytes, finding.sure) == (block_mib * MIB, True)


@pytest.mark.parametrize(
    "spec",
    [
        f"size=1GiB,op=10%,dies=8,{CHIPS}",
        f"size=256MiB,op=15%,dies=4,{CHIPS}",
        f"size=4GiB,op=7%,dies=8,{CHIPS}",
        f"size=1GiB,op=10%,dies=8,mapping=dftl,{CHIPS}",
    ],
)
def test_page_mapped_drive_has_no_write_size(spec: str) -> None:
    for seed in range(5):
        finding, _ = found_on(EmulatedDrive(spec, 256 * MIB, seed))
        assert (finding.outcome, finding.block_bytes, finding.sure) == (Outcome.NONE_NEEDED, None, True)


@pytest.mark.parametrize("noise", [0.05, 0.10])
@pytest.mark.parametrize("mapping", ["bast", "fast"])
def test_noise_moves_the_write_size_by_at_most_one_doubling(mapping: str, noise: float) -> None:
    """Every pass has an error of that standard deviation; 30 seeds on an emulated drive of 4 MiB blocks."""
    right = 0
    drive, exact = hybrid(mapping, 8, 128 * MIB), Passes()
    sizes = doubled_sizes(MIB, 16 * MIB)
    for seed in range(30):
        finding, _ = found_on(Noisy(drive, noise, seed, exact), sizes=sizes)
        assert finding.block_bytes is not None
        assert abs(math.log2(finding.block_bytes / drive.block_bytes)) <= 1
        right += finding.block_bytes == drive.block_bytes
    assert right >= (29 if noise < 0.1 else 24)


@settings(max_examples=300)
@given(st.integers(0, 2**31), st.sampled_from(SIZES[2:-1]), st.floats(0.0, 0.08))
def test_noise_is_tolerated_for_any_block_size(seed: int, block_bytes: int, noise: float) -> None:
    finding, _ = found_on(Merging(block_bytes, noise, seed))
    assert finding.block_bytes is not None
    assert abs(math.log2(finding.block_bytes / block_bytes)) <= 1


def test_verdicts_hold_as_often_as_they_say() -> None:
    """At the edge of the tolerance any verdict is wrong; with 95 % confidence it occurs in at most 5 %."""
    wrong = 0
    edge = math.log1p(RULE.tolerance)
    for seed in range(600):
        rng = np.random.default_rng(seed)
        pairs: list[Pair] = []
        while next_size(pairs, SIZES[:1], RULE) is not None:
            pairs.append(pair(SIZES[0], 100.0 * math.exp(edge + 0.02 * rng.standard_normal()), 100.0))
        wrong += judge(pairs, RULE).closeness is Closeness.EQUAL
    assert wrong <= 42


def test_unreached_and_unmeasured_sizes_are_reported() -> None:
    finding, result = found_on(Merging(64 * MIB))
    assert (finding.outcome, finding.block_bytes, finding.sure) == (Outcome.NOT_REACHED, None, True)
    assert result.passes <= passes_at_most(len(SIZES), RULE)
    assert conclude([], SIZES, RULE).outcome is Outcome.UNFINISHED
    assert conclude(result.pairs[:3], SIZES, RULE).outcome is Outcome.UNFINISHED
    finding, _ = found_on(Merging(8 * KIB))
    assert finding.outcome is Outcome.NONE_NEEDED


def test_faster_random_writes_are_not_taken_for_merges() -> None:
    pairs = [pair(8 * KIB, 50e6, 100e6), pair(8 * KIB, 51e6, 100e6)]
    assert judge(pairs, RULE).closeness is Closeness.EQUAL


def test_interrupted_search_is_resumed() -> None:
    class Interrupted(Merging):
        left = 13

        def write_pass(self, order: Order, request_bytes: int, number: int) -> float:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
            return super().write_pass(order, request_bytes, number)

    kept: list[int] = []
    first = search(
        Interrupted(256 * KIB), SIZES, RULE, [], Silent(), lambda found: kept.append(len(found.pairs))
    )
    assert first.interrupted
    assert (len(first.pairs), kept[-1]) == (4, 4)
    rest = search(Merging(256 * KIB), SIZES, RULE, first.pairs, Silent(), lambda _: None)
    assert rest.pairs[:4] == first.pairs
    assert conclude(rest.pairs, SIZES, RULE).block_bytes == 256 * KIB


def test_every_request_is_written_once_in_each_pass() -> None:
    drive = EmulatedDrive(f"size=64MiB,op=50%,dies=4,{CHIPS}", 32 * MIB)
    before = drive.page_writes
    drive.write_pass(Order.RANDOM, MIB, 1)
    drive.write_pass(Order.SEQUENTIAL, 8 * KIB, 2)
    assert drive.page_writes - before == 2 * 32 * MIB // (4 * KIB)
    times = drive.response_times_us(Order.RANDOM, MIB, 3)
    assert len(times) == 32
    assert (times > 0).all()


@pytest.mark.parametrize(("low", "high"), [(8192, 3 * 8192), (0, 8), (8, 4), (-8, 8)])
def test_sizes_that_never_meet_are_refused(low: int, high: int) -> None:
    with pytest.raises(ValueError, match="never gives"):
        doubled_sizes(low, high)


def test_a_drive_smaller_than_the_span_is_refused() -> None:
    with pytest.raises(UserError, match="the drive has 64MiB"):
        EmulatedDrive(f"size=64MiB,op=50%,dies=4,{CHIPS}", 128 * MIB)
