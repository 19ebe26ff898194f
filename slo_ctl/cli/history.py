"""`slo-ctl history` and `slo-ctl report`: the past of VMs, from the daemon or else from its database."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.base.errors import UnreachableError, UserError, require_package
from slo_ctl.base.files import check_writable, write_whole
from slo_ctl.base.patterns import expand
from slo_ctl.base.progress import LatePhase
from slo_ctl.base.quantity import parse_time_s
from slo_ctl.cli.api_access import client, not_reachable, start_hint, vm_history, vm_not_found
from slo_ctl.cli.options import JSON, ONLY_VMS, ROOT, VMS, device_store
from slo_ctl.cli.output import check_suffix, print_json, print_lines, stdout_console, warn
from slo_ctl.cli.vm_host import is_many
from slo_ctl.daemon.files import DaemonPlaces
from slo_ctl.model.slo import check_vm_name

if TYPE_CHECKING:
    from slo_ctl.model.status import HostStatus
    from slo_ctl.record.history_reader import VmHistory
    from slo_ctl.show.history_summary import HostReport


_SINCE = Annotated[
    str,
    typer.Option(
        metavar="TIME", help="Start: 90s, 1h or 2d ago, or a local time such as `2026-01-31 14:00`."
    ),
]
_UNTIL = Annotated[str | None, typer.Option(metavar="TIME", help="End, in the same form. [default: now]")]
_TIME_FORMATS = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d")


def history(
    vms: VMS,
    since: _SINCE = "1h",
    until: _UNTIL = None,
    limit: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=5000,
            help="Approximate number of rows; fewer rows are means of longer intervals.",
        ),
    ] = 60,
    json_: JSON = False,
    root: ROOT = None,
) -> None:
    """Show the history of VMs: means, changes of their verdicts, decisions and changed settings.

    Exit status 0: shown; 1: an error; 2: a usage error, such as an unknown VM; 4: neither the daemon nor its
    database can be read.

    Examples:
    slo-ctl history web --since 15min
    slo-ctl history 'web*' db --since 2h --limit 8
    slo-ctl history web --since '2026-01-31 14:00' --until '2026-01-31 15:00' --json
    """
    span = _interval(since, until)
    for vm in vms:
        check_vm_name(vm)
    histories = _read_histories(root, vms, span, limit)
    if json_:
        from slo_ctl.model.status_json import plain

        found = [plain(past) for past in histories]
        print_json({"vms": found} if is_many(vms) or len(found) > 1 else found[0])
        return
    for number, past in enumerate(histories):
        if number:
            print_lines("")
        _print(past)


def _print(history: VmHistory) -> None:
    from rich.text import Text

    from slo_ctl.show.history import history_lines, print_history
    from slo_ctl.show.terminal import print_line, width_for_tables

    console = stdout_console()
    for line in history_lines(history, console.width if sys.stdout.isatty() else None):
        print_line(console, line)
    console.print()
    print_history(console, history, width_for_tables(console))
    if not history.points:
        console.print(Text("no measurements in this interval"))


def _read_histories(
    root: Path | None, words: list[str], span: tuple[float, float], limit: int
) -> list[VmHistory]:
    """Histories of the VMs that names and patterns stand for, without any of all VMs.

    They are those of the daemon, or of its database when the daemon is not reachable.
    """
    from slo_ctl.record.history_reader import names as recorded_names
    from slo_ctl.record.history_reader import read_vm

    try:
        names = _expanded(words, lambda: _vm_names(root))
        return _read_each(names, lambda name: _from_daemon(root, name, *span, limit))
    except UnreachableError as error:
        with _database(root, str(error)) as path:
            names = _expanded(words, lambda: recorded_names(path))
            return _read_each(names, lambda name: read_vm(path, name, *span, limit))


def _read_each(names: list[str], read: Callable[[str], VmHistory]) -> list[VmHistory]:
    """The histories of these VMs; a bar on stderr where that is a terminal and it takes long."""
    from slo_ctl.show.terminal import progress_on_stderr

    histories = []
    with progress_on_stderr(quiet=not sys.stderr.isatty()) as progress:
        phase = LatePhase(progress, "reading the history", len(names), "VMs")
        for name in names:
            histories.append(read(name))
            phase.advance(1)
        phase.done()
    return histories


def _from_daemon(root: Path | None, vm: str, since: float, until: float, limit: int) -> VmHistory:
    """The history of a VM from the daemon. Raises UnreachableError."""
    return vm_history(client(root), vm, since=f"{since:.3f}", until=f"{until:.3f}", limit=limit)


@contextmanager
def _database(root: Path | None, unreachable: str) -> Iterator[Path]:
    """The daemon's database, to be read because the daemon is not reachable; a line on stderr reports that.

    When it cannot be read either, raises UnreachableError with both reasons.
    """
    from slo_ctl.record.history_schema import HistoryError

    path = DaemonPlaces.in_use(root).history
    try:
        yield path
    except HistoryError as error:
        reason = error.message.removeprefix("history: ")
        hint = start_hint(root, unreachable) if "slo-ctl daemon" in error.hint else error.hint
        raise not_reachable(f"{unreachable}; nor can its history be read: {reason}", hint) from None
    warn(f"slo-ctl: the daemon is not reachable; reading {path}")


def _interval(since: str, until: str | None) -> tuple[float, float]:
    """The values of --since and --until in seconds since 1970. Raises UserError."""
    now = time.time()
    begin, end = _time_of("--since", since, now), _time_of("--until", until, now) if until else now
    if begin >= end:
        raise UserError(f"--since {since} is not before --until {until or 'now'}", "give an earlier --since")
    return begin, end


def _time_of(option: str, text: str, now: float) -> float:
    """Seconds since 1970, from a time ago or a date; before 1970 nothing is recorded. Raises UserError."""
    for form in _TIME_FORMATS:
        try:
            return time.mktime(time.strptime(text, form))
        except (ValueError, OverflowError):
            continue
    try:
        return max(0.0, now - parse_time_s(text))
    except ValueError:
        raise UserError(
            f"{option}: {text or 'an empty value'} is not a valid time",
            "such as 90s, 30min, 1h, 2d (ago) or 2026-01-31 14:00",
        ) from None


def report(
    vms: ONLY_VMS = None,
    since: _SINCE = "1h",
    until: _UNTIL = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.html", help="Write an HTML report.")
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=5000, help="Approximate number of points of each curve.")
    ] = 360,
    json_: JSON = False,
    root: ROOT = None,
) -> None:
    """Report how the SLOs of VMs were met: share of time by verdict, the worst period, plots, events.

    Exit status 0: reported; 1: an error; 2: a usage error, such as an unknown VM or a time of which nothing
    is recorded; 4: neither the daemon nor its database can be read.

    Examples:
    slo-ctl report
    slo-ctl report --since 1h -o report.html
    slo-ctl report --since '2026-01-31 14:00' --until '2026-01-31 15:00' web db --json
    """
    begin, end = _interval(since, until)
    if output is not None:
        check_writable("--output", output)
        check_suffix("--output", output, "HTML")
        require_package("jinja2")
    host_report = _report(root, list(dict.fromkeys(vms or [])), (begin, end), limit, until is None)
    from slo_ctl.cli.app import with_root
    from slo_ctl.show.history_summary import report_json, report_lines
    from slo_ctl.show.terminal import print_line

    if output is not None:
        from slo_ctl.show.history_report import render_history_report

        write_whole("--output", output, render_history_report(host_report))
    if json_:
        print_json(report_json(host_report))
        return
    console = stdout_console()
    for line in report_lines(host_report):
        print_line(console, with_root(line, str(root)) if root is not None else line)
    if output is not None:
        print_lines(f"report: {output}")


def _report(
    root: Path | None, words: list[str], span: tuple[float, float], limit: int, up_to_now: bool
) -> HostReport:
    """The history and, up to now, the daemon's status. Raises UserError if neither exists."""
    from slo_ctl.show.history import clock
    from slo_ctl.show.history_summary import HostReport, has_records

    histories, status = _read_histories(root, words, span, limit), None
    with suppress(UnreachableError):
        status = _status(root)
    now = status if up_to_now else None
    present = {vm.vm for vm in now.vms} if now else set()
    relevant = tuple(each for each in histories if has_records(each) or each.vm in present)
    if not relevant:
        begin, end = (clock(at, dated=True) for at in span)
        raise UserError(
            f"nothing is recorded for {', '.join(words) or 'any VM'} from {begin} to {end}",
            "give an earlier --since; `slo-ctl status` shows whether the daemon runs",
        )
    return HostReport(relevant, *span, _emulated(root, status), now)


def _expanded(words: list[str], existing: Callable[[], list[str]]) -> list[str]:
    """The VMs that names and patterns stand for; without any, all."""
    return expand(words, existing, vm_not_found) if words else existing()


def _status(root: Path | None) -> HostStatus:
    from slo_ctl.model.status_json import from_json

    return from_json(client(root).get("/v1/status"))


def _vm_names(root: Path | None) -> list[str]:
    """VMs of the daemon's status and, if its database can be read, those that no longer exist.

    Raises UnreachableError.
    """
    from slo_ctl.record.history_reader import names as recorded_names
    from slo_ctl.record.history_schema import HistoryError

    vms = dict.fromkeys(vm.vm for vm in _status(root).vms)
    with suppress(HistoryError):
        vms.update(dict.fromkeys(recorded_names(DaemonPlaces.in_use(root).history)))
    return list(vms)


def _emulated(root: Path | None, status: HostStatus | None) -> frozenset[str]:
    """Names of emulated devices: those of the daemon's status, or else the stored ones."""
    if status is not None:
        return frozenset(device.name for device in status.devices if device.kind == "emulated")
    return frozenset(device_store(root).names())
