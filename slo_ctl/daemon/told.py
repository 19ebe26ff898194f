"""Decisions and outcomes as sentences, for logs and plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.model import OutcomeState
from slo_ctl.model.setting import change_of, told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slo_ctl.model import Decision, Outcome


def decided(decision: Decision) -> Iterator[str]:
    """One sentence for each thing that a policy wants changed."""
    for move in decision.moves:
        yield f"{move.blocks} OPS blocks from {move.source or 'spare'} to {move.target or 'spare'}"
    for vm, limit in decision.limits_iops.items():
        yield f"{vm}: no limit" if limit is None else f"{vm}: limit {limit:,.0f} IOPS"
    for vm, weight in decision.scheduler_weights.items():
        yield f"{vm}: scheduler weight {weight:.3g}"


def outcome_line(outcome: Outcome) -> str:
    """What became of a setting."""
    setting = outcome.setting
    what = f"{setting.vm}: {setting.knob}" if setting.vm else str(setting.knob)
    reason = f": {outcome.reason}" if outcome.reason else ""
    match outcome.state:
        case OutcomeState.UNAPPLIED:
            return f"{what} = {told(setting.value)}: unapplied{reason}"
        case OutcomeState.UNCHANGED:
            return f"{what} stays {told(outcome.after)}{reason}"
        case _:
            before, _ = change_of(outcome.before, setting.value)
            after, _ = change_of(outcome.after, setting.value)
            return f"{what}: {told(before)} -> {told(after)} ({outcome.state}; {setting.reason}){reason}"
