"""The master: hands out work, collects what comes of it, and leaves out who dies or is unlike the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slo_ctl.errors import UserError
from slo_ctl.serra.parallel.agreement import odd_one
from slo_ctl.serra.parallel.schedule import Schedule
from slo_ctl.serra.parallel.work import Done, Lost, Noted
from slo_ctl.serra.profiler import Ended
from slo_ctl.serra.stopping import tests_at_most

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slo_ctl.replay.progress import ProgressSink
    from slo_ctl.serra.measurement import Measurement
    from slo_ctl.serra.parallel.work import Event, Node, Transport
    from slo_ctl.serra.profiler import Plan

_PATIENCE_S = 1.0
"""How often the budget is looked at while nobody says anything."""


@dataclass(slots=True)
class Collected:
    """What came of it."""

    measurements: list[Measurement]
    """Those of before, and the new ones behind them."""
    ended: Ended = Ended.PRECISE
    left_out: dict[Node, str] = field(default_factory=dict)
    """Why nodes were left out."""
    tests: dict[Node, int] = field(default_factory=dict)
    """How many tests, or parts of tests, of each node count."""


class Coordinator:
    """One session of measuring by several nodes."""

    def __init__(
        self, plan: Plan, span_bytes: int, before: Sequence[Measurement], transport: Transport
    ) -> None:
        self._plan = plan
        self._before = list(before)
        self._span_bytes = span_bytes
        self._transport = transport
        self._kept = len(self._before)

    def run(
        self,
        nodes: Sequence[Node],
        progress: ProgressSink,
        keep: Callable[[Sequence[Measurement], Node], None],
    ) -> Collected:
        """Have `nodes`, which are ready, measure until it is enough.

        `keep` gets all measurements and the first of the nodes they are of whenever another repetition is
        whole or does not count any more, and once more in the end, whatever ends it. KeyboardInterrupt ends
        it with what was measured. Raises UserError when no node is left, after `keep`.
        """
        schedule = Schedule(self._plan, self._span_bytes, self._before, len(nodes))
        collected = Collected(self._before)
        active, idle = set(nodes), sorted(nodes)
        total = tests_at_most(self._before, self._plan.sizes_bytes, self._plan.accesses, self._plan.rule)
        phase = progress.phase(f"profiling with {len(nodes)} nodes", float(total), "tests")
        start_s = self._transport.now_s()
        try:
            while True:
                spent = self._plan.budget_s is not None and (
                    self._transport.now_s() - start_s >= self._plan.budget_s
                )
                if not spent:
                    idle = [node for node in idle if not self._give(schedule, node)]
                if not schedule.busy:
                    if not active:
                        raise _nobody_left(collected.left_out, self._transport.names)
                    collected.ended = Ended.BUDGET if spent else Ended.PRECISE
                    break
                event = self._transport.next_event(_PATIENCE_S)
                if event is None or event.node not in active:
                    continue
                if isinstance(event, Noted):
                    progress.note(f"{self._transport.names[event.node]}: {event.text}")
                    continue
                gone = self._take(schedule, event, collected, progress)
                active -= gone
                idle = [*(node for node in idle if node in active)]
                if event.node in active:
                    idle.append(event.node)
                whole = schedule.measurements()
                phase.advance(max(0, len(whole) - self._kept))
                if len(whole) != self._kept and active:
                    self._kept = len(whole)
                    keep(whole, min(active))
        except KeyboardInterrupt:
            collected.ended = Ended.INTERRUPTED
        finally:
            phase.done()
            collected.measurements = schedule.measurements()
            for node, _ in schedule.tests():
                collected.tests[node] = collected.tests.get(node, 0) + 1
            if active:
                keep(collected.measurements, min(active))
        return collected

    def _give(self, schedule: Schedule, node: Node) -> bool:
        work = schedule.next_for(node)
        if work is None:
            return False
        self._transport.give(node, work)
        return True

    def _take(
        self, schedule: Schedule, event: Event, collected: Collected, progress: ProgressSink
    ) -> set[Node]:
        """Take a result or a loss; returns the nodes that are left out from now on."""
        names = self._transport.names
        if isinstance(event, Lost):
            schedule.lose(event.node)
            self._transport.dismiss(event.node)
            hint = f" ({event.hint})" if event.hint else ""
            collected.left_out[event.node] = f"{event.reason}{hint}"
            progress.note(
                f"{names[event.node]} is lost: {event.reason}{hint}; what it was at is done by the others"
            )
            return {event.node}
        if not isinstance(event, Done):
            return set()
        schedule.done(event.node, event.measurements)
        odd = odd_one(schedule.tests())
        if odd is None:
            return set()
        schedule.forget(odd.node)
        if odd.node in collected.left_out:
            # It is lost already, and what it had measured was counted until now.
            return set()
        schedule.lose(odd.node)
        self._transport.dismiss(odd.node)
        reason = (
            f"its times are {odd.factor:.2f} times the others', and tests of one node differ by "
            f"{odd.noise:.0%}"
        )
        collected.left_out[odd.node] = reason
        progress.note(f"{names[odd.node]} is left out: {reason}; what it measured is measured anew")
        return {odd.node}


def _nobody_left(left_out: dict[Node, str], names: Sequence[str]) -> UserError:
    reasons = "; ".join(f"{names[node]}: {reason}" for node, reason in sorted(left_out.items()))
    return UserError(
        f"no node is left ({reasons})",
        "what was measured before is kept: run the same command again to go on",
    )
