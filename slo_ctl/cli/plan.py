"""`slo-ctl plan` and `slo-ctl apply`: what the next epoch would change and why; apply it once, or undo it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.base.errors import DeniedError, UnreachableError, UserError
from slo_ctl.base.text import and_list, counted, root_option
from slo_ctl.cli.api_access import get
from slo_ctl.cli.exit_status import EXIT_CHECK, EXIT_FAILURE
from slo_ctl.cli.options import JSON, ROOT, check_root
from slo_ctl.cli.output import print_json, stdout_console, warn, warn_notes
from slo_ctl.daemon.files import DaemonPlaces, only_daemon
from slo_ctl.model.setting import Outcome, OutcomeState
from slo_ctl.model.status import Plan

if TYPE_CHECKING:
    from rich.console import Console

    from slo_ctl.daemon.loop import Daemon


def plan(
    json_: JSON = False,
    include_unchanged: Annotated[
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
    from slo_ctl.model.status_json import plain
    from slo_ctl.show.status import changes

    check_root(root)
    next_plan = _read_plan(root)
    if json_:
        print_json(plain(next_plan))
    else:
        print_plan(next_plan, include_unchanged)
    if changes(next_plan.outcomes) or any(device.decided for device in next_plan.devices):
        raise typer.Exit(EXIT_CHECK)


def _read_plan(root: Path | None) -> Plan:
    """The plan of the daemon, or without a daemon that of its first epochs."""
    from slo_ctl.model.status_json import from_plain

    try:
        return from_plain(Plan, get(root, "/v1/plan"))
    except DeniedError:
        raise
    except UnreachableError:
        warn("slo-ctl: the daemon is not reachable; planning without it")
        return plan_of(_daemon(DaemonPlaces.in_use(root), dry_run=True))


def _daemon(places: DaemonPlaces, *, dry_run: bool = False, undo: bool = False) -> Daemon:
    """A daemon without an API. `undo`: to restore settings, for which the configuration may have errors."""
    from slo_ctl.config.load import load, load_valid
    from slo_ctl.daemon.loop import Daemon

    if not undo:
        return Daemon(load(places.config), places, dry_run=dry_run)
    config, errors = load_valid(places.config)
    for error in errors:
        warn(f"slo-ctl: not used: {error}")
    return Daemon(config, places)


def plan_of(daemon: Daemon) -> Plan:
    """The plan of a daemon in a dry run, which is stopped afterwards."""
    try:
        run_two_epochs(daemon)
        return daemon.plan()
    finally:
        daemon.stop(undo=False)


def run_two_epochs(daemon: Daemon) -> list[Outcome]:
    """Run two epochs, as decisions need one complete measurement; returns the outcomes of all settings."""
    daemon.epoch()
    first = {outcome.setting.knob: outcome for outcome in daemon.outcomes}
    time.sleep(daemon.config.daemon.epoch_s)
    daemon.epoch()
    # Settings that the first epoch changed are unchanged in the second one.
    latest = {**first, **{outcome.setting.knob: outcome for outcome in daemon.outcomes}}
    return [
        first.get(knob, outcome) if outcome.state is OutcomeState.UNCHANGED else outcome
        for knob, outcome in latest.items()
    ]


def print_plan(plan: Plan, include_unchanged: bool) -> None:
    """The settings that would change, the OPS each policy would move, and notes."""
    from slo_ctl.show.status import changes, move_lines, outcome_counts
    from slo_ctl.show.terminal import print_line

    console = stdout_console()
    _print_outcomes(console, list(plan.outcomes) if include_unchanged else changes(plan.outcomes))
    for line in move_lines(plan.devices):
        print_line(console, line, indent=4)
    print_line(console, outcome_counts(plan.outcomes))
    warn_notes(plan.notes)


def _print_outcomes(console: Console, outcomes: list[Outcome]) -> None:
    from slo_ctl.show.status import outcome_table
    from slo_ctl.show.terminal import width_for_tables

    if outcomes:
        console.print(outcome_table(outcomes, width_for_tables(console)))
        console.print()


def apply(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; same as slo-ctl plan.")] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Restore every setting to its value before slo-ctl.")
    ] = False,
    json_: JSON = False,
    root: ROOT = None,
) -> None:
    """Observe, decide and apply all settings once, without a daemon. They stay until --undo.

    Refused while a daemon runs, which applies them every epoch. OPS that a device moves back by itself after
    --undo is shown as restoring. Exit status 0: all settings were applied; 1: some were not, a device could
    not be used, or an error; 2: a usage error, or a daemon runs; 4: settings of a device that is not served
    could not be restored. With --dry-run as slo-ctl plan.

    Examples:
    slo-ctl apply --dry-run     # what would change, and why
    slo-ctl apply
    slo-ctl apply --undo        # restore everything
    """
    if dry_run and undo:
        raise UserError("--dry-run and --undo exclude each other", "give one of them")
    if dry_run:
        plan(json_=json_, include_unchanged=False, root=root)
        return

    check_root(root)
    places = DaemonPlaces.in_use(root)
    if places.state != DaemonPlaces(root).state:
        raise UserError(
            f"{places.state} is root's", "run as root, or use a directory of your own with --root"
        )
    if undo and not (places.journal.exists() or places.lock.exists()):
        # Nothing was ever changed, and no directory is created to find that out.
        print_results([], json_, undo=True)
        return
    with only_daemon(places.lock):
        daemon = _daemon(places, undo=undo)
        problems: list[str] = []
        notes: list[str] = []
        waiting: list[Outcome] = []
        if undo:
            outcomes, waiting = daemon.undo()
        else:
            try:
                outcomes = run_two_epochs(daemon)
                problems, notes = daemon.device_problems, list(daemon.notes)
            except KeyboardInterrupt:
                restore = f"slo-ctl apply --undo{root_option(root)}"
                warn(f"note: settings applied so far stay; restore them: {restore}")
                raise
            finally:
                daemon.stop(undo=False)
    if json_:
        notes = [*problems, *notes]  # otherwise problems have been logged
    print_results([*outcomes, *waiting], json_, notes, undo=undo)
    if problems or any(outcome.state is OutcomeState.UNAPPLIED for outcome in outcomes):
        raise typer.Exit(EXIT_FAILURE)
    if waiting:
        devices = {outcome.setting.knob.emulated_device for outcome in waiting}
        raise UnreachableError(
            f"{counted(len(waiting), 'setting')} not restored, as not served: device {and_list(devices)}",
            f"serve it, such as with `slo-ctl device serve {min(devices)}`, then repeat this",
        )


def print_results(
    outcomes: list[Outcome], json_: bool, notes: Sequence[str] = (), *, undo: bool = False
) -> None:
    """The outcome of each setting, and notes, as a table or one JSON object."""
    if json_:
        from slo_ctl.model.status_json import plain

        print_json({"outcomes": plain(tuple(outcomes)), "notes": list(notes)})
        return
    warn_notes(notes)
    from slo_ctl.show.status import changes, outcome_counts

    console = stdout_console()
    _print_outcomes(console, changes(outcomes))
    console.print("nothing to restore" if undo and not outcomes else outcome_counts(outcomes), soft_wrap=True)
