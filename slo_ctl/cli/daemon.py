"""`slo-ctl daemon`: keep the promises made to the VMs of this host."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from slo_ctl.cli.exit_codes import EXIT_FAILURE

_Root = Annotated[
    Path | None,
    typer.Option("--root", metavar="DIR", help="Configuration, state and sockets below DIR, for trying out."),
]
_Config = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="DIR", help="Folder with slo-ctl.toml and conf.d/. [default: /etc/slo-ctl]"
    ),
]
_AT_ONCE = 1
"""Exit status after a second signal."""


def command(
    root: _Root = None,
    config: _Config = None,
    epoch: Annotated[
        str | None, typer.Option(metavar="TIME", help="How often to act, such as 1s. [default: configured]")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="One epoch, then a clean stop.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what one epoch would change; touch nothing.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything as it was set when stopping.")
    ] = False,
) -> None:
    """Run the daemon: observe, decide and act every epoch, until SIGTERM or Ctrl-C.

    SIGHUP reads the configuration again. A clean stop gives back everything that was changed.
    """
    from slo_ctl.cli.plan import look_twice, plan_of, print_plan
    from slo_ctl.config import load
    from slo_ctl.daemon.lock import only_daemon
    from slo_ctl.daemon.loop import Daemon
    from slo_ctl.daemon.places import DaemonPlaces
    from slo_ctl.daemon.service import StoppedAtOnce, log_to_stderr, serve

    if config is not None and not config.is_dir():
        _refuse_config(config)
    places = DaemonPlaces(root, config)
    settings = load(places.config)
    epoch_s = settings.daemon.epoch_s if epoch is None else _epoch_s(epoch)
    settings = replace(settings, daemon=replace(settings.daemon, epoch_s=epoch_s))
    if dry_run:
        print_plan(plan_of(Daemon(settings, places, dry_run=True)), every=False)
        return
    log_to_stderr()
    with only_daemon(places.lock):
        daemon = Daemon(settings, places)
        if once:
            look_twice(daemon)
            daemon.stop(undo=not (keep or settings.daemon.keep_on_stop))
            return
        try:
            not_restored = serve(daemon, epoch_s=None if epoch is None else epoch_s, keep=keep, say=_say)
        except StoppedAtOnce:
            sys.stderr.write("slo-ctl: stopped at once: what was changed stays so until the next start\n")
            raise typer.Exit(_AT_ONCE) from None
        if not_restored:
            sys.stderr.write(
                f"slo-ctl: {not_restored} settings are not restored yet, see above; "
                "`slo-ctl apply --undo` restores the rest\n"
            )
            raise typer.Exit(EXIT_FAILURE)


def _refuse_config(config: Path) -> NoReturn:
    from slo_ctl.errors import UserError

    if config.exists():
        raise UserError(
            f"--config: {config} is not a directory", f"name its folder: --config {config.parent}"
        )
    raise UserError(f"--config: there is no directory {config}", "name one that has slo-ctl.toml or conf.d/")


def _epoch_s(text: str) -> float:
    from slo_ctl.errors import UserError
    from slo_ctl.quantity import QuantityError, parse_time_s

    hint = "such as 1s or 500ms, at least 50ms"
    try:
        seconds = parse_time_s(text)
    except QuantityError as error:
        raise UserError(f"--epoch {text}: {error}", hint) from None
    if not 0.05 <= seconds <= 3600.0:
        raise UserError(f"--epoch {text}: out of range", hint)
    return seconds


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
