"""`slo-ctl try`: a drive, VMs and the daemon on this host for a minute, without slo-ctl and with it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.base.errors import UserError, require_package
from slo_ctl.base.keyvalue import Fields, split_pairs
from slo_ctl.base.termination import ending_signals, stop_requests
from slo_ctl.base.text import counted
from slo_ctl.cli.exit_status import EXIT_CHECK, EXIT_FAILURE
from slo_ctl.cli.options import JSON
from slo_ctl.cli.output import print_json, print_lines, stdout_console, warn

if TYPE_CHECKING:
    from slo_ctl.cli.try_host import TryHost
    from slo_ctl.cli.try_run import TryResult

_DEFAULT_WEIGHTS = "web=1,db=3,mail=6"
_MIN_SECONDS = 40
"""A measurement takes a quarter of the time, and the p99 of the server is that of 10 s."""
_MAX_VMS = 16


def command(
    seconds: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=_MIN_SECONDS,
            max=3600,
            help="Total time; a quarter is measured without slo-ctl, a quarter with it.",
        ),
    ] = 60,
    weights: Annotated[
        str, typer.Option(metavar="VM=WEIGHT,...", help="The VMs and their weights, at least two.")
    ] = _DEFAULT_WEIGHTS,
    trace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VM=FILE",
            help="Have a VM repeat the requests of a trace, in any format that `replay` reads; repeatable.",
        ),
    ] = None,
    guests: Annotated[
        bool | None,
        typer.Option(
            "--guests/--no-guests",
            help="QEMU guests, on an emulated processor where KVM does not work; or fio in cgroups. "
            "[default: guests if KVM works]",
        ),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory for all files, emptied at the end. [default: a new one in /dev/shm or /tmp]",
        ),
    ] = None,
    page: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, metavar="PORT", help="Serve the page of the daemon too, at 127.0.0.1:PORT."
        ),
    ] = None,
    no_top: Annotated[bool, typer.Option("--no-top", help="Print lines instead of a live table.")] = False,
    json_: JSON = False,
) -> None:
    """Try slo-ctl on an EMULATED SSD with several VMs: first without the daemon, then with it.

    Creates and preconditions a small drive, serves it with modelled latency, and runs a client for each VM
    with random writes of 4 KiB (synthetic): a QEMU guest if KVM works, otherwise fio in a cgroup. fio repeats
    the requests of a trace. The VM with the least weight is a noisy neighbour. Then the daemon is started.
    Everything is removed at the end, also after Ctrl-C. Guests need QEMU and a C compiler; cgroups need root:
    without root, clients run without them.

    Exit status 0: every VM is within its SLO with slo-ctl; 3: some VM is not; 1: something could not be
    removed, or another error; 2: a usage error, or something is missing.

    Examples:
    slo-ctl try
    slo-ctl try --guests --seconds 120 --weights a=1,b=1,c=2
    slo-ctl try --seconds 600 --page 8080        # and open http://127.0.0.1:8080/
    slo-ctl try --trace db=db.csv.gz --trace mail=mail.blkparse
    slo-ctl try --json > try.json
    """
    from slo_ctl.cli.try_host import TryHost
    from slo_ctl.cli.try_run import run
    from slo_ctl.show.terminal import can_redraw

    vms = weights_of(weights)
    traces = traces_of(trace or [], vms)
    # Signals are handled between two steps: one during the start of a process would leave it running.
    with stop_requests(ending_signals()) as stop:
        host = TryHost(root, vms, stop, page)
        try:
            result = run(
                host, vms, traces, seconds, guests=guests, live=can_redraw(sys.stderr) and not no_top
            )
        except KeyboardInterrupt:
            warn("slo-ctl: removing everything")
            raise
        finally:
            is_removed = _remove(host)
    if json_:
        print_json(result.to_json())
    else:
        _print(result)
    if not is_removed:
        raise typer.Exit(EXIT_FAILURE)
    if result.degraded:
        raise typer.Exit(EXIT_CHECK)


def weights_of(text: str) -> dict[str, float]:
    """Weights by VM, from `web=1,db=3`. Raises UserError."""
    from slo_ctl.drives.record import check_name
    from slo_ctl.model.slo import MAX_WEIGHT, MIN_WEIGHT

    pairs = split_pairs("--weights", text)
    if not 2 <= len(pairs) <= _MAX_VMS:
        raise UserError(
            f"--weights: {counted(len(pairs), 'VM')}", f"name 2 to {_MAX_VMS}, such as {_DEFAULT_WEIGHTS}"
        )
    fields = Fields("--weights", pairs)
    return {
        check_name("--weights", vm): fields.number(vm, least=MIN_WEIGHT, most=MAX_WEIGHT) or 1.0
        for vm in pairs
    }


def traces_of(pairs: Sequence[str], vms: Collection[str]) -> dict[str, Path]:
    """Files by VM, from `db=db.csv.gz`. Raises UserError."""
    if not pairs:
        return {}
    require_package("polars")
    from traces.errors import TraceError
    from traces.reader import open_trace

    traces: dict[str, Path] = {}
    for pair in pairs:
        vm, _, file = pair.partition("=")
        if not file:
            raise UserError(
                f"--trace {pair}: no file", f"write VM=FILE, such as {next(iter(vms))}=trace.csv.gz"
            )
        if vm not in vms:
            names = ", ".join(vms)
            raise UserError(
                f"--trace {pair}: {vm} is not a VM of --weights", f"write VM=FILE; VMs are {names}"
            )
        if vm in traces:
            raise UserError(f"--trace {pair}: {vm} has a trace already", "give one of them for each VM")
        try:
            open_trace(Path(file))
        except TraceError as error:
            raise UserError(
                f"--trace {pair}: {error.message}", "`slo-ctl trace info` must be able to read it"
            ) from None
        traces[vm] = Path(file)
    return traces


def _remove(host: TryHost) -> bool:
    """Stop and remove everything; returns whether that succeeded, and reports on stderr."""
    failures = host.close()
    for sentence in failures:
        warn(f"slo-ctl: {sentence}")
    if not failures:
        warn("stopped all processes and removed all files")
    return not failures


def _print(result: TryResult) -> None:
    from slo_ctl.cli.try_run import comparison_table, gains
    from slo_ctl.show.terminal import width_for_tables

    console = stdout_console()
    console.print()
    console.print(comparison_table(result.vms, width_for_tables(console)))
    print_lines("", *gains(result.vms))
    for vm in result.vms:
        if vm.verdict is not None and vm.reason:
            print_lines(f"  {vm.vm}: {vm.verdict}: {vm.reason}")
