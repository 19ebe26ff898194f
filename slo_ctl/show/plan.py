"""Planned or applied changes on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from slo_ctl.base.text import counted, printable
from slo_ctl.model import Outcome, OutcomeState
from slo_ctl.model.decision import change_of
from slo_ctl.show.status import setting_value
from slo_ctl.show.terminal import Column, table_of

if TYPE_CHECKING:
    from rich.table import Table

    from slo_ctl.model.plan import DevicePlan, Plan

STYLES = {
    OutcomeState.UNCHANGED: "dim",
    OutcomeState.PLANNED: "yellow",
    OutcomeState.APPLIED: "green",
    OutcomeState.RESTORED: "green",
    OutcomeState.UNAPPLIED: "bold red",
}


def pending(plan: Plan) -> bool:
    """Whether the next epoch would change anything."""
    return bool(changes(plan.outcomes)) or any(device.decided for device in plan.devices)


def changes(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Outcomes other than unchanged."""
    return [outcome for outcome in outcomes if outcome.state is not OutcomeState.UNCHANGED]


def outcome_table(outcomes: Sequence[Outcome], width: int | None) -> Table:
    """A row for each setting: VM, setting, old and new value, and why."""
    columns: list[Column[Outcome]] = [
        Column("VM", lambda each: printable(each.setting.vm), 0, right=False),
        Column("SETTING", lambda each: printable(str(each.setting.knob)), 0, right=False),
        Column("NOW -> WANTED", lambda each: change_text(each), 0, right=False),
        Column("STATE", lambda each: Text(each.state.value, STYLES[each.state]), 1, right=False),
        Column("WHY", why_text, 2, right=False),
    ]
    return table_of(columns, outcomes, width)


def change_text(outcome: Outcome) -> str:
    """`100 -> 300`."""
    before, wanted = change_of(outcome.before, outcome.setting.value)
    return f"{setting_value(before)} -> {setting_value(wanted)}"


def why_text(outcome: Outcome) -> str:
    """Why it is wanted, and why it was not applied."""
    return printable("; ".join(part for part in (outcome.setting.reason, outcome.reason) if part))


def device_lines(devices: Iterable[DevicePlan]) -> Iterator[Text]:
    """Moves that the policy of each device would make, and why."""
    for device in devices:
        policy = f", policy {printable(device.policy)}" if device.policy else ""
        if not device.decided:
            yield Text(f"{printable(device.device)}{policy}: no OPS to move")
        else:
            yield Text(f"{printable(device.device)}{policy}:")
        yield from (Text(f"  {printable(sentence)}") for sentence in device.decided)
        yield from (Text(f"  because {printable(sentence)}", style="dim") for sentence in device.reasons)


def summary(outcomes: Sequence[Outcome]) -> str:
    """How many settings are in which state."""
    counts = {state: sum(each.state is state for each in outcomes) for state in OutcomeState}
    parts = [f"{count} {state.value}" for state, count in counts.items() if count]
    return f"{counted(len(outcomes), 'setting')}: {', '.join(parts)}" if parts else "no settings to apply"
