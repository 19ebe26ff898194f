"""How requests are generated: their sizes and positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traces.batch import PAGE_BYTES, Op
from traces.parameters import size_bytes, weighted

if TYPE_CHECKING:
    from numpy.typing import NDArray

Offsets = Callable[[np.random.Generator, "NDArray[np.int64]"], "NDArray[np.int64]"]
"""Start offsets of requests of the given lengths, in bytes, all within the span."""
Block = tuple["NDArray[np.uint8]", "NDArray[np.int64]", "NDArray[np.int64]"]
"""Operations, offsets and lengths of some requests."""
Maker = Callable[[np.random.Generator, int], Block]
"""Generates the next requests, as many as given; may carry state from call to call."""


@dataclass(frozen=True, slots=True)
class Band:
    """A part of the space: position (fractions of the span), frequency, skew (1 is uniform)."""

    start: float
    width: float
    weight: float
    heat: float = 1.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """A distribution of request sizes over a few whole numbers of bytes."""

    bytes_: NDArray[np.int64]
    cumulative: NDArray[np.float64]

    @classmethod
    def parse(cls, text: str) -> Sizes:
        """From ``4KiB`` or ``4KiB:3+64KiB:1``. Raises ValueError."""
        parts = [(size_bytes(size), weight) for size, weight in weighted(text, "sizes")]
        if any(not 0 < size <= 2**30 for size, _ in parts):
            raise ValueError(f"'{text}' holds a size that is not in 1 byte .. 1 GiB")
        weights = np.array([weight for _, weight in parts])
        return cls(np.array([size for size, _ in parts], np.int64), np.cumsum(weights) / weights.sum())

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        if len(self.bytes_) == 1:
            return np.full(count, self.bytes_[0])
        # Rounding may leave the last bound just below 1.
        index = np.searchsorted(self.cumulative, rng.random(count), side="right")
        return self.bytes_[np.minimum(index, len(self.bytes_) - 1)]


# Ranks with Zipf's distribution, and a scattering of them, both in constant memory.


class Zipf:
    """Ranks 0 .. n-1, rank k with probability proportional to (k+1)^-theta, for any theta >= 0.

    Rejection-inversion: draw from the area under the density's continuous hull, accept most draws. Source:
    Hormann and Derflinger, "Rejection-inversion to generate variates from monotone discrete distributions",
    ACM TOMACS 6(3), 1996.
    """

    def __init__(self, n: int, theta: float) -> None:
        self._n = n
        self._theta = theta
        self._area_start = self._area(np.array([1.5]))[0] - 1.0
        self._area_end = self._area(np.array([n + 0.5]))[0]
        # Draws this close below their rank are accepted without evaluating the density.
        self._sure = 2.0 - self._inverse(self._area(np.array([2.5])) - 2.0**-theta)[0]

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        ranks = np.empty(count, np.int64)
        missing = np.arange(count)
        while len(missing):
            area = self._area_end + rng.random(len(missing)) * (self._area_start - self._area_end)
            x = self._inverse(area)
            k = np.clip(np.floor(x + 0.5), 1, self._n)
            accepted = k - x <= self._sure
            unsure = np.flatnonzero(~accepted)
            accepted[unsure] = area[unsure] >= self._area(k[unsure] + 0.5) - k[unsure] ** -self._theta
            ranks[missing[accepted]] = k[accepted].astype(np.int64) - 1
            missing = missing[~accepted]
        return ranks

    def _area(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Integral of x^-theta from 1 to x."""
        log_x = np.log(x)
        power = 1.0 - self._theta
        return np.expm1(power * log_x) / power if abs(power) > 1e-9 else log_x

    def _inverse(self, area: NDArray[np.float64]) -> NDArray[np.float64]:
        power = 1.0 - self._theta
        if abs(power) <= 1e-9:
            return np.exp(area)
        return np.exp(np.log1p(np.maximum(area * power, -1.0 + 1e-15)) / power)


