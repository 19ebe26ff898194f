"""`slo-ctl plan`: what would change and why, touching nothing."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.cli.api_access import RootOption, client
from slo_ctl.cli.exit_codes import EXIT_CHECK, EXIT_FAILURE
from slo_ctl.cli.say import remark, tell_json

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from slo_ctl.api.controller import Plan
    from slo_ctl.daemon.loop import Daemon
    from slo_ctl.model import Outcome


def command(
    json_: Annotated[bool, typer.Option("--json", help="One JSON object instead of the table.")] = False,
    every: Annotated[
        bool, typer.Option("--all", "-a", help="Show settings that stay as they are as well.")
    ] = False,
    root: RootOption = None,
) -> None:
    """Show what the next epoch would change, and why. Touches nothing.

    Exit status 0: nothing would change; 1: an error; 2: a mistake in what was asked; 3: changes are pending.
    """
    from slo_ctl.show.plan_table import pending

    plan = read_plan(root)
    if json_:
        print_plan_json(plan)
    else:
        print_plan(plan, every)
    if pending(plan):
        raise typer.Exit(EXIT_CHECK)


def read_plan(root: Path | None) -> Plan:
    """The daemon's, or without one what its next epoch would be."""
    from slo_ctl.api.client import ApiUnreachable
    from slo_ctl.api.controller import Plan
    from slo_ctl.show.status_json import StatusFormatError, from_plain

    try:
        return from_plain(Plan, client(root).get("/v1/plan"))
    except ApiUnreachable:
        remark("slo-ctl: the daemon is not reachable; looking for myself")
        return plan_without_daemon(root)
    except StatusFormatError as error:
        remark(f"slo-ctl: the daemon's plan is not understood: {error}")
        raise typer.Exit(EXIT_FAILURE) from None


def plan_without_daemon(root: Path | None) -> Plan:
    """What a daemon's first epochs would change: observes and decides, and touches nothing."""
    from slo_ctl.config import load
    from slo_ctl.daemon.loop import Daemon
    from slo_ctl.daemon.places import DaemonPlaces

    places = DaemonPlaces(root)
    return plan_of(Daemon(load(places.config), places, dry_run=True))


def plan_of(daemon: Daemon) -> Plan:
    """Of a daemon's first epochs, which is a dry run; it is stopped then."""
    try:
        look_twice(daemon)
        return daemon.plan()
    finally:
        daemon.stop(undo=False)


def look_twice(daemon: Daemon) -> list[Outcome]:
    """Two epochs, since nothing can be decided before one was measured whole; what became of all settings."""
    from slo_ctl.model import OutcomeState

    daemon.epoch()
    first = {outcome.setting.knob: outcome for outcome in daemon.outcomes}
    time.sleep(daemon.config.daemon.epoch_s)
    daemon.epoch()
    # What the first has changed, the second finds unchanged.
    found = {**first, **{outcome.setting.knob: outcome for outcome in daemon.outcomes}}
    return [
        first.get(knob, outcome) if outcome.state is OutcomeState.UNCHANGED else outcome
        for knob, outcome in found.items()
    ]


def print_plan_json(plan: Plan) -> None:
    """One JSON object."""
    from slo_ctl.show.status_json import FORMAT_VERSION, plain

    tell_json({"format_version": FORMAT_VERSION, **plain(plan)})


def print_plan(plan: Plan, every: bool) -> None:
    """The table of what would change, what each device's policy would move, and notes."""
    from slo_ctl.show.console import console_for
    from slo_ctl.show.plan_table import changes, device_lines, summary

    console = console_for(sys.stdout)
    print_outcomes(console, list(plan.outcomes) if every else changes(plan.outcomes))
    for line in device_lines(plan.devices):
        console.print(line, soft_wrap=True)
    console.print(summary(plan.outcomes), soft_wrap=True)
    for note in plan.notes:
        remark(f"note: {note}")


def print_outcomes(console: Console, outcomes: list[Outcome]) -> None:
    """A table of settings, when there are any."""
    from slo_ctl.show.console import PIPE_WIDTH
    from slo_ctl.show.plan_table import outcome_table

    if not outcomes:
        return
    width = console.width
    if not sys.stdout.isatty():
        console.width = PIPE_WIDTH
    console.print(outcome_table(outcomes, width if sys.stdout.isatty() else None))
    console.width = width
    console.print()
