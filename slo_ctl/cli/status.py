"""`slo-ctl status`: how it goes for every VM."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slo_ctl.cli.api_access import RootOption, ask, client, how_to_start
from slo_ctl.cli.completion_names import complete_verdict, complete_vm
from slo_ctl.cli.exit_codes import EXIT_CHECK, EXIT_FAILURE, EXIT_INTERRUPTED
from slo_ctl.cli.help_text import Command
from slo_ctl.cli.say import remark
from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console, RenderableType

    from slo_ctl.model import HostStatus, Verdict, VmStatus

DEFAULT_INTERVAL_S = 2.0


class WatchCommand(Command):
    """A command that takes `--watch=SECONDS` for `--watch --interval SECONDS`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Spell it out: no option of typer takes a value or none."""
        words: list[str] = []
        for position, word in enumerate(args):
            if word == "--":
                words += args[position:]
                break
            option, equals, seconds = word.partition("=")
            spelt = option == "--watch" and equals
            words += ["--watch", f"--interval={seconds}"] if spelt else [word]
        return super().parse_args(ctx, words)


COMMAND_CLASS = WatchCommand


def command(
    vms: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VM]...",
            help="Only these.",
            autocompletion=complete_vm,
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", "-w", help="Keep showing until Ctrl-C; `--watch=5` is `--watch --interval 5`."
        ),
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option(min=0.1, max=3600, metavar="SECONDS", help="With --watch: how often. [default: 2]"),
    ] = None,
    verdict: Annotated[
        str | None,
        typer.Option(
            metavar="WORD[,WORD...]",
            help="Only VMs with these verdicts, such as insufficient,unapplied.",
            autocompletion=complete_verdict,
        ),
    ] = None,
    json_: Annotated[
        bool, typer.Option("--json", help="One JSON object instead of the table (with --watch, one a line).")
    ] = False,
    root: RootOption = None,
) -> None:
    """Show how it goes: target, IOPS, latencies, OPS and verdict of every VM. Changes nothing.

    Exit status 0: all shown are well; 1: an error; 2: a mistake in what was asked; 3: some VM is
    insufficient, no-mechanism, unapplied or unknown-vm; 4: the daemon is not reachable.
    """
    from slo_ctl.show.filter import parse_verdicts

    if interval is not None and not watch:
        raise UserError("--interval has no meaning without --watch", "add --watch")
    words, verdicts = vms or [], parse_verdicts(verdict)
    if watch:
        _watch(root, words, verdicts, interval or DEFAULT_INTERVAL_S, json_)
        return
    body = ask(root, "/v1/status")
    status, shown = _read(body, words, verdicts)
    if json_:
        print_json(body, shown)
    else:
        _print(status, shown)
    if _degraded(shown):
        raise typer.Exit(EXIT_CHECK)


def print_json(body: dict[str, Any], shown: tuple[VmStatus, ...], indent: int | None = 2) -> None:
    """The daemon's own object, with these VMs only: what a newer daemon adds stays in."""
    wanted = {(vm.vm, vm.device) for vm in shown}
    vms = [vm for vm in body["vms"] if (vm["vm"], vm["device"]) in wanted]
    sys.stdout.write(json.dumps({**body, "vms": vms}, indent=indent) + "\n")
    sys.stdout.flush()


def _read(
    body: dict[str, Any], words: list[str], verdicts: frozenset[Verdict]
) -> tuple[HostStatus, tuple[VmStatus, ...]]:
    from slo_ctl.show.filter import selected
    from slo_ctl.show.status_json import StatusFormatError, from_json

    try:
        status = from_json(body)
    except StatusFormatError as error:
        remark(f"slo-ctl: the daemon's status is not understood: {error}")
        remark("hint: restart the daemon: it runs another version of slo-ctl")
        raise typer.Exit(EXIT_FAILURE) from None
    return status, selected(status, words, verdicts)


def _degraded(shown: tuple[VmStatus, ...]) -> bool:
    from slo_ctl.model import DEGRADED

    return any(vm.verdict in DEGRADED for vm in shown)


def _print(status: HostStatus, shown: tuple[VmStatus, ...]) -> None:
    from slo_ctl.show.console import console_for

    console = console_for(sys.stdout)
    _put(console, status, shown)
    for note in status.notes:
        remark(f"note: {note}")


def _put(console: Console, status: HostStatus, shown: tuple[VmStatus, ...]) -> None:
    from rich.table import Table

    from slo_ctl.show.console import PIPE_WIDTH

    for part in _parts(console, status, shown):
        if isinstance(part, Table) and not sys.stdout.isatty():
            console.width = PIPE_WIDTH
        console.print(part, soft_wrap=not isinstance(part, Table))


def _parts(
    console: Console, status: HostStatus, shown: tuple[VmStatus, ...], now: float | None = None
) -> list[RenderableType]:
    from rich.text import Text

    from slo_ctl.show.status_table import header_lines, problem_lines, status_table

    parts: list[RenderableType] = [*header_lines(status, now), ""]
    if shown:
        parts.append(status_table(status, shown, console.width if sys.stdout.isatty() else None))
    else:
        parts.append(Text("no VM of those asked for" if status.vms else "no VMs found"))
    problems = list(problem_lines(shown))
    return [*parts, *([""] if problems else []), *problems]


def _watch(
    root: Path | None, words: list[str], verdicts: frozenset[Verdict], interval_s: float, json_: bool
) -> None:
    try:
        if json_ or not sys.stdout.isatty():
            _watch_lines(root, words, verdicts, interval_s, json_)
        else:
            _watch_live(root, words, verdicts, interval_s)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except UserError as error:
        for word in words:
            if error.message == f"there is no VM {word}" and word.replace(".", "", 1).isdecimal():
                raise UserError(error.message, f"to ask every {word} s, write --watch={word}") from None
        raise


def _watch_lines(
    root: Path | None, words: list[str], verdicts: frozenset[Verdict], interval_s: float, json_: bool
) -> None:
    """One after the other, for a pipe or a file."""
    from slo_ctl.show.gone import Gone

    gone = Gone(lambda reason: how_to_start(root, reason))
    while True:
        body = gone.ask(lambda: client(root).get("/v1/status"))
        if body is None:
            if gone.is_new:
                remark(f"slo-ctl: {gone.line()}")
        else:
            status, shown = _read(body, words, verdicts)
            if json_:
                print_json(body, shown, indent=None)
            else:
                _print(status, shown)
                sys.stdout.write("\n")
                sys.stdout.flush()
        time.sleep(interval_s)


def _watch_live(root: Path | None, words: list[str], verdicts: frozenset[Verdict], interval_s: float) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from slo_ctl.show.console import console_for
    from slo_ctl.show.gone import Gone
    from slo_ctl.show.text import printable

    console = console_for(sys.stdout)
    gone = Gone(lambda reason: how_to_start(root, reason))
    parts: list[RenderableType] = []
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            body = gone.ask(lambda: client(root).get("/v1/status"))
            if body is None:
                # What was last known stays, under the line that says how old it is.
                live.update(Group(Text(gone.line(), style="bold red"), *parts), refresh=True)
            else:
                status, shown = _read(body, words, verdicts)
                parts = _parts(console, status, shown)
                parts += [Text(f"note: {printable(note)}") for note in status.notes]
                live.update(Group(*parts), refresh=True)
            time.sleep(interval_s)
