"""What would change, or has been changed, on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from slo_ctl.model import Outcome, OutcomeState
from slo_ctl.model.setting import change_of
from slo_ctl.show.columns import Column, table_of
from slo_ctl.show.status_table import setting_value
from slo_ctl.show.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.table import Table

    from slo_ctl.api.controller import DevicePlan, Plan

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
    """Those that are no mere confirmation."""
    return [outcome for outcome in outcomes if outcome.state is not OutcomeState.UNCHANGED]


def outcome_table(outcomes: Sequence[Outcome], width: int | None) -> Table:
    """A line for each setting: for whom, which knob, from what to what, and why."""
    columns: list[Column[Outcome]] = [
        Column("VM", lambda each: printable(each.setting.vm), 0, right=False),
        Column("KNOB", lambda each: printable(str(each.setting.knob)), 0, right=False),
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
    """Why it is wanted, and what is to be said of how it went."""
    return printable("; ".join(part for part in (outcome.setting.reason, outcome.reason) if part))


def device_lines(devices: Iterable[DevicePlan]) -> Iterator[Text]:
    """What the policy of each device would move, and why."""
    for device in devices:
        policy = f", policy {printable(device.policy)}" if device.policy else ""
        if not device.decided:
            yield Text(f"{printable(device.device)}{policy}: nothing to move")
        else:
            yield Text(f"{printable(device.device)}{policy}:")
        yield from (Text(f"  {printable(sentence)}") for sentence in device.decided)
        yield from (Text(f"  because {printable(sentence)}", style="dim") for sentence in device.reasons)


def summary(outcomes: Sequence[Outcome]) -> str:
    """How many settings are in which state."""
    counts = {state: sum(each.state is state for each in outcomes) for state in OutcomeState}
    told = [f"{count} {state.value}" for state, count in counts.items() if count]
    return f"{len(outcomes)} setting(s): {', '.join(told)}" if told else "no settings are wanted"
