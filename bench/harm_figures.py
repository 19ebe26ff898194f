"""Evaluates the records of `bench/harm.py`: no clock, no files except fio's logs, no processes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

LEAST_RATIO, LEAST_WINDOW_RATIO = 0.95, 0.9
WINDOW_S = 10
PAGE_BYTES = 4096
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Requests:
    """Every request of one client: time of completion (seconds since 1970), latency, and 4 KiB pages."""

    at_s: np.ndarray
    latency_ms: np.ndarray
    pages: np.ndarray

    @property
    def began_s(self) -> float:
        """Time at which the first one completed."""
        return float(self.at_s[0]) if len(self.at_s) else float("inf")

    def per_second(self, from_s: float, seconds: int) -> list[int]:
        """Pages of the requests completed in each second."""
        edges = from_s + np.arange(seconds + 1)
        return [int(n) for n in np.histogram(self.at_s, bins=edges, weights=self.pages)[0]]

    def pages_between(self, after_s: float, until_s: float) -> int:
        """Pages of the requests completed in that period."""
        return int(self.pages[(self.at_s > after_s) & (self.at_s <= until_s)].sum())

    def latencies_ms(self, from_s: float, seconds: float) -> np.ndarray:
        """Latencies of the requests completed in that period."""
        return self.latency_ms[(self.at_s >= from_s) & (self.at_s < from_s + seconds)]


def read_requests(path: Path) -> Requests:
    """From fio's `lat` log with log_unix_epoch=1: milliseconds, nanoseconds, direction, bytes, ..."""
    rows = [line.split(",", 4)[:4] for line in path.read_text().splitlines()]
    columns = np.array(rows, dtype=float).reshape(-1, 4)
    columns = columns[np.argsort(columns[:, 0], kind="stable")]
    return Requests(columns[:, 0] / 1e3, columns[:, 1] / 1e6, columns[:, 3] / PAGE_BYTES)


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency percentiles in milliseconds."""

    mean_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class Load:
    """Service of the clients of one run in the measured period."""

    pages: dict[str, list[int]]
    """4 KiB pages of each client, by second."""
    latency: dict[str, Latency]

    @property
    def total(self) -> list[int]:
        """Pages of all clients together."""
        return [sum(second) for second in zip(*self.pages.values(), strict=True)]

    def shares(self, seconds: int) -> dict[str, float]:
        """Share of each client over the last seconds."""
        done = {name: sum(series[-seconds:]) for name, series in self.pages.items()}
        everything = sum(done.values())
        return {name: count / everything if everything else 0.0 for name, count in done.items()}


def load_of(clients: Mapping[str, Requests], from_s: float, seconds: int) -> Load:
    """Service of the clients from `from_s` (seconds since 1970) on."""
    latency = {}
    for name, requests in clients.items():
        found = requests.latencies_ms(from_s, seconds)
        if len(found):
            latency[name] = Latency(float(found.mean()), float(np.percentile(found, 99)), float(found.max()))
    return Load({name: each.per_second(from_s, seconds) for name, each in clients.items()}, latency)


@dataclass(frozen=True, slots=True)
class Compared:
    """Total of 4 KiB pages per second with the daemon, compared with that without it."""

    without_pages_s: float
    with_pages_s: float
    ratio: float
    worst_ratio: float
    """The smallest ratio in a window, each compared with the same seconds of the run without the daemon."""
    worst_from_s: int

    @property
    def kept(self) -> bool:
        """Whether the daemon costs no more than allowed."""
        return self.ratio >= LEAST_RATIO and self.worst_ratio >= LEAST_WINDOW_RATIO


def compare(without: Sequence[int], with_: Sequence[int], window: int = WINDOW_S) -> Compared:
    """Totals of each second of two runs of the same load from equal drives."""
    window = min(window, len(without))
    worst_ratio, first = min(
        (_ratio(sum(with_[at : at + window]), sum(without[at : at + window])), at)
        for at in range(len(without) - window + 1)
    )
    without_s, with_s = sum(without) / len(without), sum(with_) / len(with_)
    return Compared(without_s, with_s, _ratio(with_s, without_s), worst_ratio, first)


def _ratio(with_: float, without: float) -> float:
    return with_ / without if without else 0.0


@dataclass(slots=True)
class ReportedVerdict:
    """One verdict with its reason (numbers replaced), and the seconds in which it was reported."""

    verdict: str
    reason: str
    first: str
    """The reason with its numbers, when it was first reported."""
    seconds: list[int] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """The verdict as one line."""
        return f"{spans(self.seconds)} s: {self.verdict}: {self.first}"


def distinct(verdicts: Iterable[tuple[int, str, str]]) -> list[ReportedVerdict]:
    """Distinct pairs of verdict and reason, apart from numbers, from (second, verdict, reason)."""
    found: dict[tuple[str, str], ReportedVerdict] = {}
    for second, verdict, reason in verdicts:
        pattern = _NUMBER.sub("#", reason)
        reported = found.setdefault((verdict, pattern), ReportedVerdict(verdict, pattern, reason))
        if not reported.seconds or reported.seconds[-1] != second:
            reported.seconds.append(second)
    return list(found.values())


def spans(seconds: Sequence[int]) -> str:
    """Seconds as text such as `0-12, 15, 20-31`."""
    parts: list[list[int]] = []
    for second in sorted(set(seconds)):
        if parts and second <= parts[-1][1] + 1:
            parts[-1][1] = second
        else:
            parts.append([second, second])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


@dataclass(frozen=True, slots=True)
class Space:
    """Counters of one namespace at one moment."""

    ops_blocks: int
    pending_out_blocks: int
    weight: float
    limit_iops: float | None
    host_page_writes: int
    gc_page_writes: int
    victims: int


def waf(first: Iterable[Space], last: Iterable[Space]) -> float | None:
    """WAF of all namespaces together between two moments; None if nothing was written."""
    before, after = list(first), list(last)
    host = sum(s.host_page_writes for s in after) - sum(s.host_page_writes for s in before)
    gc = sum(s.gc_page_writes for s in after) - sum(s.gc_page_writes for s in before)
    return (host + gc) / host if host > 0 else None


def space_of(namespace: Mapping[str, object]) -> Space:
    """From the statistics of a namespace on the control socket."""
    space, flash = namespace["space"], namespace["flash"]
    if not isinstance(space, dict) or not isinstance(flash, dict):
        raise TypeError("not an SSD's namespace")
    weight, limit = namespace["weight"], namespace["limit_iops"]
    return Space(
        ops_blocks=int(space["ops_blocks"]),
        pending_out_blocks=int(space["pending_out_blocks"]),
        weight=float(weight) if isinstance(weight, int | float) else 0.0,
        limit_iops=float(limit) if isinstance(limit, int | float) else None,
        host_page_writes=int(flash["host_page_writes"]),
        gc_page_writes=int(flash["gc_page_writes"]),
        victims=int(flash["victims"]),
    )
