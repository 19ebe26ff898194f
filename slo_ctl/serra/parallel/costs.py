"""How long work is expected to take, before it was done and after. Pure."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slo_ctl.serra.parallel.work import Work

_OVERHEAD_BYTES = 64 << 10
"""Before anything is known: a request costs as much as this is longer. Only an order is needed, in which
small requests over the same file come first (parallel SeRRa, section 5.2)."""


class Costs:
    """Seconds that all tests of one repetition at a size take, learnt as they are done."""

    def __init__(self, test_s: float | None) -> None:
        """`test_s`: the longest of one test; None: each goes over the whole file."""
        self._test_s = test_s
        self._seen: dict[int, list[float]] = defaultdict(list)

    def learn(self, work: Work, took_s: float) -> None:
        """The tests of that took `took_s` together."""
        tests = len(work.accesses) * work.part.share
        if tests > 0 and took_s > 0:
            self._seen[work.size_bytes].append(took_s / tests)

    def test_s(self, size_bytes: int) -> float:
        """Of one test, the mean over the kinds of access; in arbitrary units until anything is known."""
        if size_bytes in self._seen:
            return fmean(self._seen[size_bytes])
        known = [fmean(times) / self._guess(size) for size, times in self._seen.items()]
        return self._guess(size_bytes) * (fmean(known) if known else 1.0)

    @property
    def known(self) -> bool:
        """Something was done: costs are seconds."""
        return bool(self._seen)

    def _guess(self, size_bytes: int) -> float:
        if self._test_s is not None:
            return self._test_s
        return 1 + _OVERHEAD_BYTES / size_bytes
