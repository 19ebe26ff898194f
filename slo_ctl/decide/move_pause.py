"""Pauses of OPS moves for VMs that miss their p99.

A step of a move occupies a die for up to 2 ms, and a read that finds its die at one waits. Within the move
budget that costs a VM little throughput, but more than one request of a hundred waits. So moves are the first
to yield to a p99: they are paused after one measurement of a miss, and other VMs are limited after a second.
If the p99 is missed without moves, too, they go on. Either is tried again after a delay that doubles each
time, as for limits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slo_ctl.base.text import and_list
from slo_ctl.decide.limit_control import retry_windows
from slo_ctl.decide.objectives import ControlledVm


@dataclass(frozen=True, slots=True)
class MovePause:
    """State between windows."""

    vms: tuple[str, ...] = ()
    """VMs for whose p99 no OPS moves; empty: moves are not paused."""
    hold_windows: int = 0
    """Windows until the measurements show whether the pause helps."""
    windows: int = 0
    """Windows until moves are tried again, or may be paused again."""
    length_windows: int = 0
    """Length of the last pause."""

    @property
    def text(self) -> str:
        """What is paused for which VMs; empty without a pause."""
        return f"OPS moves are {self.reason}" if self.vms else ""

    @property
    def reason(self) -> str:
        """The same without what is paused."""
        return f"paused for the p99 of {and_list(self.vms)}" if self.vms else ""


def next_pause(
    pause: MovePause, vms: Sequence[ControlledVm], *, moving: bool, changed: bool = False
) -> MovePause:
    """The state one window later.

    `moving`: whether OPS is moved, or would be without the pause. `changed`: other VMs are active, or SLOs
    have changed, so that a pause may help now.
    """
    if changed and not pause.vms:
        pause = MovePause()
    missing = [v for v in vms if v.misses_p99]
    with_target = {v.vm for v in vms if v.max_p99_us}
    is_judged = pause.hold_windows == 1
    pause = replace(
        pause,
        vms=tuple(vm for vm in pause.vms if vm in with_target),
        hold_windows=max(0, pause.hold_windows - 1),
        windows=max(0, pause.windows - 1),
    )
    if pause.hold_windows:
        return pause
    if pause.vms:
        does_not_help = is_judged and any(v.vm in pause.vms for v in missing)
        return replace(pause, vms=()) if does_not_help or not pause.windows else pause
    if not moving or not missing or pause.windows:
        return pause
    effect_windows = max(v.effect_windows for v in missing)
    length = retry_windows(effect_windows, pause.length_windows)
    # In the first measurement are steps that were under way when the pause began.
    hold = 2 * effect_windows
    return MovePause(tuple(sorted(v.vm for v in missing)), hold, hold + length, length)
