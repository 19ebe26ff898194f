"""`slo-ctl status` and `slo-ctl top`: SLO status per VM, once or live."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slo_ctl.base.errors import UserError
from slo_ctl.base.patterns import expand
from slo_ctl.base.quantity import QuantityError, parse_time_s
from slo_ctl.base.text import printable
from slo_ctl.cli.api_access import client, get, start_hint, vm_history, vm_not_found
from slo_ctl.cli.completion import complete_interval, complete_verdict
from slo_ctl.cli.exit_status import EXIT_CHECK, EXIT_FAILURE, EXIT_INTERRUPTED
from slo_ctl.cli.help import Command
from slo_ctl.cli.options import JSON, ONLY_VMS, ROOT
from slo_ctl.cli.output import notes_about, print_lines, stdout_console, warn, warn_notes
from slo_ctl.model.status import DEGRADED, HostStatus, Verdict, VmStatus

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from slo_ctl.show.status import DaemonOutage


_DEFAULT_INTERVAL = "2"
_INTERVALS_S = (0.1, 3600.0)
_TOP_TIMEOUT_S = 5.0


class WatchCommand(Command):
    """A command that takes `--watch` with and without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default where no value follows: options of typer cannot have an optional value."""
        end = args.index("--") if "--" in args else len(args)
        words: list[str] = []
        for word, following in zip(args[:end], [*args[1:end], "--"], strict=False):
            words.append(word)
            if word in ("--watch", "-w") and following.startswith("-"):
                words.append(_DEFAULT_INTERVAL)
        return super().parse_args(ctx, words + args[end:])


def status(
    vms: ONLY_VMS = None,
    watch: Annotated[
        str | None,
        typer.Option(
            "--watch",
            "-w",
            metavar="[SECONDS]",
            help="Refresh every SECONDS until Ctrl-C. [default: 2, if an option or nothing follows]",
            autocompletion=complete_interval,
        ),
    ] = None,
    verdict: Annotated[
        str | None,
        typer.Option(
            metavar="VERDICT,...",
            help="Only VMs with these verdicts, such as insufficient,unapplied.",
            autocompletion=complete_verdict,
        ),
    ] = None,
    json_: JSON = False,
    root: ROOT = None,
) -> None:
    """Show SLO status per VM: share, target, IOPS, latency, OPS and verdict.

    With --json and --watch, one JSON object per line. Exit status 0: every VM shown is within its SLO; 1: an
    error; 2: a usage error; 3: some VM is insufficient, no-mechanism, unapplied or unknown-vm; 4: the daemon
    is not reachable.

    Examples:
    slo-ctl status
    slo-ctl status 'web*' db --watch 5
    slo-ctl status --verdict insufficient,unapplied --json
    """
    selection = _Selection(vms or [], parse_verdicts(verdict))
    if watch is not None:
        _watch(root, selection, _interval_s(watch), json_)
        return
    selected = selection.of(get(root, "/v1/status"))
    if json_:
        _print_json(selected)
    else:
        _print(selected)
    if _is_degraded(selected):
        raise typer.Exit(EXIT_CHECK)


def parse_verdicts(text: str | None) -> frozenset[Verdict]:
    """`insufficient,idle` as verdicts; empty for None. Raises UserError for an unknown verdict."""
    if text is None:
        return frozenset()

    names = [name.strip().lower() for name in text.split(",")]
    for name in names:
        if name not in set(Verdict):
            problem = f"{name} is not known" if name else f"{text or 'an empty value'} has an empty part"
            raise UserError(f"--verdict: {problem}", f"known: {', '.join(Verdict)}")
    return frozenset(map(Verdict, names))


def named_vms(status: HostStatus, words: Sequence[str]) -> list[str]:
    """The VMs that these names and patterns stand for. Raises UserError for one that stands for none."""
    existing = sorted({vm.vm for vm in status.vms})
    names = expand(words, lambda: existing, vm_not_found)
    known = set(existing)
    for name in names:
        if name not in known:
            raise vm_not_found(name, existing)
    return names


def selected_vms(status: HostStatus, names: Set[str], verdicts: Set[Verdict]) -> tuple[VmStatus, ...]:
    """The VMs of these names (empty: all) and verdicts, in the order of the daemon."""
    return tuple(
        vm for vm in status.vms if (not names or vm.vm in names) and (not verdicts or vm.verdict in verdicts)
    )


def _interval_s(text: str) -> float:
    """Value of --watch. Raises UserError."""
    minimum_s, maximum_s = _INTERVALS_S
    try:
        interval_s = parse_time_s(text if text[-1:].isalpha() else f"{text}s")
    except QuantityError:
        vms = f"; VMs go before it: slo-ctl status {shlex.quote(text)} --watch 5" if text else ""
        message = f"--watch: {text or 'an empty value'} is not a number of seconds"
        raise UserError(message, f"write --watch 5{vms}") from None
    if not minimum_s <= interval_s <= maximum_s:
        raise UserError(
            f"--watch: {text} is not between {minimum_s:g} and {maximum_s:g} s", "such as --watch 5"
        )
    return interval_s


@dataclass(frozen=True, slots=True)
class _Selected:
    """A status of the daemon, the VMs of it that are shown, and the notes about them."""

    body: dict[str, Any]
    status: HostStatus
    vms: tuple[VmStatus, ...]
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Selection:
    """VMs to show: those of these names, patterns and verdicts; empty: all."""

    words: list[str]
    verdicts: frozenset[Verdict]

    def of(self, body: dict[str, Any]) -> _Selected:
        """The selected VMs of a reply of the daemon. Raises UserError, such as for an unknown name."""
        from slo_ctl.model.status_json import from_json

        status = from_json(body)
        names = set(named_vms(status, self.words))
        vms = selected_vms(status, names, self.verdicts)
        if not names:
            return _Selected(body, status, vms, status.notes)
        devices = {vm.device for vm in status.vms if vm.vm in names}
        others = [vm.vm for vm in status.vms if vm.vm not in names]
        others += [device.name for device in status.devices if device.name not in devices]
        return _Selected(body, status, vms, notes_about({*names, *devices}, status.notes, others))


def _print_json(selected: _Selected, indent: int | None = 2) -> None:
    """The JSON object of the daemon with the selected VMs only; fields of a newer daemon are kept."""
    keys = {(vm.vm, vm.device) for vm in selected.vms}
    vms = [vm for vm in selected.body["vms"] if (vm["vm"], vm["device"]) in keys]
    sys.stdout.write(json.dumps({**selected.body, "vms": vms}, indent=indent) + "\n")
    sys.stdout.flush()


def _is_degraded(selected: _Selected) -> bool:
    groups = {vm.group for vm in selected.vms}
    return any(vm.verdict in DEGRADED for vm in selected.vms) or any(
        group.verdict in DEGRADED for group in selected.status.groups if group.name in groups
    )


def _print(selected: _Selected) -> None:
    from rich.text import Text

    from slo_ctl.show.terminal import print_line

    console = stdout_console()
    for part in _parts(console, selected):
        if isinstance(part, Text):
            print_line(console, part)
        else:
            console.print(part)
    warn_notes(selected.notes)


def _parts(console: Console, selected: _Selected) -> list[RenderableType]:
    """Header, devices, VMs, groups and problems, separated by empty lines."""
    from rich.text import Text

    from slo_ctl.show.status import (
        device_columns,
        device_lines,
        group_lines,
        header_lines,
        problem_lines,
        status_columns,
    )
    from slo_ctl.show.terminal import table_of, width_for_tables

    status, vms, width = selected.status, selected.vms, width_for_tables(console)
    sections: list[list[RenderableType]] = [[*header_lines(status)]]
    if status.devices:
        sections.append([table_of(device_columns(status), status.devices, width)])
        sections.append([line for device in status.devices for line in device_lines(device)])
    if vms:
        sections.append([table_of(status_columns(status), vms, width)])
    elif status.vms:
        sections.append([Text("no VM matches")])
    else:
        from slo_ctl.show.vms import NO_VMS

        sections.append([Text(f"{NO_VMS}; disks have to be on managed devices, see `slo-ctl vm list`")])
    sections += [[*group_lines(status, vms)], [*problem_lines(vms)]]
    first, *others = filter(None, sections)
    return [*first, *(part for section in others for part in (Text(""), *section))]


def _watch(root: Path | None, selection: _Selection, interval_s: float, json_: bool) -> None:
    from slo_ctl.show.terminal import can_redraw

    try:
        if json_ or not can_redraw(sys.stdout):
            _watch_lines(root, selection, interval_s, json_)
        else:
            _watch_live(root, selection, interval_s)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _watch_lines(root: Path | None, selection: _Selection, interval_s: float, json_: bool) -> None:
    """One status after the other, for a pipe, a file or a terminal that cannot redraw."""
    outage = _outage(root)
    while True:
        body = outage.request(lambda: client(root).get("/v1/status"))
        if body is None:
            if outage.is_new:
                warn(f"slo-ctl: {outage.line()}")
        elif json_:
            _print_json(selection.of(body), indent=None)
        else:
            _print(selection.of(body))
            print_lines("")
        time.sleep(interval_s)


def _watch_live(root: Path | None, selection: _Selection, interval_s: float) -> None:
    """The status on a terminal, redrawn in place."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    console = stdout_console()
    outage = _outage(root)
    parts: list[RenderableType] = []
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            body = outage.request(lambda: client(root).get("/v1/status"))
            if body is None:
                # The last known status stays, below the line with its age.
                live.update(Group(Text(outage.line(), style="bold red"), *parts), refresh=True)
            else:
                selected = selection.of(body)
                parts = _parts(console, selected)
                parts += [Text(f"note: {printable(note)}") for note in selected.notes]
                live.update(Group(*parts), refresh=True)
            time.sleep(interval_s)


