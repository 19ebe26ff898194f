"""How a profile is measured: on one target, on several of a kind at once, or by the ranks of an MPI job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from slo_ctl.replay.progress import ProgressSink
    from slo_ctl.serra.identity import Surroundings
    from slo_ctl.serra.session import Outcome, Request
    from slo_ctl.serra.store import ProfileStore


def for_each_target(request: Request, nodes: list[str], allowed: list[str]) -> list[Request]:
    """The request, and the same for every other target; each may write only where it is named.

    Raises UserError for a target named twice, and one to be written that is none of them.
    """
    from dataclasses import replace

    targets = [request.target, *nodes]
    if len(set(targets)) < len(targets):
        raise UserError("--node: a target is named twice", "each has to be a device of its own")
    strange = [name for name in allowed if name not in targets]
    if strange:
        raise UserError(
            f"--allow-write names {strange[0]}, and the target is {', '.join(targets)}",
            "name the target itself, letter by letter",
        )
    return [
        replace(request, target=target, allow_write=target if target in allowed else None)
        for target in targets
    ]


def profile_here(
    requests: list[Request], around: Surroundings, store: ProfileStore, progress: ProgressSink
) -> Outcome:
    """Measure by this process: one target, or all of `requests` at the same time. Raises UserError."""
    if len(requests) == 1:
        from slo_ctl.serra.session import profile_target

        return profile_target(requests[0], around, store, progress)
    from slo_ctl.serra.parallel.local import LocalNodes
    from slo_ctl.serra.parallel.session import profile_with_nodes

    with LocalNodes(requests, around) as nodes:
        return profile_with_nodes(requests[0], store, progress, nodes)


def profile_by_mpi(
    request: Request,
    around: Surroundings,
    store: ProfileStore,
    progress: ProgressSink,
    tell_outcome: Callable[[Outcome], None],
) -> bool:
    """Measure with all ranks, and have rank 0 tell what it has collected; whether it was interrupted.

    That is told before MPI is ended: a second after Ctrl-C mpirun kills its ranks.
    """
    from slo_ctl.serra.parallel.mpi import MpiNodes, World, serve_rank
    from slo_ctl.serra.parallel.session import profile_with_nodes

    world = World()
    if world.rank:
        serve_rank(world, request, around)
        return False
    if not world.survives:
        progress.note("should a rank die, mpirun ends the others, too, unless it has --enable-recovery")
    with MpiNodes(world, request, around) as nodes:
        outcome = profile_with_nodes(request, store, progress, nodes)
        tell_outcome(outcome)
    return outcome.interrupted
