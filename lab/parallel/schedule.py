"""Order of the work of nodes: largest first, and in smaller parts towards the end. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Protocol

from slo_ctl.decide.request_sizes import Interval
from slo_ctl.model.measurement import PARTS, WHOLE, Access, Direction, Measurement, Part
from slo_ctl.profile.identity import Identity
from slo_ctl.profile.store import Conditioning
from slo_ctl.profile.sweep import LONG_ENOUGH, SweepPlan, longest_s, repetitions_by_size, width

# Messages between a master and its nodes.

Node = int
"""Nodes are numbered from 0; the profile is that of the device of node 0."""


@dataclass(frozen=True, slots=True)
class Work:
    """Tests of one size that one node carries out in sequence."""

    size_bytes: int
    repetition: int
    accesses: tuple[Access, ...]
    limits_s: tuple[float | None, ...]
    """Maximum duration of each test."""
    part: Part = WHOLE
    """The same part of every test, so that sequential and random times remain a pair."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A node has opened its target and waits for work."""

    node: Node
    identity: Identity
    span_bytes: int
    intervals: tuple[Interval, ...]
    sizes_bytes: tuple[int, ...]
    directions: tuple[Direction, ...]
    conditioning: Conditioning


@dataclass(frozen=True, slots=True)
class Noted:
    """A message of a node for the user."""

    node: Node
    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """A node has completed its work, and waits for more."""

    node: Node
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """A node has ended."""

    node: Node
    reason: str
    hint: str = ""
    """The hint, if the node has one."""


Event = Ready | Noted | Done | Lost


class Transport(Protocol):
    """The connection to some nodes, each of which has one Work at a time."""

    @property
    def names(self) -> Sequence[str]:
        """Names of nodes, by number."""

    def give(self, node: Node, work: Work) -> None:
        """Give work to a node; if it cannot be reached, `next_event` reports that."""

    def dismiss(self, node: Node) -> None:
        """Give a node no more work, and ignore its messages."""

    def next_event(self, timeout_s: float) -> Event | None:
        """The next message of a node; None if there is none within `timeout_s`."""

    def now_s(self) -> float:
        """The clock that advances during work, s."""


# Expected duration of work, before and after measurements. Pure.

_OVERHEAD_BYTES = 64 << 10
"""Initial assumption: a request costs as much as this many more bytes. Only an order is needed, in which
small requests over the same file come first (parallel SeRRa, section 5.2)."""


class Costs:
    """Seconds that all tests of one repetition at a size take, learned from results."""

    def __init__(self, test_s: float | None) -> None:
        """`test_s`: the maximum of one test; None: each covers the whole file."""
        self._test_s = test_s
        self._seen: dict[int, list[float]] = defaultdict(list)

    def learn(self, work: Work, took_s: float) -> None:
        """Learn that these tests took `took_s` together."""
        tests = len(work.accesses) * work.part.share
        if tests > 0 and took_s > 0:
            self._seen[work.size_bytes].append(took_s / tests)

    def test_s(self, size_bytes: int) -> float:
        """Time of one test, the mean over the kinds of access; in arbitrary units until there is a result."""
        if size_bytes in self._seen:
            return fmean(self._seen[size_bytes])
        known = [fmean(times) / self._guess(size) for size, times in self._seen.items()]
        return self._guess(size_bytes) * (fmean(known) if known else 1.0)

    @property
    def known(self) -> bool:
        """Whether there is a result: costs are then in seconds."""
        return bool(self._seen)

    def _guess(self, size_bytes: int) -> float:
        if self._test_s is not None:
            return self._test_s
        return 1 + _OVERHEAD_BYTES / size_bytes


# Detects nodes whose times differ from those of the others. Pure.

MIN_TESTS = 8
"""Minimum before a node is judged: two rounds of the four tests, done by other nodes at the same sizes."""
MIN_DIFFERENCE = 0.10
"""Accepted as noise: the error of the paper's complete profile (SAC'15, section 4.2)."""
NOISE_WIDTHS = 3.0
"""Standard deviations of single tests by which a node may differ in addition."""
_MAD_TO_SIGMA = 1.4826
"""MAD to standard deviation of a normal distribution."""

_Kind = tuple["Access", int]


@dataclass(frozen=True, slots=True)
class Oddity:
    """A node that differs from the others."""

    node: Node
    factor: float
    """Its times over those of the others, the median over all tests."""
    noise: float
    """Standard deviation of single tests of one node, relative."""


