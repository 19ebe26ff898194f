"""A profile of one device, measured by several nodes that have its like."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.errors import UserError
from slo_ctl.serra.parallel.coordinator import Coordinator
from slo_ctl.serra.parallel.work import Lost, Noted, Ready
from slo_ctl.serra.profile import NodeShare, rows
from slo_ctl.serra.profiler import Ended
from slo_ctl.serra.session import Outcome, begin_profile, ended_profile, is_precise, now_text, plan_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slo_ctl.replay.progress import ProgressSink
    from slo_ctl.serra.measurement import Measurement
    from slo_ctl.serra.parallel.coordinator import Collected
    from slo_ctl.serra.parallel.work import Node, Transport
    from slo_ctl.serra.profile import Profile
    from slo_ctl.serra.session import Request
    from slo_ctl.serra.store import ProfileStore

_PATIENCE_S = 1.0


def profile_with_nodes(
    request: Request, store: ProfileStore, progress: ProgressSink, transport: Transport
) -> Outcome:
    """Have every node that is like node 0 measure; what was measured is kept in `store` after every
    repetition.

    The profile is stored as that of the first node that is not left out. Raises UserError when no node is
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
        return Outcome(begun, False)
    written = begun.conditioning.written_bytes + first.conditioning.written_bytes
    conditioning = first.conditioning.model_copy(update={"written_bytes": written})
    profile = begun.model_copy(update={"conditioning": conditioning})

    def keep(measurements: Sequence[Measurement], node: Node) -> None:
        nonlocal profile
        identity = ready[node].identity
        if store.path(profile.identity) != store.path(identity):
            _withdraw(store, profile, begun)
        profile = profile.model_copy(
            update={"identity": identity, "measurement": rows(measurements), "updated": now_text()}
        )
        if profile.measurement:
            store.save(profile)

    collected = Coordinator(plan, first.span_bytes, begun.measurements(), transport).run(
        sorted(ready), progress, keep
    )
    collected.left_out |= left_out
    profile = ended_profile(profile, begun, collected.ended).model_copy(
        update={"nodes": _shares(transport, collected)}
    )
    if profile.measurement:
        store.save(profile)
    return Outcome(profile, collected.ended is Ended.INTERRUPTED)


def _withdraw(store: ProfileStore, profile: Profile, begun: Profile) -> None:
    """A device that turned out to be unlike the others keeps the profile it had before, or none."""
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
    """Those that have opened and prepared their target; why the others have not goes to `left_out`."""
    ready: dict[Node, Ready] = {}
    said: set[str] = set()
    while len(ready) + len(left_out) < len(transport.names):
        event = transport.next_event(_PATIENCE_S)
        if isinstance(event, Ready):
            ready[event.node] = event
        elif isinstance(event, Noted) and event.text not in said:
            # Nodes have much the same to say.
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
    """Those whose device is of the same kind as the first one's."""
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
    """What has to be the same for times to be comparable."""
    identity = ready.identity
    # Where nothing better is known a model is the kernel's name for it, and emulated SSDs have names.
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
    """Say when nodes measure one and the same device."""
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
