"""`slo-ctl history VM`: the past of a VM, from the daemon or, without one, from its database."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote, urlencode

import typer

from slo_ctl.base.errors import UnreachableError, UserError
from slo_ctl.base.quantity import parse_time_s
from slo_ctl.cli.api_access import client, report_unreachable
from slo_ctl.cli.completion import complete_vm
from slo_ctl.cli.exit_codes import EXIT_FAILURE, EXIT_UNREACHABLE
from slo_ctl.cli.options import JSON, ROOT
from slo_ctl.cli.output import print_json, warn

if TYPE_CHECKING:
    from slo_ctl.record.history_reader import VmHistory

DEFAULT_SINCE = "1h"
DEFAULT_LIMIT = 60
SINCE = Annotated[
    str,
    typer.Option(
        metavar="TIME", help="Start: 90s, 1h or 2d ago, or a local time such as `2026-01-31 14:00`."
    ),
]
UNTIL = Annotated[str | None, typer.Option(metavar="TIME", help="End, in the same form. [default: now]")]
_TIME_FORMATS = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d")


def command(
    vm: Annotated[
        str,
        typer.Argument(metavar="VM", help="The VM, see `slo-ctl vm list`.", autocompletion=complete_vm),
    ],
    since: SINCE = DEFAULT_SINCE,
    until: UNTIL = None,
    limit: Annotated[
        int,
        typer.Option(
            min=1, max=5000, help="Approximate number of rows; fewer rows are means of longer intervals."
        ),
    ] = DEFAULT_LIMIT,
    json_: JSON = False,
    root: ROOT = None,
) -> None:
    """Show the history of a VM: means, changes of its verdict, decisions and changed settings.

    Exit status 0: shown; 1: an error; 2: a usage error, such as an unknown VM; 4: neither the daemon nor its
    database can be read.

    Examples:
    slo-ctl history web --since 15min
    slo-ctl history web --since '2026-01-31 14:00' --until '2026-01-31 15:00' --json
    """
    begin, end = interval(since, until)
    history = _read(root, vm, begin, end, limit)
    if json_:
        from slo_ctl.model.status_json import FORMAT_VERSION, plain

        print_json({"format_version": FORMAT_VERSION, **plain(history)})
        return
    _print(history)


def _print(history: VmHistory) -> None:
    from rich.text import Text

    from slo_ctl.show.history import history_lines, print_history
    from slo_ctl.show.terminal import PIPE_WIDTH, console_for

    console = console_for(sys.stdout)
    for line in history_lines(history):
        console.print(line, soft_wrap=True)
    console.print()
    if not sys.stdout.isatty():
        console.width = PIPE_WIDTH
    print_history(console, history, console.width if sys.stdout.isatty() else None)
    if not history.points:
        console.print(Text("no measurements in this interval"))


def _read(root: Path | None, vm: str, since: float, until: float, limit: int) -> VmHistory:
    """From the daemon, or from its database when the daemon is not reachable."""
    from slo_ctl.record.history_reader import read_vm

    try:
        return from_daemon(root, vm, since, until, limit)
    except UnreachableError as error:
        with database(root, str(error)) as path:
            return read_vm(path, vm, since, until, limit)


def from_daemon(root: Path | None, vm: str, since: float, until: float, limit: int) -> VmHistory:
    """The history of a VM from the daemon. Raises UnreachableError."""
    from slo_ctl.model.status_json import StatusFormatError, from_plain
    from slo_ctl.record.history_reader import VmHistory

    query = urlencode({"since": f"{since:.3f}", "until": f"{until:.3f}", "limit": limit})
    body = client(root).get(f"/v1/history/{quote(vm, safe='', errors='surrogateescape')}?{query}")
    try:
        return from_plain(VmHistory, body)
    except StatusFormatError as error:
        warn(f"slo-ctl: invalid history from the daemon: {error}")
        raise typer.Exit(EXIT_FAILURE) from None


@contextmanager
def database(root: Path | None, unreachable: str) -> Iterator[Path]:
    """The daemon's database, to be read because the daemon is not reachable; stderr says so.

    When it cannot be read either, reports both and raises typer.Exit(4).
    """
    from slo_ctl.daemon.files import DaemonPlaces
    from slo_ctl.record.history_schema import HistoryError

    path = DaemonPlaces(root).history
    try:
        yield path
    except HistoryError as error:
        report_unreachable(f"{unreachable}; nor can its history be read: {error}", root)
        raise typer.Exit(EXIT_UNREACHABLE) from None
    warn(f"slo-ctl: the daemon is not reachable; reading {path}")


def interval(since: str, until: str | None) -> tuple[float, float]:
    """The values of --since and --until in seconds since 1970. Raises UserError."""
    now = time.time()
    begin, end = _moment("--since", since, now), _moment("--until", until, now) if until else now
    if begin >= end:
        raise UserError(f"--since {since} is not before --until {until or 'now'}", "give an earlier --since")
    return begin, end


def _moment(option: str, text: str, now: float) -> float:
    """Seconds since the epoch, from a time ago or a date."""
    for form in _TIME_FORMATS:
        try:
            return time.mktime(time.strptime(text, form))
        except (ValueError, OverflowError):
            continue

    try:
        return now - parse_time_s(text)
    except ValueError:
        raise UserError(
            f"{option}: {text} is not a valid time", "such as 90s, 30min, 1h, 2d (ago) or 2026-01-31 14:00"
        ) from None
