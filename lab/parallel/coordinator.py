"""The master: distributes work, collects results, and excludes nodes that die or differ from the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lab.parallel.schedule import (
    Done,
    Event,
    Lost,
    Node,
    Noted,
    Ready,
    Schedule,
    Transport,
    odd_one,
)
from slo_ctl.base.clock import now_text
from slo_ctl.base.errors import UserError
from slo_ctl.base.progress import ProgressSink
from slo_ctl.model.measurement import Measurement
from slo_ctl.profile.session import (
    ProfileRequest,
    begin_profile,
    ended_profile,
    is_precise,
    plan_for,
)
from slo_ctl.profile.store import Measured, NodeShare, Profile, ProfileStore
from slo_ctl.profile.sweep import Ended, SweepPlan, max_tests_left

_TIMEOUT_S = 1.0
"""Interval at which the budget is checked while no node sends anything."""


@dataclass(slots=True)
class Collected:
    """Result of a session."""

    measurements: list[Measurement]
    """Earlier measurements, followed by the new ones."""
    ended: Ended = Ended.PRECISE
    left_out: dict[Node, str] = field(default_factory=dict)
    """Why nodes were left out."""
    tests: dict[Node, int] = field(default_factory=dict)
    """Number of tests, or parts of tests, that count for each node."""


class Coordinator:
    """One measuring session with several nodes."""

    def __init__(
        self, plan: SweepPlan, span_bytes: int, before: Sequence[Measurement], transport: Transport
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
        """Let `nodes`, which are ready, measure until the rule is satisfied.

        `keep` gets all measurements and the first of their nodes whenever another repetition is complete or
        no longer counts, and once more at the end in any case. KeyboardInterrupt ends it with the
        measurements so far. Raises UserError if no node is left, after `keep`.
        """
        schedule = Schedule(self._plan, self._span_bytes, self._before, len(nodes))
        collected = Collected(self._before)
        active, idle = set(nodes), sorted(nodes)
        total = max_tests_left(self._before, self._plan.sizes_bytes, self._plan.accesses, self._plan.rule)
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
                event = self._transport.next_event(_TIMEOUT_S)
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
        """Process a result or a loss; returns the nodes that are excluded from now on."""
        names = self._transport.names
        if isinstance(event, Lost):
            schedule.lose(event.node)
            self._transport.dismiss(event.node)
            hint = f" ({event.hint})" if event.hint else ""
            collected.left_out[event.node] = f"{event.reason}{hint}"
            progress.note(
                f"{names[event.node]} is lost: {event.reason}{hint}; the others do its remaining work"
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
            # The node is already lost, and its measurements counted until now.
            return set()
        schedule.lose(odd.node)
        self._transport.dismiss(odd.node)
        reason = (
            f"its times are {odd.factor:.2f} times the others', and tests of one node differ by "
            f"{odd.noise:.0%}"
        )
        collected.left_out[odd.node] = reason
        progress.note(
            f"{names[odd.node]} is left out: {reason}; its measurements are repeated on other nodes"
        )
        return {odd.node}


def _nobody_left(left_out: dict[Node, str], names: Sequence[str]) -> UserError:
    reasons = "; ".join(f"{names[node]}: {reason}" for node, reason in sorted(left_out.items()))
    return UserError(
        f"no nodes remain ({reasons})",
        "completed measurements are kept: run the same command again to continue",
    )


# A profile of one device, measured by several nodes with devices of the same kind.


def profile_with_nodes(
    request: ProfileRequest, store: ProfileStore, progress: ProgressSink, transport: Transport
) -> Measured[Profile]:
    """Let every node with the same kind of device as node 0 measure; measurements are stored in `store` after
    every repetition.

    The profile is stored as that of the first node that is not excluded. Raises UserError if no node is
    left.
    """
    left_out: dict[Node, str] = {}
    ready = _alike(_wait_until_ready(transport, progress, left_out), transport, progress, left_out)
    if not ready:
        reasons = "; ".join(f"{transport.names[node]}: {why}" for node, why in sorted(left_out.items()))
        raise UserError(f"no node can measure ({reasons})", "try each of them without the others")
    _warn_of_shared(ready, transport, progress)
    first = ready[min(ready)]
    begun = begin_profile(request, store, first.identity, first.span_bytes, first.intervals, progress)
    plan = plan_for(request, begun, first.sizes_bytes, first.directions)
    if is_precise(plan, begun, progress):
        return Measured(begun, False)
    written = begun.conditioning.written_bytes + first.conditioning.written_bytes
    conditioning = first.conditioning.model_copy(update={"written_bytes": written})
    profile = begun.model_copy(update={"conditioning": conditioning})

    def keep(measurements: Sequence[Measurement], node: Node) -> None:
        nonlocal profile
        identity = ready[node].identity
        if store.path(profile.identity) != store.path(identity):
            _withdraw(store, profile, begun)
        profile = profile.model_copy(
            update={"identity": identity, "measurement": tuple(measurements), "updated": now_text()}
        )
        if profile.measurement:
            store.save(profile)

    collected = Coordinator(plan, first.span_bytes, begun.measurement, transport).run(
        sorted(ready), progress, keep
    )
    collected.left_out |= left_out
    profile = ended_profile(profile, begun, collected.ended).model_copy(
        update={"nodes": _shares(transport, collected)}
    )
    if profile.measurement:
        store.save(profile)
    return Measured(profile, collected.ended is Ended.INTERRUPTED)


def _withdraw(store: ProfileStore, profile: Profile, begun: Profile) -> None:
    """A device that turned out to differ from the others keeps its earlier profile, or none."""
    if begun.measurement:
        store.save(begun)
    else:
        store.path(profile.identity).unlink(missing_ok=True)


def _shares(transport: Transport, collected: Collected) -> tuple[NodeShare, ...]:
    return tuple(
        NodeShare(name=name, tests=collected.tests.get(node, 0), left_out=collected.left_out.get(node, ""))
        for node, name in enumerate(transport.names)
    )


def _wait_until_ready(
    transport: Transport, progress: ProgressSink, left_out: dict[Node, str]
) -> dict[Node, Ready]:
    """Nodes that have opened and prepared their target; the reasons of the others are added to `left_out`."""
    ready: dict[Node, Ready] = {}
    said: set[str] = set()
    while len(ready) + len(left_out) < len(transport.names):
        event = transport.next_event(_TIMEOUT_S)
        if isinstance(event, Ready):
            ready[event.node] = event
        elif isinstance(event, Noted) and event.text not in said:
            # Nodes have almost the same messages.
            said.add(event.text)
            progress.note(f"{transport.names[event.node]}: {event.text}")
        elif isinstance(event, Lost):
            ready.pop(event.node, None)
            hint = f" ({event.hint})" if event.hint else ""
            _leave_out(event.node, f"{event.reason}{hint}", transport, progress, left_out)
    return ready


def _alike(
    ready: dict[Node, Ready], transport: Transport, progress: ProgressSink, left_out: dict[Node, str]
) -> dict[Node, Ready]:
    """Nodes whose device is of the same kind as that of the first one."""
    if not ready:
        return ready
    wanted = _kind(ready[min(ready)])
    same: dict[Node, Ready] = {}
    for node, each in sorted(ready.items()):
        differences = [
            f"its {name} is {value}, not {wanted[name]}"
            for name, value in _kind(each).items()
            if value != wanted[name]
        ]
        if differences:
            _leave_out(node, "; ".join(differences), transport, progress, left_out)
        else:
            same[node] = each
    return same


def _kind(ready: Ready) -> dict[str, str]:
    """Properties that must be equal for times to be comparable."""
    identity = ready.identity
    # Without better information the model is the kernel's name of the device, and emulated SSDs have names.
    return {
        "model": identity.model.removesuffix(identity.device).strip() or "not known",
        "firmware": identity.firmware or "not known",
        "kernel": identity.kernel,
        "scheduler": identity.scheduler or "none",
        "part that is used": f"{ready.span_bytes} bytes",
        "intervals": ", ".join(map(str, ready.intervals)),
        "permission": " and ".join(ready.directions),
    }


def _warn_of_shared(ready: dict[Node, Ready], transport: Transport, progress: ProgressSink) -> None:
    """Report nodes that measure the same device."""
    by_device: dict[tuple[str, str], list[Node]] = {}
    for node, each in sorted(ready.items()):
        if each.identity.serial:
            by_device.setdefault((each.identity.model, each.identity.serial), []).append(node)
    for nodes in by_device.values():
        if len(nodes) > 1:
            who = ", ".join(transport.names[node] for node in nodes)
            progress.note(f"{who}: the same device, so that they disturb each other")


def _leave_out(
    node: Node, reason: str, transport: Transport, progress: ProgressSink, left_out: dict[Node, str]
) -> None:
    transport.dismiss(node)
    left_out[node] = reason
    progress.note(f"{transport.names[node]} is left out: {reason}")