def odd_one(tests: Iterable[tuple[Node, Measurement]]) -> Oddity | None:
    """The node whose times differ most from the others', if that is more than noise.

    Of two nodes the one with the lower number is assumed to be right: the profile is that of node 0's
    device.
    """
    times: dict[Node, dict[_Kind, list[float]]] = defaultdict(lambda: defaultdict(list))
    for node, each in tests:
        times[node][each.access, each.size_bytes].append(math.log(each.access_time_s))
    middles = {node: {kind: median(logs) for kind, logs in own.items()} for node, own in times.items()}
    sigma = _noise(times, middles)
    # From the highest number: of two with the same difference, the first one found is excluded.
    worst: tuple[float, Node] | None = None
    for node in sorted(times, reverse=True):
        shift = _shift(node, times, middles)
        if shift is not None and (worst is None or abs(shift) > abs(worst[0]) + 1e-9):
            worst = shift, node
    if worst is None or abs(worst[0]) <= math.log1p(MIN_DIFFERENCE) + NOISE_WIDTHS * sigma:
        return None
    return Oddity(worst[1], math.exp(worst[0]), sigma)


def _shift(
    node: Node,
    times: Mapping[Node, Mapping[_Kind, Sequence[float]]],
    middles: Mapping[Node, Mapping[_Kind, float]],
) -> float | None:
    """ln of how much slower a node is than the others; None: too few tests to compare."""
    shifts: list[float] = []
    for kind, logs in times[node].items():
        others = [own[kind] for other, own in middles.items() if other != node and kind in own]
        if others:
            shifts += [log - median(others) for log in logs]
    return median(shifts) if len(shifts) >= MIN_TESTS else None


def _noise(
    times: Mapping[Node, Mapping[_Kind, Sequence[float]]], middles: Mapping[Node, Mapping[_Kind, float]]
) -> float:
    """Standard deviation of ln(time) within the repetitions of one node; robust."""
    residuals = [
        # Each group has its own centre: with n values residuals are too small by sqrt((n - 1) / n).
        abs(log - middles[node][kind]) * math.sqrt(len(logs) / (len(logs) - 1))
        for node, own in times.items()
        for kind, logs in own.items()
        if len(logs) > 1
        for log in logs
    ]
    return _MAD_TO_SIGMA * median(residuals) if residuals else 0.0


ROUNDS_LEFT = 3
"""A part is at most this fraction of the remaining work for each node, so that the last ones end almost
together (guided self-scheduling: Polychronopoulos and Kuck 1987)."""
SHORTEST_PART_S = 4.0
"""Starting fio four times takes a second: shorter parts would cost more than they gain."""


@dataclass(slots=True)
class _Repetition:
    """One task of the paper: all tests of one size, once."""

    size_bytes: int
    number: int
    accesses: tuple[Access, ...]
    due: list[Part] = field(default_factory=lambda: [Part()])
    """Tests not assigned yet."""
    done: list[tuple[Node, Part, tuple[Measurement, ...]]] = field(default_factory=list)

    @property
    def share_due(self) -> float:
        return sum(part.share for part in self.due)

    @property
    def whole(self) -> bool:
        return sum(part.end - part.begin for _, part, _ in self.done) == PARTS


