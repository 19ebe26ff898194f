"""What one VM is promised, on a terminal and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from slo_ctl.promises.check import FIELD_NAMES, KEY_OF
from slo_ctl.show import numbers
from slo_ctl.show.console import console_for
from slo_ctl.show.text import printable
from slo_ctl.show.vms import disks_json, stream_cells, stream_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slo_ctl.decide.promises import Promise
    from slo_ctl.model import Stream, Vm
    from slo_ctl.promises import SloFields

FORMAT_VERSION = 1


def show_vm(stream: TextIO, name: str, promise: Promise, vm: Vm | None, streams: Sequence[Stream]) -> None:
    """What it is, each field with where it comes from, conflicts, and streams."""
    console = console_for(stream)
    state = f"{vm.state.value}, found by {vm.found_by.value}" if vm else "not on this host"
    console.print(Text(f"VM {printable(name)}: {state}", style="bold"), soft_wrap=True)
    console.print()
    console.print(_promise_table(promise))
    for sentence in promise.conflicts:
        console.print(Text(f"conflict: {printable(sentence)}", "yellow"), soft_wrap=True)
    if streams:
        console.print()
        console.print(_stream_table(streams))
    console.print()


def promise_line(promise: Promise) -> str:
    """`weight 3 (vm set), max_iops 500 (metadata)`."""
    return ", ".join(
        f"{KEY_OF[field]} {field_cell(field, getattr(promise.slo, field))} ({promise.sources[field]})"
        for field in FIELD_NAMES
        if field in promise.sources
    )


def field_cell(field: str, value: float | None) -> str:
    """A value of a field of `model.Slo`, with its unit."""
    if value is None:
        return numbers.UNKNOWN
    match field:
        case "weight":
            return numbers.weight(value)
        case "max_bandwidth_bytes_s":
            return f"{numbers.size(value)}/s"
        case "p99_latency_us":
            return numbers.latency(value)
        case _:
            return f"{numbers.count(value)} IOPS"


def promise_json(
    name: str,
    promise: Promise,
    said: Mapping[str, SloFields] | None,
    vm: Vm | None,
    streams: Sequence[Stream],
) -> dict[str, Any]:
    """Everything about the promise; values in the units that the names of their fields say."""
    told: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "vm": name,
        "slo": asdict(promise.slo),
        "source": promise.source,
        "sources": promise.sources,
        "conflicts": list(promise.conflicts),
    }
    if said is None:
        return told
    return told | {
        "promised": {source: dict(fields) for source, fields in said.items()},
        "state": vm.state.value if vm else None,
        "found_by": vm.found_by.value if vm else None,
        "disks": disks_json(vm) if vm else [],
        "streams": [stream_json(stream) for stream in streams],
    }


def _promise_table(promise: Promise) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("SLO", "IN FORCE", "FROM"):
        table.add_column(heading, justify="right" if heading == "IN FORCE" else "left", overflow="fold")
    for field in FIELD_NAMES:
        source = promise.sources.get(field, "")
        cells = (KEY_OF[field], field_cell(field, getattr(promise.slo, field)), source)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def _stream_table(streams: Sequence[Stream]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("DISK", "SOURCE", "DEVICE", "READ", "WRITTEN", "CGROUP"):
        right = heading in ("DEVICE", "READ", "WRITTEN")
        table.add_column(heading, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for stream in streams:
        table.add_row(*(Text(cell) for cell in stream_cells(stream)))
    return table
