"""What should change on a device."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class OpsMove:
    """Give `blocks` OPS blocks of `source` to `target`; None as an end is the device's unassigned spare."""

    source: str | None
    target: str | None
    blocks: int


@dataclass(frozen=True, slots=True)
class Target:
    """What an SLO means right now, given who is active and what the device can do."""

    share: float
    """Of the device's total IOPS, 0..1; 0 for an idle VM."""
    iops: float | None = None
    """None where no clock gives IOPS."""
    u: float | None = None
    ops_blocks: int | None = None
    """OPS the target is expected to need."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What should change. Empty means: leave everything as it is."""

    moves: tuple[OpsMove, ...] = ()
    limits_iops: dict[str, float | None] = field(default_factory=dict)
    """New rate limits; None lifts a limit; VMs not named keep theirs."""
    scheduler_weights: dict[str, float] = field(default_factory=dict)
    targets: dict[str, Target] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    """One plain sentence per thing that was decided, for status, history and logs."""
