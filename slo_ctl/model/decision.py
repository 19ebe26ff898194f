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
class MovePlan:
    """Moves of OPS that are worth what they cost, and how far they have come."""

    source: str | None
    target: str | None
    blocks: int
    """Still to be moved."""
    share_done: float = 0.0
    """Of the blocks that the plan had when it began, 0..1."""
    cost_s: float = 0.0
    """Device time that the rest costs (pages copied, where there is no clock)."""
    saving_s: float = 0.0
    """Device time that it saves over the next drive write."""


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
    plans: tuple[MovePlan, ...] = ()
    """Moves under way, which `moves` are the next step of."""
    asides: dict[str, str] = field(default_factory=dict)
    """By VM, what is done for it or because of others."""
    reasons: tuple[str, ...] = ()
    """One plain sentence per thing that was decided, for status, history and logs."""
