"""Decisions of a policy for a device: moves of OPS, limits, weights."""

from __future__ import annotations

from dataclasses import dataclass, field

from slo_ctl.base.text import counted


@dataclass(frozen=True, slots=True)
class OpsMove:
    """A move of OPS blocks from `source` to `target`; None: the spare blocks of the device."""

    source: str | None
    target: str | None
    blocks: int

    def __str__(self) -> str:
        return f"{counted(self.blocks, 'block')} from {self.source or 'spare'} to {self.target or 'spare'}"


@dataclass(frozen=True, slots=True)
class MovePlan:
    """A series of OPS moves whose saving exceeds their cost, and its progress."""

    source: str | None
    target: str | None
    blocks: int
    """Blocks still to be moved."""
    share_done: float = 0.0
    """Part of the planned blocks that has been moved, 0..1."""
    cost_s: float = 0.0
    """Device time that the remaining moves cost (or pages copied, without a clock)."""
    saving_s: float = 0.0
    """Device time saved over the next drive write."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Changes decided for a device; empty: no change."""

    moves: tuple[OpsMove, ...] = ()
    limits_iops: dict[str, float | None] = field(default_factory=dict)
    """New rate limits by VM; None removes a limit; VMs that are not listed keep theirs."""
    scheduler_weights: dict[str, float] = field(default_factory=dict)
    plans: tuple[MovePlan, ...] = ()
    """Plans in progress; `moves` are their next steps."""
    pause: str = ""
    """Why plans do not go on, such as `paused for the p99 of db`; empty if they do."""
    remarks: dict[str, str] = field(default_factory=dict)
    """Explanation of measures, by VM."""
    reasons: tuple[str, ...] = ()
    """One sentence for each decision, for status, history and logs."""