class Schedule:
    """Completed, running and remaining tests."""

    def __init__(self, plan: SweepPlan, span_bytes: int, before: Sequence[Measurement], nodes: int) -> None:
        """`before` was measured in earlier sessions; `nodes` is the initial number of nodes."""
        self._plan = plan
        self._span_bytes = span_bytes
        self._before = tuple(before)
        self._nodes = nodes
        self._costs = Costs(plan.test_s)
        self._repetitions: list[_Repetition] = []
        self._at: dict[Node, tuple[_Repetition, Work]] = {}
        self._numbers: dict[int, int] = defaultdict(int)
        for each in before:
            self._numbers[each.size_bytes] = max(self._numbers[each.size_bytes], each.repetition + 1)

    def next_for(self, node: Node) -> Work | None:
        """The next work of the node; None: none, unless results of the others show that more is needed."""
        if node in self._at:
            raise ValueError(f"node {node} is at work")
        self._plan_ahead()
        due = [each for each in self._repetitions if each.due]
        if not due:
            return None
        # Ties go to large requests: their duration limits the total time.
        chosen = max(due, key=lambda each: (-self._round(each), self._cost_s(each), each.size_bytes))
        part = self._cut(chosen, sum(map(self._cost_s, due)))
        known = self.measurements()
        limits = tuple(
            None if longest is None else longest * part.share
            for longest in (longest_s(self._plan, known, each, chosen.size_bytes) for each in chosen.accesses)
        )
        work = Work(chosen.size_bytes, chosen.number, chosen.accesses, limits, part)
        self._at[node] = chosen, work
        return work

    def done(self, node: Node, measurements: Sequence[Measurement]) -> None:
        """The node has completed its work."""
        repetition, work = self._at.pop(node)
        repetition.done.append((node, work.part, tuple(measurements)))
        self._costs.learn(work, math.fsum(each.elapsed_s for each in measurements))

    def lose(self, node: Node) -> None:
        """The node ends; its current work becomes available again."""
        self._nodes -= 1
        if node in self._at:
            repetition, work = self._at.pop(node)
            repetition.due.append(work.part)

    def forget(self, node: Node) -> None:
        """Discard the measurements of a node: they are repeated."""
        for each in self._repetitions:
            each.due += [part for who, part, _ in each.done if who == node]
            each.done = [entry for entry in each.done if entry[0] != node]

    @property
    def busy(self) -> int:
        """Number of working nodes."""
        return len(self._at)

    def tests(self) -> Iterator[tuple[Node, Measurement]]:
        """Every test or part of one of this session, and its node."""
        for repetition in self._repetitions:
            for node, _, measurements in repetition.done:
                for each in measurements:
                    yield node, each

    def measurements(self) -> list[Measurement]:
        """Earlier measurements, and those of every complete repetition."""
        found = list(self._before)
        for repetition in self._repetitions:
            if repetition.whole:
                parts = sorted(repetition.done, key=lambda entry: entry[1])
                found += map(_joined, zip(*(measurements for _, _, measurements in parts), strict=True))
        return found

    def _plan_ahead(self) -> None:
        """Open all repetitions that are known to be needed."""
        known = self.measurements()
        counts = repetitions_by_size(known)
        opened: dict[tuple[int, Direction], int] = defaultdict(int)
        for each in self._repetitions:
            if not each.whole:
                for direction in {access.direction for access in each.accesses}:
                    opened[each.size_bytes, direction] += 1
        for size in self._plan.sizes_bytes:
            lack = {
                direction: self._wanted(known, direction, size, counts[size, direction])
                - opened[size, direction]
                for direction in {access.direction for access in self._plan.accesses}
            }
            for number in range(max(lack.values(), default=0)):
                accesses = tuple(access for access in self._plan.accesses if lack[access.direction] > number)
                self._repetitions.append(_Repetition(size, self._numbers[size], accesses))
                self._numbers[size] += 1

    def _wanted(self, known: Sequence[Measurement], direction: Direction, size: int, count: int) -> int:
        """Number of further repetitions for the rule: the certain ones, then one at a time."""
        rule = self._plan.rule
        if count >= rule.max_repetitions:
            return 0
        if count < rule.min_repetitions:
            return rule.min_repetitions - count
        wide = width(known, direction, size)
        if wide <= rule.precision:
            return 0
        if rule.precision <= 0 or not math.isfinite(wide):
            more = self._nodes
        else:
            # An interval narrows with the square root of the repetitions; leaving a node idle gains nothing.
            more = math.ceil(count * ((wide / rule.precision) ** 2 - 1))
        return min(max(more, 1), max(self._nodes, 1), rule.max_repetitions - count)

    def _round(self, repetition: _Repetition) -> int:
        """With a budget every size is measured once before any twice: lines are complete at its end."""
        return repetition.number if self._plan.budget_s is not None else 0

    def _cost_s(self, repetition: _Repetition) -> float:
        tests = len(repetition.accesses) * repetition.share_due
        return tests * self._costs.test_s(repetition.size_bytes)

    def _cut(self, repetition: _Repetition, left_s: float) -> Part:
        """Take a part of the remaining work of a repetition: small compared with all remaining work."""
        whole = repetition.due.pop(0)
        if self._plan.test_s is not None:
            return whole  # already short, and as short as possible
        whole_s = len(repetition.accesses) * self._costs.test_s(repetition.size_bytes)
        fair = left_s / (max(self._nodes, 1) * ROUNDS_LEFT) / whole_s
        # A sequential test begins with a random access, which must remain a hundredth of it.
        least = LONG_ENOUGH * repetition.size_bytes / self._span_bytes
        if self._costs.known:
            least = max(least, SHORTEST_PART_S / whole_s)
        count = max(1, math.ceil(PARTS * max(fair, least)))
        # The remainder would be too short.
        if whole.end - whole.begin < count + math.ceil(PARTS * least):
            return whole
        repetition.due.insert(0, Part(whole.begin + count, whole.end))
        return Part(whole.begin, whole.begin + count)


def _joined(parts: Sequence[Measurement]) -> Measurement:
    """One test from its parts."""
    requests = sum(each.requests for each in parts)
    time_s = math.fsum(each.access_time_s * each.requests for each in parts) / requests
    first = parts[0]
    elapsed_s = math.fsum(each.elapsed_s for each in parts)
    return Measurement(first.access, first.size_bytes, first.repetition, time_s, requests, elapsed_s)
