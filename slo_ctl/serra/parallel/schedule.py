"""Which node does what next: largest first, and in smaller parts towards the end. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slo_ctl.serra.measurement import PARTS, Direction, Measurement, Part
from slo_ctl.serra.parallel.costs import Costs
from slo_ctl.serra.parallel.work import Work
from slo_ctl.serra.profiler import LONG_ENOUGH, longest_s
from slo_ctl.serra.stopping import repetitions_by_size, width

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slo_ctl.serra.measurement import Access
    from slo_ctl.serra.parallel.work import Node
    from slo_ctl.serra.profiler import Plan

ROUNDS_LEFT = 3
"""A part is at the most this part of what is left for each node, so that the last ones end nearly together
(guided self-scheduling: Polychronopoulos and Kuck 1987)."""
SHORTEST_PART_S = 4.0
"""Starting fio four times takes a second: shorter parts would take longer to begin than they save."""


@dataclass(slots=True)
class _Repetition:
    """One task of the paper: all tests of one size, once."""

    size_bytes: int
    number: int
    accesses: tuple[Access, ...]
    due: list[Part] = field(default_factory=lambda: [Part()])
    """Not handed out yet."""
    done: list[tuple[Node, Part, tuple[Measurement, ...]]] = field(default_factory=list)

    @property
    def share_due(self) -> float:
        return sum(part.share for part in self.due)

    @property
    def whole(self) -> bool:
        return sum(part.end - part.begin for _, part, _ in self.done) == PARTS


class Schedule:
    """What is measured, what nodes are at, and what is left."""

    def __init__(self, plan: Plan, span_bytes: int, before: Sequence[Measurement], nodes: int) -> None:
        """`before` was measured in earlier sessions; `nodes` is how many there are to begin with."""
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
        """What the node does now; None: nothing, unless what others are at shows that more is wanted."""
        if node in self._at:
            raise ValueError(f"node {node} is at work")
        self._plan_ahead()
        due = [each for each in self._repetitions if each.due]
        if not due:
            return None
        # Ties go to large requests: how long they take bounds the time of small ones.
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
        """The node has done what it was given."""
        repetition, work = self._at.pop(node)
        repetition.done.append((node, work.part, tuple(measurements)))
        self._costs.learn(work, math.fsum(each.elapsed_s for each in measurements))

    def lose(self, node: Node) -> None:
        """The node does nothing more; what it was at is due again."""
        self._nodes -= 1
        if node in self._at:
            repetition, work = self._at.pop(node)
            repetition.due.append(work.part)

    def forget(self, node: Node) -> None:
        """What the node has measured does not count: it is due again."""
        for each in self._repetitions:
            each.due += [part for who, part, _ in each.done if who == node]
            each.done = [entry for entry in each.done if entry[0] != node]

    @property
    def busy(self) -> int:
        """Nodes that are at work."""
        return len(self._at)

    def tests(self) -> Iterator[tuple[Node, Measurement]]:
        """Every test or part of one of this session, and who did it."""
        for repetition in self._repetitions:
            for node, _, measurements in repetition.done:
                for each in measurements:
                    yield node, each

    def measurements(self) -> list[Measurement]:
        """Those of before, and those of every repetition that is whole."""
        found = list(self._before)
        for repetition in self._repetitions:
            if repetition.whole:
                parts = sorted(repetition.done, key=lambda entry: entry[1])
                found += map(_joined, zip(*(measurements for _, _, measurements in parts), strict=True))
        return found

    def _plan_ahead(self) -> None:
        """Open every repetition that is wanted as far as can be told by now."""
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
        """How many more repetitions the rule will want: what is sure, then one at a time."""
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
            # An interval narrows with the square root of the repetitions; an idle node would be no gain.
            more = math.ceil(count * ((wide / rule.precision) ** 2 - 1))
        return min(max(more, 1), max(self._nodes, 1), rule.max_repetitions - count)

    def _round(self, repetition: _Repetition) -> int:
        """With a budget every size comes once before any twice: when it ends, lines are whole."""
        return repetition.number if self._plan.budget_s is not None else 0

    def _cost_s(self, repetition: _Repetition) -> float:
        tests = len(repetition.accesses) * repetition.share_due
        return tests * self._costs.test_s(repetition.size_bytes)

    def _cut(self, repetition: _Repetition, left_s: float) -> Part:
        """Take a part of what is due of a repetition: small enough beside all that is left."""
        whole = repetition.due.pop(0)
        if self._plan.test_s is not None:
            return whole  # Short already, and as short as it can be.
        whole_s = len(repetition.accesses) * self._costs.test_s(repetition.size_bytes)
        fair = left_s / (max(self._nodes, 1) * ROUNDS_LEFT) / whole_s
        # A sequential test begins with a random access, which has to stay a hundredth of it.
        least = LONG_ENOUGH * repetition.size_bytes / self._span_bytes
        if self._costs.known:
            least = max(least, SHORTEST_PART_S / whole_s)
        count = max(1, math.ceil(PARTS * max(fair, least)))
        # What would be left is too short by itself.
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
