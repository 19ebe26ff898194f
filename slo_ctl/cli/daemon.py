"""`slo-ctl daemon`: enforce the SLOs of the VMs of this host."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

import typer

from slo_ctl.base.errors import FailedError, UserError
from slo_ctl.base.text import and_list, counted
from slo_ctl.cli.options import CONFIG, ROOT, check_config, time_s_of
from slo_ctl.daemon.files import DaemonPlaces, only_daemon
from slo_ctl.model.setting import OutcomeState


def command(
    root: ROOT = None,
    config: CONFIG = None,
    epoch: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Control interval, such as 1s. [default: as configured]"),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Measure for an epoch, act once, then stop cleanly.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what one epoch would change; change nothing.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Do not restore settings when stopping.")] = False,
) -> None:
    """Run the daemon: observe, decide and act every epoch, until SIGTERM or Ctrl-C.

    SIGHUP reloads the configuration. A clean stop restores every setting that was changed.

    Examples:
    systemctl start slo-ctld                        # as a service
    slo-ctl daemon --root ./scratch                 # in a terminal, with its own directory
    slo-ctl daemon --config ./new-config --dry-run  # what a configuration would change
    """
    from slo_ctl.cli.plan import plan_of, print_plan, run_two_epochs
    from slo_ctl.config.load import load
    from slo_ctl.daemon.log import events_logged
    from slo_ctl.daemon.loop import Daemon
    from slo_ctl.daemon.service import StoppedAtOnce, serve

    check_config(config)
    places = DaemonPlaces(root, config)
    settings = load(places.config)
    epoch_s = settings.daemon.epoch_s if epoch is None else _epoch_s(epoch)
    settings = replace(settings, daemon=replace(settings.daemon, epoch_s=epoch_s))
    if dry_run:
        print_plan(plan_of(Daemon(settings, places, dry_run=True)), include_unchanged=False)
        return
    with events_logged(), only_daemon(places.lock) as lock:
        daemon = Daemon(settings, places)
        if once:
            outcomes = run_two_epochs(daemon)
            problems = daemon.device_problems
            outcomes += daemon.stop(undo=not (keep or settings.daemon.keep_on_stop))
            failed = sum(outcome.state is OutcomeState.UNAPPLIED for outcome in outcomes)
            if failed or problems:
                parts = [counted(len(problems), "device problem")] if problems else []
                parts += [f"{counted(failed, 'setting')} not applied or not restored"] if failed else []
                raise FailedError(f"{and_list(parts, in_order=True)}, see above", "see `slo-ctl plan`")
            return
        try:
            not_restored = serve(
                daemon, lock, epoch_s=None if epoch is None else epoch_s, keep=keep, say=_print_line
            )
        except StoppedAtOnce:
            raise FailedError("stopped immediately: settings stay applied until the next start") from None
        if not_restored:
            raise FailedError(
                f"{counted(not_restored, 'setting')} not restored, see above", "slo-ctl apply --undo"
            )


def _epoch_s(text: str) -> float:
    """Value of --epoch. Raises UserError."""
    example = "1s or 500ms: from 100ms to 1h"
    seconds = time_s_of("--epoch", text, example)
    if not 0.1 <= seconds <= 3600.0:
        raise UserError(f"--epoch: {text} is out of range", f"such as {example}")
    return seconds


def _print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
