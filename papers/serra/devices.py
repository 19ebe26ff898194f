"""Modelled devices that the figures of SeRRa profile in virtual time, and complete profiles of them."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import TYPE_CHECKING

import numpy as np

from ftl_emul import Disks
from lab.parallel.schedule import Done, Event, Node, Work
from slo_ctl.decide.profile_fit import RatioSummary, half_width
from slo_ctl.drives.build import parse_device, plan_drive
from slo_ctl.model.measurement import (
    ACCESSES,
    RAND_READ,
    WHOLE,
    Access,
    Benchmark,
    Direction,
    Measurement,
    Order,
    Part,
    accesses_of,
)

if TYPE_CHECKING:
    from ftl_emul import Device


# One disk, or several as RAID-0: `ftl_emul.Disks`, which are served, too.

BARRACUDA_XT = "barracuda-xt"
"""A disk of 7200/min."""
CHEETAH_15K7 = "cheetah-15k7"
"""The disk of 15000/min of Chimint and Taurus in SAC'15, table 2."""
_READ, _WRITE = 0, 1
_FILL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ArrayParameters:
    """Disks, their arrangement, and the position of the file."""

    preset: str
    """Name in `ftl_emul.disk_presets()`, where the sources of its figures are."""
    disks: int = 1
    stripe_bytes: int = 64 << 10
    """Stripe on one disk (64 KiB is usual for hardware RAID)."""
    file_bytes: int = 200_000_000
    placed_within: float = 0.1
    """Each repetition creates its file anew, anywhere in this outer part of the disks: a file system with
    free space fills that first.
    """


