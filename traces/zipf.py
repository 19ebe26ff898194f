"""Zipf-distributed ranks and a scattering of them, both in constant memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
        # Draws this close below their rank are accepted without a look at the density.
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
    """A fixed permutation of 0 .. n-1 without a table: neighbours end up far apart, the same ones every time.

    A bijection of the next power of two (odd multiplications and shifted exclusive-ors), walked on until it
    lands below n, which takes less than two steps on average.
    """

    _MULTIPLIERS = (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)

    def __init__(self, n: int) -> None:
        self._n = np.uint64(n)
        bits = max((n - 1).bit_length(), 1)
        self._mask = np.uint64((1 << bits) - 1)
        self._shift = np.uint64((bits + 1) // 2)

    def __call__(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where each value goes."""
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