class Scatter:
    """A fixed permutation of 0 .. n-1 without a table, which moves neighbours far apart.

    A bijection of the next power of two (odd multiplications and shifted exclusive-ors), repeated until the
    result is below n, which takes less than two steps on average.
    """

    _MULTIPLIERS = (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)

    def __init__(self, n: int) -> None:
        self._n = np.uint64(n)
        bits = max((n - 1).bit_length(), 1)
        self._mask = np.uint64((1 << bits) - 1)
        self._shift = np.uint64((bits + 1) // 2)

    def __call__(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """The image of each value."""
        scattered = self._step(values.astype(np.uint64))
        outside = np.flatnonzero(scattered >= self._n)
        while len(outside):
            scattered[outside] = self._step(scattered[outside])
            outside = outside[scattered[outside] >= self._n]
        return scattered.astype(np.int64)

    def _step(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        for multiplier in self._MULTIPLIERS:
            values = (values * np.uint64(multiplier) + np.uint64(0x632BE59BD9B4E019)) & self._mask
            values ^= values >> self._shift
        return values


def requests(
    offsets: Offsets, read_share: float, write_sizes: Sizes, read_sizes: Sizes, span_bytes: int
) -> Maker:
    """Requests at `offsets`: reads at random, sizes from their distributions, none larger than the span."""

    def make(rng: np.random.Generator, count: int) -> Block:
        if read_share <= 0:
            op = np.full(count, Op.WRITE, np.uint8)
        elif read_share >= 1:
            op = np.full(count, Op.READ, np.uint8)
        else:
            op = (rng.random(count) >= read_share).astype(np.uint8)
        length = write_sizes.draw(rng, count)
        if read_share > 0 and read_sizes is not write_sizes:
            length = np.where(op == Op.READ, read_sizes.draw(rng, count), length)
        length = np.minimum(length, span_bytes)
        return op, offsets(rng, length), length

    return make


def _pages_of(length: NDArray[np.int64]) -> NDArray[np.int64]:
    return -(-length // PAGE_BYTES)


def uniform(span_pages: int) -> Offsets:
    """Every page alike."""

    def offsets(rng: np.random.Generator, length: NDArray[np.int64]) -> NDArray[np.int64]:
        room = span_pages - _pages_of(length) + 1
        return (rng.random(len(length)) * room).astype(np.int64) * PAGE_BYTES

    return offsets


def zipf(span_pages: int, theta: float) -> Offsets:
    """Page popularity k^-theta, with popular pages scattered."""
    ranks = Zipf(span_pages, theta)
    scatter = Scatter(span_pages)

    def offsets(rng: np.random.Generator, length: NDArray[np.int64]) -> NDArray[np.int64]:
        page = scatter(ranks.draw(rng, len(length)))
        return np.minimum(page, span_pages - _pages_of(length)) * PAGE_BYTES

    return offsets


def banded(span_pages: int, bands: tuple[Band, ...]) -> Offsets:
    """Uniform or, with skew above 1, power-law starts within bands selected by weight."""
    starts = np.array([round(band.start * span_pages) for band in bands])
    starts = np.minimum(starts, span_pages - 1)
    ends = np.minimum(np.array([round((band.start + band.width) * span_pages) for band in bands]), span_pages)
    widths = np.maximum(ends - starts, 1)
    cumulative = np.cumsum([band.weight for band in bands])
    cumulative = cumulative / cumulative[-1]
    heats = np.array([band.heat for band in bands])

    def offsets(rng: np.random.Generator, length: NDArray[np.int64]) -> NDArray[np.int64]:
        band = np.minimum(np.searchsorted(cumulative, rng.random(len(length)), side="right"), len(bands) - 1)
        place = rng.random(len(length))
        if (heats != 1).any():
            place = place ** heats[band]
        # A request that fits into its band stays in it; it always fits into the span.
        pages = _pages_of(length)
        room = np.maximum(widths[band] - pages + 1, 1)
        first = starts[band] + (place * room).astype(np.int64)
        inside: NDArray[np.int64] = np.minimum(first, span_pages - pages)
        return inside * PAGE_BYTES

    return offsets


def sequential(span_bytes: int, single_size: int | None) -> Offsets:
    """Sequential requests, repeated endlessly; `single_size` if all have that size."""
    # Requests of one size never cross the end: the rest of the span that they do not fill is omitted.
    usable = (
        span_bytes // single_size * single_size if single_size and single_size <= span_bytes else span_bytes
    )
    position = 0

    def offsets(rng: np.random.Generator, length: NDArray[np.int64]) -> NDArray[np.int64]:
        nonlocal position
        del rng
        ends = position + np.cumsum(length)
        position = int(ends[-1]) % usable if len(ends) else position
        inside: NDArray[np.int64] = np.minimum((ends - length) % usable, span_bytes - length)
        return inside

    return offsets


def mixed(parts: list[tuple[Maker, float]]) -> Maker:
    """Each request from one of the parts, selected by weight."""
    cumulative = np.cumsum([weight for _, weight in parts])
    cumulative = cumulative / cumulative[-1]

    def make(rng: np.random.Generator, count: int) -> Block:
        which = np.minimum(np.searchsorted(cumulative, rng.random(count), side="right"), len(parts) - 1)
        op, offset, length = np.empty(count, np.uint8), np.empty(count, np.int64), np.empty(count, np.int64)
        for number, (part, _) in enumerate(parts):
            mine = np.flatnonzero(which == number)
            op[mine], offset[mine], length[mine] = part(rng, len(mine))
        return op, offset, length

    return make
