"""`slo-ctl plan`: what the next epoch would change, and why."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.base.errors import UnreachableError
from slo_ctl.cli.api_access import client
from slo_ctl.cli.exit_codes import EXIT_CHECK, EXIT_FAILURE
from slo_ctl.cli.options import JSON, ROOT
from slo_ctl.cli.output import print_json, warn

if TYPE_CHECKING:
    from rich.console import Console

    from slo_ctl.daemon.loop import Daemon
    from slo_ctl.model import Outcome
    from slo_ctl.model.plan import Plan


def command(
    json_: JSON = False,
    every: Annotated[
        bool, typer.Option("--all", "-a", help="Also show settings that stay as they are.")
    ] = False,
    root: ROOT = None,
) -> None:
    """Show what the next epoch would change, and why. Changes nothing.

    Exit status 0: nothing would change; 1: an error; 2: a usage error; 3: changes are pending.

    Examples:
    slo-ctl plan
    slo-ctl plan --all --json
    """
    from slo_ctl.show.plan import pending

    plan = read_plan(root)
    if json_:
        print_plan_json(plan)
    else:
        print_plan(plan, every)
    if pending(plan):
        raise typer.Exit(EXIT_CHECK)


def read_plan(root: Path | None) -> Plan:
    """The plan of the daemon, or without a daemon that of its first epochs."""
    from slo_ctl.model.plan import Plan
    from slo_ctl.model.status_json import StatusFormatError, from_plain

    try:
        return from_plain(Plan, client(root).get("/v1/plan"))
    except UnreachableError:
        warn("slo-ctl: the daemon is not reachable; planning without it")
        return plan_without_daemon(root)
    except StatusFormatError as error:
        warn(f"slo-ctl: invalid plan from the daemon: {error}")
        raise typer.Exit(EXIT_FAILURE) from None


def plan_without_daemon(root: Path | None) -> Plan:
    """Changes that the first epochs of a daemon would make: observes and decides only."""
    from slo_ctl.config import load
    from slo_ctl.daemon.files import DaemonPlaces
    from slo_ctl.daemon.loop import Daemon

    places = DaemonPlaces(root)
    return plan_of(Daemon(load(places.config), places, dry_run=True))


def plan_of(daemon: Daemon) -> Plan:
    """The plan of a daemon in a dry run, which is stopped afterwards."""
    try:
        two_epochs(daemon)
        return daemon.plan()
    finally:
        daemon.stop(undo=False)


def two_epochs(daemon: Daemon) -> list[Outcome]:
    """Run two epochs, since a decision needs one measured whole; the outcomes of all settings."""
    from slo_ctl.model import OutcomeState

    daemon.epoch()
    first = {outcome.setting.knob: outcome for outcome in daemon.outcomes}
    time.sleep(daemon.config.daemon.epoch_s)
    daemon.epoch()
    # The second epoch finds unchanged what the first has changed.
    latest = {**first, **{outcome.setting.knob: outcome for outcome in daemon.outcomes}}
    return [
        first.get(knob, outcome) if outcome.state is OutcomeState.UNCHANGED else outcome
        for knob, outcome in latest.items()
    ]


def print_plan_json(plan: Plan) -> None:
    """One JSON object."""
    from slo_ctl.model.status_json import FORMAT_VERSION, plain

    print_json({"format_version": FORMAT_VERSION, **plain(plan)})


def print_plan(plan: Plan, every: bool) -> None:
    """The settings that would change, the OPS each policy would move, and notes."""
    from slo_ctl.show.plan import changes, device_lines, summary
    from slo_ctl.show.terminal import console_for

    console = console_for(sys.stdout)
    print_outcomes(console, list(plan.outcomes) if every else changes(plan.outcomes))
    for line in device_lines(plan.devices):
        console.print(line, soft_wrap=True)
    console.print(summary(plan.outcomes), soft_wrap=True)
    for note in plan.notes:
        warn(f"note: {note}")


def print_outcomes(console: Console, outcomes: list[Outcome]) -> None:
    """A table of settings, if any."""
    from slo_ctl.show.plan import outcome_table
    from slo_ctl.show.terminal import PIPE_WIDTH

    if not outcomes:
        return
    width = console.width
    if not sys.stdout.isatty():
        console.width = PIPE_WIDTH
    console.print(outcome_table(outcomes, width if sys.stdout.isatty() else None))
    console.width = width
    console.print()