def top(
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600, metavar="SECONDS", help="Time between updates.")
    ] = 1.0,
    root: ROOT = None,
) -> None:
    """Watch all VMs full-screen, sorted and filtered by key, with the reason for each verdict.

    Continues across restarts of the daemon. Changes nothing. Keys: n, v, i, t, w, l, o and a sort by name,
    verdict, IOPS, target, weight, p99, OPS and WAF; / searches; f shows degraded VMs, or those of one
    verdict; [ and ] go back and forward through the last hour; space pauses; ? explains the keys; q quits.

    Examples:
    slo-ctl top
    slo-ctl top --interval 5
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError("slo-ctl top needs a terminal", "use slo-ctl status --watch instead")
    from slo_ctl.show.terminal import can_redraw
    from slo_ctl.show.top import TopApp

    daemon = client(root, _TOP_TIMEOUT_S)
    if not can_redraw(sys.stdout):
        raise UserError(
            f"slo-ctl top redraws the terminal in place, which TERM={os.environ['TERM']} cannot do",
            "set TERM to the type of the terminal, or use slo-ctl status --watch instead",
        )
    app = TopApp(
        lambda: daemon.get("/v1/status"),
        lambda vm, limit: vm_history(daemon, vm, limit=limit),
        _outage(root),
        interval,
    )
    app.run()
    if app.return_code:
        # The application has printed the error.
        raise typer.Exit(EXIT_FAILURE)


def _outage(root: Path | None) -> DaemonOutage:
    from slo_ctl.show.status import DaemonOutage

    return DaemonOutage(lambda reason: start_hint(root, reason))