class DiskArray:
    """A Benchmark in virtual time, closed loop at queue depth 1, like IOzone with one thread."""

    def __init__(self, parameters: ArrayParameters, seed: int, one_file: bool = False) -> None:
        """With `one_file` all tests share one file, whose first writing is included in the time."""
        self._disks = Disks(parameters.preset, parameters.disks, parameters.stripe_bytes)
        self._parameters = parameters
        self._seed = seed
        self._one_file = one_file
        if one_file:
            offsets = self._place(0, 0) + np.arange(parameters.file_bytes // _FILL_BYTES) * _FILL_BYTES
            self._disks.play(_WRITE, offsets.astype(np.uint64), _FILL_BYTES)
            self._disks.flush()

    def now_s(self) -> float:
        return self._disks.now_ns / 1e9

    def measure(
        self, access: Access, size_bytes: int, repetition: int, limit_s: float | None, part: Part = WHOLE
    ) -> Measurement:
        kind = list(Order).index(access.order) * 2 + list(Direction).index(access.direction)
        draw = np.random.default_rng([self._seed, size_bytes, repetition, 1 + kind + 4 * part.begin])
        in_file = max(1, self._parameters.file_bytes // size_bytes)
        own = part.of(in_file)
        numbers = (
            np.arange(own.start, own.stop)
            if access.order is Order.SEQUENTIAL
            else draw.integers(0, in_file, len(own), dtype=np.int64)
        )
        offsets = (self._place(size_bytes, repetition) + numbers * size_bytes).astype(np.uint64)
        begun_ns = self._disks.now_ns
        done, _ = self._disks.play(
            _WRITE if access.direction is Direction.WRITE else _READ,
            offsets,
            size_bytes,
            limit_ns=None if limit_s is None else int(limit_s * 1e9),
        )
        # The flush counts, as with IOzone's -e: otherwise shortened tests would measure the write cache.
        self._disks.flush()
        elapsed = (self._disks.now_ns - begun_ns) / 1e9
        return Measurement(access, size_bytes, repetition, elapsed / done, done, elapsed)

    def _place(self, size_bytes: int, repetition: int) -> int:
        """Start of the file of this repetition."""
        p = self._parameters
        which = [self._seed] if self._one_file else [self._seed, size_bytes, repetition]
        room = int(self._disks.capacity_bytes * p.placed_within) - p.file_bytes
        return int(np.random.default_rng(which).integers(0, max(room, 0) + 1)) // 4096 * 4096


# The emulated SSD in virtual time: the timed FTL of `slo-ctl replay`, preconditioned, at queue depth 1.

_SLICE = 64
"""Requests passed at once to a test that may be shortened."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """The cache between the host and the flash of an NVMe SSD, for writes and read-ahead.

    A command and its transfer take the times that Memblaze measured on a PBlaze7 7940 with 4 KiB sequential
    reads, one at a time: 5.96 us with read-ahead, 56.95 us without ("4K QD1 sequential read"). The interface
    is PCIe 3.0 x4, less its overhead. The size is assumed.
    """

    size_bytes: int = 256 << 10
    """Size of the read-ahead of sequential reads, and of written data not yet on the flash."""
    command_s: float = 4.8e-6
    interface_bytes_s: float = 3.5e9

    def depth(self, access: Access, size_bytes: int) -> int:
        """Requests that the flash processes at once, while the host has one outstanding."""
        if access is RAND_READ:
            return 1
        return max(1, self.size_bytes // size_bytes)

    def elapsed_s(self, access: Access, size_bytes: int, requests: int, flash_s: float) -> float:
        """Flash and interface work at the same time; a random read waits for its command first."""
        transfer_s = requests * size_bytes / self.interface_bytes_s
        commands_s = requests * self.command_s
        if access is RAND_READ:
            return commands_s + max(flash_s, transfer_s)
        return max(flash_s, commands_s + transfer_s)


class EmulatedSsd:
    """A Benchmark on a preconditioned drive."""

    def __init__(
        self, spec: str, file_bytes: int, seed: int, one_file: bool = False, buffer: Buffer | None = None
    ) -> None:
        """Make and precondition the drive of `spec` (keys of `replay --device`). Raises UserError.

        With `one_file` all tests share one file, which is written first (in the time that is counted), as
        `slo-ctl device profile` does; else each repetition has one of its own, as IOzone does.
        """
        device = parse_device(spec)
        plan = plan_drive(device, [("file", device.size_bytes)], noun="file")
        self._page_bytes = plan.config.page_bytes
        self._device: Device
        self._device, tenants = plan.create(isolated=True)
        self._tenant = tenants[0]
        self._device.precondition(seed)
        self._file_bytes = file_bytes
        self._room_pages = plan.total_pages - -(-file_bytes // self._page_bytes)
        if self._room_pages < 0:
            raise ValueError("the file does not fit on the drive")
        self._seed = seed
        self._start_ns = self._device.now_ns
        self._buffer = buffer
        self._outside_flash_s = 0.0
        self._one_file = one_file
        if one_file:
            count = file_bytes // _FILL_BYTES
            offsets = self._place(0, 0) + np.arange(count) * _FILL_BYTES
            self._play(offsets.astype(np.uint64), Direction.WRITE, _FILL_BYTES)

    def now_s(self) -> float:
        return (self._device.now_ns - self._start_ns) / 1e9 + self._outside_flash_s

    def measure(
        self, access: Access, size_bytes: int, repetition: int, limit_s: float | None, part: Part = WHOLE
    ) -> Measurement:
        kind = list(Order).index(access.order) * 2 + list(Direction).index(access.direction)
        draw = np.random.default_rng([self._seed, size_bytes, repetition, 1 + kind])
        start = self._place(size_bytes, repetition)
        total = max(1, self._file_bytes // size_bytes)
        numbers = (
            (np.arange(total) + (draw.integers(0, total // 2 + 1) if self._one_file else 0)) % total
            if access.order is Order.SEQUENTIAL
            else draw.integers(0, total, total, dtype=np.int64)
        )
        own = part.of(total)
        offsets = (start + numbers[own.start : own.stop] * size_bytes).astype(np.uint64)
        total = len(own)
        begun_ns = self._device.now_ns
        depth = 1 if self._buffer is None else self._buffer.depth(access, size_bytes)
        done, step, elapsed = 0, total if limit_s is None else _SLICE, 0.0
        while done < total and (limit_s is None or elapsed < limit_s):
            self._play(offsets[done : done + step], access.direction, size_bytes, depth)
            done = min(done + step, total)
            elapsed = flash_s = (self._device.now_ns - begun_ns) / 1e9
            if self._buffer is not None:
                elapsed = self._buffer.elapsed_s(access, size_bytes, done, flash_s)
        self._outside_flash_s += elapsed - (self._device.now_ns - begun_ns) / 1e9
        return Measurement(access, size_bytes, repetition, elapsed / done, done, elapsed)

    def _place(self, size_bytes: int, repetition: int) -> int:
        """Start of the file of this repetition."""
        which = [self._seed] if self._one_file else [self._seed, size_bytes, repetition]
        return int(np.random.default_rng(which).integers(0, self._room_pages + 1)) * self._page_bytes

    def _play(
        self,
        offsets: np.ndarray[tuple[int], np.dtype[np.uint64]],
        direction: Direction,
        size: int,
        depth: int = 1,
    ) -> None:
        count = len(offsets)
        self._device.open_queue(self._tenant, depth)
        self._device.feed(
            self._tenant,
            np.zeros(count, dtype=np.int64),
            np.full(count, _WRITE if direction is Direction.WRITE else _READ, dtype=np.uint8),
            offsets,
            np.full(count, size, dtype=np.uint64),
        )
        self._device.end_input(self._tenant)
        self._device.run()


# A SATA SSD by its data sheet: a write buffer, read-ahead, and a fixed cost per request.


@dataclass(frozen=True, slots=True)
class SataParameters:
    """By default those of a Samsung 850 EVO of 1 TB, from its data sheet.

    540 and 520 MB/s of sequential reads and writes; at queue depth 1, 40,000 random writes of 4 KiB a second
    (25 us: the buffer takes them, so that command and transfer are all) and 10,000 random reads (100 us:
    those and a read of the flash).
    """

    file_bytes: int = 200_000_000
    read_bytes_s: float = 540e6
    write_bytes_s: float = 520e6
    command_s: float = 17e-6
    flash_read_s: float = 75e-6


class SataSsd:
    """A Benchmark at queue depth 1, closed loop, in virtual time.

    Writes end when the buffer has them; the buffer writes them to flash as fast as they come. A sequential
    read finds its data in the buffer, as the drive reads ahead at the rate of its interface; a random one
    waits for the first page, while the flash delivers the others faster than the interface.
    """

    def __init__(self, parameters: SataParameters) -> None:
        self._parameters = parameters
        self._now_s = 0.0

    def now_s(self) -> float:
        return self._now_s

    def measure(
        self, access: Access, size_bytes: int, repetition: int, limit_s: float | None, part: Part = WHOLE
    ) -> Measurement:
        p = self._parameters
        reads, random = access.direction is Direction.READ, access.order is Order.RANDOM
        each_s = p.command_s + size_bytes / (p.read_bytes_s if reads else p.write_bytes_s)
        first_s = p.flash_read_s if reads else 0.0
        if random:
            each_s, first_s = each_s + first_s, 0.0
        requests = len(part.of(max(1, p.file_bytes // size_bytes)))
        if limit_s is not None:
            requests = max(1, min(requests, int(limit_s / each_s) + 1))
        elapsed_s = first_s + requests * each_s
        self._now_s += elapsed_s
        return Measurement(access, size_bytes, repetition, elapsed_s / requests, requests, elapsed_s)


# A device whose speed varies between runs.


class Varying:
    """Another Benchmark with all times scaled by one random factor."""

    def __init__(self, benchmark: Benchmark, deviation: float, seed: int) -> None:
        """`deviation`: standard deviation of the factor over seeds."""
        self._benchmark = benchmark
        self._factor = max(0.1, np.random.default_rng(seed).normal(1.0, deviation))

    def now_s(self) -> float:
        return self._benchmark.now_s() * self._factor

    def measure(
        self, access: Access, size_bytes: int, repetition: int, limit_s: float | None, part: Part = WHOLE
    ) -> Measurement:
        found = self._benchmark.measure(access, size_bytes, repetition, limit_s, part)
        return replace(
            found,
            access_time_s=found.access_time_s * self._factor,
            elapsed_s=found.elapsed_s * self._factor,
        )


# The profile that SeRRa estimates: every size measured, until each mean is known (SAC'15, section 4.2).

MAX_ERROR = 0.10
MIN_REPETITIONS = 6
MAX_REPETITIONS = 500
"""Limit for a test whose mean never settles."""


@dataclass(frozen=True, slots=True)
class Complete:
    """Mean access times of every size."""

    times_s: Mapping[tuple[Access, int], float]
    spent_s: float
    """Time spent measuring."""
    repetitions: float
    """Mean number of repetitions over all sizes."""

    def ratio(self, direction: Direction, size_bytes: int) -> float:
        """Ratio of sequential to random throughput."""
        sequential, random = accesses_of((direction,))
        return self.times_s[random, size_bytes] / self.times_s[sequential, size_bytes]

    def average_ratio(self, direction: Direction) -> float:
        """Mean ratio over all sizes."""
        return fmean(
            self.ratio(direction, size)
            for access, size in self.times_s
            if access.order is Order.RANDOM and access.direction is direction
        )

    def errors(self, summary: RatioSummary) -> list[float]:
        """Relative error of each estimated ratio, as an absolute value; 1 for a missing ratio."""
        return [
            1.0
            if each.value is None
            else abs(each.value / self.ratio(summary.direction, each.size_bytes) - 1)
            for each in summary.ratios
        ]

    def median_error(self, summary: RatioSummary) -> float:
        """Median of the errors over all sizes: the paper's measure."""
        return median(self.errors(summary))


def measure_completely(
    benchmark: Benchmark, sizes_bytes: Sequence[int], directions: tuple[Direction, ...]
) -> Complete:
    """Measure every size with whole tests, each repeated until its mean is known to 10 % with 90 %
    confidence.

    At least six times (SAC'15, section 4.2).
    """
    start = benchmark.now_s()
    accesses = accesses_of(directions)
    means: dict[tuple[Access, int], float] = {}
    repetitions: list[int] = []
    for size in sizes_bytes:
        times: dict[Access, list[float]] = {access: [] for access in accesses}
        for repetition in range(MAX_REPETITIONS):
            unsettled = [access for access in accesses if not _settled(times[access])]
            if not unsettled:
                break
            for access in unsettled:
                times[access].append(benchmark.measure(access, size, repetition, None).access_time_s)
        means |= {(access, size): fmean(values) for access, values in times.items()}
        repetitions += [len(values) for values in times.values()]
    return Complete(means, benchmark.now_s() - start, fmean(repetitions))


def measure_as_the_paper(
    benchmark: Benchmark, sizes_bytes: Sequence[int], repetitions: int, first_repetition: int = 0
) -> list[Measurement]:
    """SeRRa's benchmark phase as published: all four tests of a size, whole, a given number of times (SAC'15,
    section 3, step 2)."""
    return [
        benchmark.measure(access, size, repetition, None)
        for repetition in range(first_repetition, first_repetition + repetitions)
        for size in sorted(sizes_bytes, reverse=True)
        for access in ACCESSES
    ]


def _settled(times: Sequence[float]) -> bool:
    return len(times) >= MIN_REPETITIONS and half_width(times) <= MAX_ERROR * fmean(times)


# Nodes with modelled devices, each with a virtual clock, to estimate the gain of parallel profiling.


class VirtualNodes:
    """A Transport whose nodes work at the same time, in virtual time."""

    def __init__(self, benchmarks: Sequence[Benchmark], overhead_s: float = 0.0) -> None:
        """`overhead_s`: cost for a node of receiving one piece of work."""
        self._benchmarks = list(benchmarks)
        self._overhead_s = overhead_s
        self._now_s = 0.0
        self._pending: list[tuple[float, Node, Event]] = []
        self.busy_s = [0.0] * len(self._benchmarks)
        """Busy time of each node."""

    @property
    def names(self) -> Sequence[str]:
        return [f"node {number}" for number in range(len(self._benchmarks))]

    def give(self, node: Node, work: Work) -> None:
        """Do the work at once; it counts as done at the time of the node's clock."""
        benchmark = self._benchmarks[node]
        begun_s = benchmark.now_s()
        measurements = tuple(
            benchmark.measure(access, work.size_bytes, work.repetition, limit_s, work.part)
            for access, limit_s in zip(work.accesses, work.limits_s, strict=True)
        )
        took_s = benchmark.now_s() - begun_s + self._overhead_s
        self.busy_s[node] += took_s
        heapq.heappush(self._pending, (self._now_s + took_s, node, Done(node, measurements)))

    def dismiss(self, node: Node) -> None:
        """Ignore the node from now on."""
        self._pending = [entry for entry in self._pending if entry[1] != node]
        heapq.heapify(self._pending)

    def next_event(self, timeout_s: float) -> Event | None:
        """The next event; time passes until then."""
        if not self._pending:
            self._now_s += timeout_s
            return None
        self._now_s, _, event = heapq.heappop(self._pending)
        return event

    def now_s(self) -> float:
        return self._now_s
