"""Mappings of VMs onto NVMe namespaces: as a table, as JSON, and the steps of one before they are done."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from slo_ctl.model.mapping import (
    DESTRUCTIVE,
    AttachNamespace,
    CreateNamespace,
    Deallocate,
    DeleteNamespace,
    DetachNamespace,
    GiveDisk,
    Purpose,
    TakeDisk,
)
from slo_ctl.quantity import format_bytes_exact
from slo_ctl.show.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slo_ctl.model.mapping import Mapping, Step
    from slo_ctl.model.nvme import NvmeDevice

FORMAT_VERSION = 1


def step_line(step: Step, mapping: Mapping) -> str:
    """What a step does, in one line."""
    nsid = f"namespace {mapping.nsid}" if mapping.nsid else "the new namespace"
    where = f"on {mapping.controller}"
    match step:
        case CreateNamespace():
            size = format_bytes_exact(step.size_blocks * step.block_bytes)
            places = [
                f"{word} {value}"
                for word, value in (("endurance group", step.endurance_group), ("NVM set", step.nvm_set))
                if value is not None
            ]
            places += [f"reclaim unit handle {each}" for each in step.handles]
            inside = f", {', '.join(places)}" if places else ""
            return f"create a namespace of {size} (LBAs of {step.block_bytes} bytes{inside}) {where}"
        case AttachNamespace():
            return f"attach {nsid} to controller {step.controller_id} ({mapping.controller})"
        case Deallocate():
            start, length = (format_bytes_exact(each) for each in (step.offset_bytes, step.length_bytes))
            return f"deallocate {length} from {start} on of {nsid} {where}"
        case GiveDisk():
            part = "" if step.whole else f", the first {format_bytes_exact(step.size_bytes)}"
            return f"give {nsid} to VM {mapping.vm} as disk {step.target or '(next free name)'}{part}"
        case TakeDisk():
            also = ", also while it runs" if step.unplug else ""
            return f"take disk {mapping.target} ({nsid}) from VM {mapping.vm}{also}"
        case DetachNamespace():
            return f"detach {nsid} from controller {step.controller_id} ({mapping.controller}); data stay"
        case DeleteNamespace():
            return f"delete {nsid} {where}"


def plan_lines(mapping: Mapping, drive: NvmeDevice) -> list[str]:
    """The steps that are left, what they destroy, and what comes of them."""
    emulated = " (EMULATED by QEMU)" if drive.controller.emulated else ""
    verb = "map" if mapping.purpose is Purpose.MAP else "unmap"
    lines = [f"{verb} VM {mapping.vm}: {mapping.drive}, {mapping.controller}{emulated}"]
    left = mapping.steps[mapping.done :]
    for number, step in enumerate(left, 1):
        mark = "  DESTROYS DATA" if isinstance(step, DESTRUCTIVE) else ""
        lines.append(f"  {number}. {step_line(step, mapping)}{mark}")
    if not left:
        lines.append("  nothing to do on the drive: only the record is removed")
    if mapping.purpose is Purpose.MAP:
        lines.append(f"  isolation: {mapping.placement.isolation}, by {mapping.placement.by}")
        lines.append(f"  spare: {spare_text(mapping)}")
    return lines


def spare_text(mapping: Mapping) -> str:
    """Such as `2GiB unallocated, the drive's`."""
    spare = mapping.spare
    if not spare.size_bytes:
        return "none of its own"
    return f"{format_bytes_exact(spare.size_bytes)} {spare.how}, {spare.owner}"


def result_line(after: Mapping | None, before: Mapping) -> str:
    """What came of it."""
    if after is None:
        return f"{before.vm}: namespace {before.nsid} of {before.drive} unmapped"
    disk = f" as {after.target}" if after.target else ""
    return (
        f"{after.vm}: namespace {after.nsid} of {after.drive} mapped{disk}, "
        f"{format_bytes_exact(after.size_bytes)}, {after.placement.isolation}"
    )


def mapping_json(mapping: Mapping) -> dict[str, Any]:
    """One mapping, versioned; sizes in bytes."""
    return {"format_version": FORMAT_VERSION, **_entry(mapping)}


def mappings_json(mappings: Iterable[Mapping]) -> dict[str, Any]:
    """All of them, versioned; sizes in bytes."""
    return {"format_version": FORMAT_VERSION, "mappings": [_entry(each) for each in mappings]}


def _entry(mapping: Mapping) -> dict[str, Any]:
    return asdict(mapping) | {
        "complete": mapping.complete,
        "steps": [
            asdict(step)
            | {
                "done": index < mapping.done,
                "destroys_data": isinstance(step, DESTRUCTIVE),
                "text": step_line(step, mapping),
            }
            for index, step in enumerate(mapping.steps)
        ],
    }


def mapping_table(mappings: Iterable[Mapping]) -> Table:
    """One row a mapping."""
    table = Table(box=SIMPLE_HEAD)
    for head in ("VM", "DISK", "DRIVE", "NSID", "SIZE", "ISOLATION", "SPARE", "STATE"):
        table.add_column(head, justify="right" if head in ("NSID", "SIZE") else "left")
    for each in mappings:
        steps = f"{each.done} of {len(each.steps)} steps done: vm map {each.vm} --resume"
        state = ("made" if each.created else "adopted") if each.complete else f"{each.purpose}: {steps}"
        cells = (
            each.vm,
            each.target or "-",
            f"{each.drive}, {each.controller}",
            str(each.nsid or "(new)"),
            format_bytes_exact(each.size_bytes),
            each.placement.isolation,
            spare_text(each),
            state,
        )
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table
