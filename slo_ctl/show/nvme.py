"""An NVMe drive on a terminal and as JSON: what it has, and what that does and does not isolate."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from slo_ctl.show import numbers
from slo_ctl.show.text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from slo_ctl.model.nvme import EnduranceGroup, NvmeDevice, NvmeNamespace, OfferedPlacement

FORMAT_VERSION = 1
MULTIPATH = "the kernel's multipath: its disks have no I/O scheduler, and io.cost refuses them"
_EMULATED = " (EMULATED by QEMU)"


def nvme_json(device: NvmeDevice, offered: OfferedPlacement, tool: str) -> dict[str, Any]:
    """All of it; sizes in bytes, what is not known is null. `tool` is nvme-cli's version."""
    controller = device.controller
    return {
        "format_version": FORMAT_VERSION,
        "kind": "nvme",
        "nvme_cli": tool,
        "controller": asdict(controller)
        | {
            "emulated": controller.emulated,
            "namespace_management": controller.namespace_management,
            "nvm_sets": controller.nvm_sets,
            "endurance_groups": controller.endurance_groups,
            "capacity_management": controller.capacity_management,
            "fdp": controller.fdp,
        },
        "offers": asdict(offered),
        "namespaces": [
            asdict(each) | {"size_bytes": each.size_bytes, "capacity_bytes": each.capacity_bytes}
            for each in device.namespaces
        ],
        "endurance_groups": [asdict(each) for each in device.groups],
        "nvm_sets": [asdict(each) for each in device.sets],
        "ocp": device.ocp,
        "notes": list(device.notes),
    }


def print_nvme(console: Console, device: NvmeDevice, offered: OfferedPlacement, tool: str) -> None:
    """Everything about one drive."""
    controller = device.controller
    by = f" by {offered.by}" if offered.by else ""
    facts = {
        "drive": f"/dev/{controller.name}{_EMULATED if controller.emulated else ''}: {controller.model}, "
        f"serial {controller.serial}, firmware {controller.firmware}",
        "attached by": " ".join(each for each in (controller.transport, controller.address) if each)
        + (f"; {MULTIPATH}" if controller.multipath else ""),
        "subsystem": controller.subsystem_nqn,
        "capacity": f"{numbers.size(controller.total_bytes)}, "
        f"{numbers.size(controller.unallocated_bytes)} unallocated",
        "management": _management(device),
        "offers": f"{offered.isolation}{by}: {offered.why}",
        "isolates": offered.isolates,
        "shares": offered.shares,
        "OCP log": "yes (C0h)" if device.ocp else "no",
        "read with": f"nvme-cli {tool}",
    }
    width = max(map(len, facts))
    for name, fact in facts.items():
        if fact:
            console.print(Text(f"{name:<{width}}  {printable(fact)}"), soft_wrap=True)
    if device.namespaces:
        console.print(_namespaces(device.namespaces))
    for group in device.groups:
        console.print(Text(printable(_group(group))), soft_wrap=True)
    for each in device.sets:
        text = f"NVM set {each.id}: {numbers.size(each.total_bytes)}, "
        text += (
            f"{numbers.size(each.unallocated_bytes)} unallocated, in endurance group {each.endurance_group}"
        )
        console.print(Text(text), soft_wrap=True)


def _management(device: NvmeDevice) -> str:
    controller = device.controller
    if not controller.namespace_management:
        return "no namespaces can be created or attached (oacs bit 3 is 0)"
    claim = "claims to create and attach namespaces (oacs bit 3)"
    return f"{claim}; QEMU only attaches" if controller.emulated else claim


def _namespaces(namespaces: tuple[NvmeNamespace, ...]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("NSID", "BLOCK DEVICE", "SIZE", "CAPACITY", "USED", "LBA", "GROUP", "SET", "HANDLES"):
        table.add_column(heading, justify="left" if heading == "BLOCK DEVICE" else "right")
    for each in namespaces:
        table.add_row(
            str(each.nsid),
            f"/dev/{each.name}" if each.name else "detached" if not each.attached else numbers.UNKNOWN,
            numbers.size(each.size_bytes),
            numbers.size(each.capacity_bytes),
            numbers.size(each.used_blocks * each.block_bytes),
            numbers.size(each.block_bytes),
            _or_dash(each.endurance_group),
            _or_dash(each.nvm_set),
            ", ".join(f"{handle.index}:{handle.reclaim_unit_handle}" for handle in each.handles)
            or numbers.UNKNOWN,
        )
    return table


def _group(group: EnduranceGroup) -> str:
    parts = [f"endurance group {group.id}"]
    if group.total_bytes is not None:
        parts.append(
            f"{numbers.size(group.total_bytes)}, {numbers.size(group.unallocated_bytes)} unallocated"
        )
    if group.fdp_configs:
        parts.append("FDP enabled" if group.fdp_enabled else "FDP not enabled")
    parts += [
        f"configuration {config.index} with {config.handles} handles in {config.reclaim_groups} reclaim "
        f"group(s), reclaim units of {numbers.size(config.reclaim_unit_bytes)}"
        for config in group.fdp_configs
    ]
    if group.handles_in_use is not None:
        parts.append(f"{group.handles_in_use} handles in use")
    return f"{parts[0]}: {'; '.join(parts[1:]) or 'capacity not told'}"


def _or_dash(number: int | None) -> str:
    return numbers.UNKNOWN if number is None else str(number)
