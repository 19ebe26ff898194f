"""`slo-ctl apply`: do once what the daemon would do, and leave it so."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.cli.api_access import RootOption
from slo_ctl.cli.exit_codes import EXIT_FAILURE
from slo_ctl.cli.say import tell_json
from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from slo_ctl.daemon.loop import Daemon
    from slo_ctl.model import Outcome


def command(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Touch nothing: the same as slo-ctl plan.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Give everything back the value it had before slo-ctl.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object instead of the table.")] = False,
    root: RootOption = None,
) -> None:
    """Observe, decide and set everything once, without a daemon; it stays so, and can be undone.

    Not while a daemon runs: that does so every epoch. Exit status 0: all settings took; 1: some did not, or
    an error; 2: a mistake, such as a daemon that runs. With --dry-run as slo-ctl plan.
    """
    if dry_run and undo:
        raise UserError("--dry-run has no meaning with --undo", "leave one of them out")
    if dry_run:
        from slo_ctl.cli.plan import command as plan

        plan(json_=json_, every=False, root=root)
        return
    outcomes = _undo(root) if undo else _apply(root)
    tell_outcomes(outcomes, json_)
    from slo_ctl.model import OutcomeState

    if any(outcome.state is OutcomeState.UNAPPLIED for outcome in outcomes):
        raise typer.Exit(EXIT_FAILURE)


def _apply(root: Path | None) -> list[Outcome]:
    from slo_ctl.cli.plan import look_twice

    with _alone(root) as daemon:
        try:
            return look_twice(daemon)
        finally:
            daemon.stop(undo=False)


def _undo(root: Path | None) -> list[Outcome]:
    with _alone(root) as daemon:
        return daemon.undo()


@contextmanager
def _alone(root: Path | None) -> Iterator[Daemon]:
    """A daemon that serves nobody, with the lock that keeps others away."""
    from slo_ctl.config import load
    from slo_ctl.daemon.lock import only_daemon
    from slo_ctl.daemon.loop import Daemon
    from slo_ctl.daemon.places import DaemonPlaces

    places = DaemonPlaces(root)
    with only_daemon(places.lock):
        yield Daemon(load(places.config), places)


def tell_outcomes(outcomes: list[Outcome], json_: bool) -> None:
    """What became of each setting, as a table or one JSON object."""
    if json_:
        from slo_ctl.show.status_json import FORMAT_VERSION, plain

        told = {"format_version": FORMAT_VERSION, "outcomes": plain(tuple(outcomes))}
        tell_json(told)
        return
    from slo_ctl.cli.plan import print_outcomes
    from slo_ctl.show.console import console_for
    from slo_ctl.show.plan_table import changes, summary

    console = console_for(sys.stdout)
    print_outcomes(console, changes(outcomes))
    console.print(summary(outcomes), soft_wrap=True)
