"""`slo-ctl report`: how the SLOs of VMs were met, from the daemon's history, as text, JSON and HTML."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.base.errors import UnreachableError, UserError, require_packages
from slo_ctl.base.files import check_writable, write_whole
from slo_ctl.cli.api_access import client
from slo_ctl.cli.completion import complete_vm
from slo_ctl.cli.history import DEFAULT_SINCE, SINCE, UNTIL, database, from_daemon, interval
from slo_ctl.cli.options import JSON, ROOT
from slo_ctl.cli.output import check_html, print_json, print_lines

if TYPE_CHECKING:
    from slo_ctl.model import HostStatus
    from slo_ctl.show.history_summary import HostReport

DEFAULT_LIMIT = 360


def command(
    since: SINCE = DEFAULT_SINCE,
    until: UNTIL = None,
    vm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Only this VM. Repeatable. [default: all]", autocompletion=complete_vm
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.html", help="Write an HTML report."),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(min=1, max=5000, help="Approximate number of points of each curve."),
    ] = DEFAULT_LIMIT,
    json_: JSON = False,
    root: ROOT = None,
) -> None:
    """Report how the SLOs of VMs were met: share of time by verdict, the worst stretch, plots, events.

    Exit status 0: reported; 1: an error; 2: a usage error, such as an unknown VM or a time of which nothing
    is recorded; 4: neither the daemon nor its database can be read.

    Examples:
    slo-ctl report
    slo-ctl report --since 1h -o report.html
    slo-ctl report --since '2026-01-31 14:00' --until '2026-01-31 15:00' --vm web --vm db --json
    """
    begin, end = interval(since, until)
    if output is not None:
        check_writable("--output", output)
        check_html("--output", output)
        require_packages("jinja2", "matplotlib")
    report = _report(root, list(dict.fromkeys(vm or [])), (begin, end), limit, until is None)
    if output is not None:
        from slo_ctl.show.history_report import render_history_report

        write_whole("--output", output, render_history_report(report))
    if json_:
        from slo_ctl.show.history_summary import report_json

        print_json(report_json(report))
        return
    from slo_ctl.show.history_summary import report_lines

    print_lines(*report_lines(report))
    if output is not None:
        print_lines(f"report: {output}")


def _report(
    root: Path | None, names: list[str], span: tuple[float, float], limit: int, up_to_now: bool
) -> HostReport:
    """The history and, up to now, the daemon's status. Raises UserError when there is neither."""
    from slo_ctl.record.history_reader import names as recorded_names
    from slo_ctl.record.history_reader import read_vm
    from slo_ctl.show.history import clock
    from slo_ctl.show.history_summary import HostReport, has_records

    status = None
    try:
        status = _status(root)
        wanted = names or _names_known(root, status)
        histories = [from_daemon(root, name, *span, limit) for name in wanted]
    except UnreachableError as error:
        with database(root, str(error)) as path:
            histories = [read_vm(path, name, *span, limit) for name in names or recorded_names(path)]
    now = status if up_to_now else None
    present = {vm.vm for vm in now.vms} if now else set()
    shown = tuple(each for each in histories if has_records(each) or each.vm in present)
    if not shown:
        begin, end = (clock(at, dated=True) for at in span)
        raise UserError(
            f"nothing is recorded of {', '.join(names) or 'any VM'} from {begin} to {end}",
            "give an earlier --since; `slo-ctl status` shows whether the daemon runs",
        )
    return HostReport(shown, *span, _emulated(root, status), now)


def _status(root: Path | None) -> HostStatus:
    from slo_ctl.model.status_json import StatusFormatError, from_json

    try:
        return from_json(client(root).get("/v1/status"))
    except StatusFormatError as error:
        raise UnreachableError(f"invalid status from the daemon: {error}") from None


def _names_known(root: Path | None, status: HostStatus) -> list[str]:
    """VMs that the daemon knows now and, where its database can be read, those that are gone."""
    from slo_ctl.daemon.files import DaemonPlaces
    from slo_ctl.record.history_reader import names
    from slo_ctl.record.history_schema import HistoryError

    found = dict.fromkeys(vm.vm for vm in status.vms)
    places = DaemonPlaces(root)
    if places.api_socket.exists():  # or the daemon that answers is the system's, with a database of its own
        with suppress(HistoryError):
            found.update(dict.fromkeys(names(places.history)))
    return list(found)


def _emulated(root: Path | None, status: HostStatus | None) -> frozenset[str]:
    """Names of emulated devices: as the daemon says, else those that are stored."""
    if status is not None:
        return frozenset(device.name for device in status.devices if device.kind == "emulated")
    from slo_ctl.drives.record import places
    from slo_ctl.drives.store import DeviceStore

    return frozenset(DeviceStore(places(root)).names())
