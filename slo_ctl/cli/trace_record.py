"""`slo-ctl trace record`: the requests of running VMs, and a scenario that replays them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.base.errors import UnreachableError, UserError
from slo_ctl.base.numbers import duration
from slo_ctl.base.termination import ending_signals, stop_requests
from slo_ctl.base.text import and_list, counted
from slo_ctl.cli.completion import complete_device
from slo_ctl.cli.options import JSON, QUIET, ROOT, device_store, time_s_of, trace_errors
from slo_ctl.cli.output import print_json, print_lines, stdout_console, warn
from slo_ctl.model.setting import Lever

if TYPE_CHECKING:
    from slo_ctl.replay.recording import Recording, Source


def record(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="A new directory for the traces and scenario.toml.")
    ],
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A served emulated device: each namespace.", autocompletion=complete_device
        ),
    ] = None,
    block: Annotated[
        list[str] | None,
        typer.Option(metavar="VM=/dev/DISK", help="A VM and its block device. Repeatable. Needs root."),
    ] = None,
    for_: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="Duration, such as 60s. [default: until Ctrl-C]"),
    ] = None,
    root: ROOT = None,
    json_: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Record the requests of running VMs, one trace for each, with a scenario that replays them.

    Offsets, sizes and times are recorded, never data. Only the owner may read the files.

    Examples:
    slo-ctl trace record --device ssd0 --for 60s --out monday
    slo-ctl trace record --block web=/dev/vg0/web --block db=/dev/vg0/db --for 10m --out monday
    slo-ctl replay monday/scenario.toml --device op=28% --policy min_waf
    """
    from slo_ctl.replay.recording import new_folder
    from slo_ctl.replay.recording import record as record_source
    from slo_ctl.show.terminal import progress_on_stderr

    for_s = None if for_ is None else time_s_of("--for", for_)
    if for_s == 0:
        raise UserError("--for: 0 s record nothing", "such as 60s")
    source_context = _source(device, block or [], root)
    with (
        new_folder(out),
        trace_errors(),
        stop_requests(ending_signals()) as stop,
        source_context as source,
        progress_on_stderr(quiet=quiet) as sink,
    ):
        phase = sink.phase(f"recording {source.name}", for_s, "s")
        recording = record_source(source, out, for_s, stop, phase.advance)
        phase.done()
    if json_:
        print_json(recording.plain())
    else:
        print_recording(recording)
    dropped = sum(vm.dropped for vm in recording.vms)
    if dropped:
        warn(f"slo-ctl: {counted(dropped, 'request')} not recorded: too many at a time")
    if recording.problem:
        ended = f"the recording ended after {duration(recording.elapsed_s)}: {recording.problem}"
        raise UnreachableError(f"{recording.source}: {ended}", f"what was recorded until then is in {out}")
    if removed := [vm.name for vm in recording.vms if vm.removed]:
        raise UnreachableError(
            f"the disk of {and_list(removed)} was removed during the recording",
            f"what was recorded until then is in {out}",
        )
    if recording.scenario is None:
        raise UserError("no request was recorded", "record while the VMs do I/O")


def _source(device: str | None, block: Sequence[str], root: Path | None) -> AbstractContextManager[Source]:
    from slo_ctl.replay.block_recording import block_devices
    from slo_ctl.replay.recording import served_device

    if (device is None) == (not block):
        raise UserError(
            "give either --device or --block", "such as --device ssd0, or --block web=/dev/vg0/web"
        )
    if device is not None:
        store = device_store(root)
        control = store.places.run_of(device).control
        return served_device(store.load(device), control, _weights_of_slos(device, root))
    return block_devices(_named_disks(block))


def _weights_of_slos(device: str, root: Path | None) -> dict[str, float]:
    """Weights of the SLOs of VMs by namespace, where slo-ctl has set that of the device's queue.

    A policy sets the queue's weight to what gives a VM its share just now.
    """
    from slo_ctl.act.journal import Journal
    from slo_ctl.cli.vm_host import VmHost

    host = VmHost(root)
    set_by_us = {
        knob.place
        for knob in Journal(host.places.journal).originals()
        if knob.lever is Lever.FTL_WEIGHT and knob.place.startswith(f"{device}/")
    }
    streams = host.inventory.streams if set_by_us else ()
    return {
        stream.tenant.namespace: host.slos.resolved[stream.vm].slo.weight
        for stream in streams
        if stream.tenant is not None and str(stream.tenant) in set_by_us
    }


def _named_disks(block: Sequence[str]) -> dict[str, Path]:
    from slo_ctl.drives.record import check_name

    disks: dict[str, Path] = {}
    for text in block:
        vm, equals, path = text.partition("=")
        if not equals or not path:
            raise UserError(f"--block: {text} does not name a VM and its device", "such as web=/dev/vg0/web")
        if check_name("--block", vm) in disks:
            raise UserError(f"--block: VM {vm} is named twice", "one device for each VM")
        disks[vm] = Path(path)
    return disks


def print_recording(recording: Recording) -> None:
    """The requests of each VM, and the command that replays them."""
    from slo_ctl.show.terminal import print_rows

    headings = ("VM", "REQUESTS", "IOPS", "READ", "WRITTEN", "BUSY", "OUTSTANDING", "DROPPED", "REPLAYED")
    rows = [
        (
            vm.name,
            f"{vm.requests:,}",
            f"{vm.requests / recording.elapsed_s if recording.elapsed_s else 0.0:,.0f}",
            f"{vm.read_bytes / 2**20:,.1f} MiB",
            f"{vm.write_bytes / 2**20:,.1f} MiB",
            f"{100 * recording.busy(vm):.0f}%",
            f"{recording.mean_outstanding(vm):.1f}",
            f"{vm.dropped:,}",
            recording.replayed(vm),
        )
        for vm in recording.vms
    ]
    print_rows(stdout_console(), headings, rows, left=("VM", "REPLAYED"))
    if recording.scenario is not None:
        print_lines(f"replay it with: slo-ctl replay {shlex.quote(str(recording.scenario))}")
