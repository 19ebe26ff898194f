"""`slo-ctl history VM`: what was, from the daemon or, without one, from its file."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote, urlencode

import typer

from slo_ctl.cli.api_access import RootOption, client, tell_unreachable
from slo_ctl.cli.completion_names import complete_vm
from slo_ctl.cli.exit_codes import EXIT_FAILURE, EXIT_UNREACHABLE
from slo_ctl.cli.say import remark, tell_json
from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from slo_ctl.record.history_reader import VmHistory

DEFAULT_SINCE = "1h"
DEFAULT_LIMIT = 60
_TIME_FORMATS = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d")


def command(
    vm: Annotated[
        str,
        typer.Argument(metavar="VM", help="The VM, as in `slo-ctl vm list`.", autocompletion=complete_vm),
    ],
    since: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="How long ago, such as 90s, 1h or 2d, or `2026-01-31 14:00` local."
        ),
    ] = DEFAULT_SINCE,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="The same. [default: now]")] = None,
    limit: Annotated[
        int,
        typer.Option(min=1, max=5000, help="Rows at most, about: each is the mean of a longer time then."),
    ] = DEFAULT_LIMIT,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object instead of the table.")] = False,
    root: RootOption = None,
) -> None:
    """Show the past of a VM: means, verdict changes, and what was decided and done for it.

    Exit status 0: done; 1: an error; 2: a mistake, such as an unknown VM; 4: no daemon and no history.
    """
    now = time.time()
    begin, end = _moment("--since", since, now), _moment("--until", until, now) if until else now
    if begin >= end:
        raise UserError(f"--since {since} is not before --until {until or 'now'}", "give an earlier one")
    history = _read(root, vm, begin, end, limit)
    if json_:
        from slo_ctl.show.status_json import FORMAT_VERSION, plain

        tell_json({"format_version": FORMAT_VERSION, **plain(history)})
        return
    _print(history)


def _print(history: VmHistory) -> None:
    from rich.text import Text

    from slo_ctl.show.console import PIPE_WIDTH, console_for
    from slo_ctl.show.history_table import history_lines, print_history

    console = console_for(sys.stdout)
    for line in history_lines(history):
        console.print(line, soft_wrap=True)
    console.print()
    if not sys.stdout.isatty():
        console.width = PIPE_WIDTH
    print_history(console, history, console.width if sys.stdout.isatty() else None)
    if not history.points:
        console.print(Text("nothing was measured in that time"))


def _read(root: Path | None, vm: str, since: float, until: float, limit: int) -> VmHistory:
    """From the daemon; from its file when there is no daemon, if this user may read that."""
    from slo_ctl.api.client import ApiUnreachable
    from slo_ctl.record.history_reader import VmHistory
    from slo_ctl.show.status_json import StatusFormatError, from_plain

    query = urlencode({"since": f"{since:.3f}", "until": f"{until:.3f}", "limit": limit})
    try:
        body = client(root).get(f"/v1/history/{quote(vm, safe='', errors='surrogateescape')}?{query}")
        return from_plain(VmHistory, body)
    except ApiUnreachable as error:
        return _from_file(root, vm, since, until, limit, str(error))
    except StatusFormatError as error:
        remark(f"slo-ctl: the daemon's history is not understood: {error}")
        raise typer.Exit(EXIT_FAILURE) from None


def _from_file(
    root: Path | None, vm: str, since: float, until: float, limit: int, unreachable: str
) -> VmHistory:
    from slo_ctl.daemon.places import DaemonPlaces
    from slo_ctl.record.history_errors import HistoryError
    from slo_ctl.record.history_reader import read_vm

    path = DaemonPlaces(root).history
    try:
        history = read_vm(path, vm, since, until, limit)
    except HistoryError as error:
        tell_unreachable(unreachable, root)
        remark(f"slo-ctl: nor can its history be read: {error}")
        raise typer.Exit(EXIT_UNREACHABLE) from None
    remark(f"slo-ctl: the daemon is not reachable; read from {path}")
    return history


def _moment(option: str, text: str, now: float) -> float:
    """Seconds since 1970, of a time ago or of a date."""
    for form in _TIME_FORMATS:
        try:
            return time.mktime(time.strptime(text, form))
        except (ValueError, OverflowError):
            continue
    from slo_ctl.quantity import parse_time_s

    try:
        return now - parse_time_s(text)
    except ValueError:
        raise UserError(
            f"{option}: {text} is no time", "write 90s, 30min, 1h, 2d ago, or a date as 2026-01-31 14:00"
        ) from None
