"""`slo-ctl apply`: apply the settings of one control interval without a daemon, or undo them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.base.errors import UserError
from slo_ctl.cli.exit_codes import EXIT_FAILURE
from slo_ctl.cli.options import JSON, ROOT
from slo_ctl.cli.output import print_json

if TYPE_CHECKING:
    from slo_ctl.daemon.loop import Daemon
    from slo_ctl.model import Outcome


def command(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; same as slo-ctl plan.")] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Restore every setting to its value before slo-ctl.")
    ] = False,
    json_: JSON = False,
    root: ROOT = None,
) -> None:
    """Observe, decide and apply all settings once, without a daemon. They stay until --undo.

    Refused while a daemon runs, which applies them every epoch. Exit status 0: all settings were applied; 1:
    some were not, or an error; 2: a usage error, or a daemon runs. With --dry-run as slo-ctl plan.

    Examples:
    slo-ctl apply --dry-run     # what would change, and why
    slo-ctl apply
    slo-ctl apply --undo        # restore everything
    """
    if dry_run and undo:
        raise UserError("--dry-run and --undo exclude each other", "give one of them")
    if dry_run:
        from slo_ctl.cli.plan import command as plan

        plan(json_=json_, every=False, root=root)
        return
    outcomes = _undo(root) if undo else _apply(root)
    print_results(outcomes, json_)
    from slo_ctl.model import OutcomeState

    if any(outcome.state is OutcomeState.UNAPPLIED for outcome in outcomes):
        raise typer.Exit(EXIT_FAILURE)


def _apply(root: Path | None) -> list[Outcome]:
    from slo_ctl.cli.plan import two_epochs

    with _alone(root) as daemon:
        try:
            return two_epochs(daemon)
        finally:
            daemon.stop(undo=False)


def _undo(root: Path | None) -> list[Outcome]:
    with _alone(root) as daemon:
        return daemon.undo()


@contextmanager
def _alone(root: Path | None) -> Iterator[Daemon]:
    """A daemon without an API, holding the lock that prevents another one."""
    from slo_ctl.config import load
    from slo_ctl.daemon.files import DaemonPlaces, only_daemon
    from slo_ctl.daemon.loop import Daemon

    places = DaemonPlaces(root)
    with only_daemon(places.lock):
        yield Daemon(load(places.config), places)


def print_results(outcomes: list[Outcome], json_: bool) -> None:
    """The outcome of each setting, as a table or one JSON object."""
    if json_:
        from slo_ctl.model.status_json import FORMAT_VERSION, plain

        print_json({"format_version": FORMAT_VERSION, "outcomes": plain(tuple(outcomes))})
        return
    from slo_ctl.cli.plan import print_outcomes
    from slo_ctl.show.plan import changes, summary
    from slo_ctl.show.terminal import console_for

    console = console_for(sys.stdout)
    print_outcomes(console, changes(outcomes))
    console.print(summary(outcomes), soft_wrap=True)
