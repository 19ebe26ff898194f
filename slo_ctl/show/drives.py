"""Drives on a terminal and as JSON: NVMe drives with what they isolate, and emulated devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from slo_ctl.base import numbers
from slo_ctl.base.text import counted, printable
from slo_ctl.show.terminal import print_facts, print_line, print_rows

if TYPE_CHECKING:
    from rich.console import Console

    from ftl_emul import Config
    from slo_ctl.drives.record import DeviceRecord, DiskRecord, SsdRecord
    from slo_ctl.drives.status import DriveStatus, NamespaceStatus
    from slo_ctl.model.nvme import DriveOps, EnduranceGroup, NvmeDevice, NvmeNamespace, OfferedPlacement

_MULTIPATH = "the kernel's multipath: its disks have no I/O scheduler, and io.cost refuses them"
_EMULATED = " (EMULATED by QEMU)"


def nvme_json(device: NvmeDevice, offered: OfferedPlacement, tool: str) -> dict[str, Any]:
    """One JSON object; sizes in bytes, unknown values are null. `tool` is the version of nvme-cli."""
    controller = device.controller
    return {
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
        "ops": _ops_json(device.ops),
        "notes": list(device.notes),
    }


def _ops_json(ops: DriveOps | None) -> dict[str, Any] | None:
    """The fields without the time of the reading."""
    return None if ops is None else {name: each for name, each in asdict(ops).items() if name != "at_s"}


def print_nvme(console: Console, device: NvmeDevice, offered: OfferedPlacement, tool: str) -> None:
    """Properties, namespaces, endurance groups and NVM sets of an NVMe drive."""
    controller = device.controller
    by = f" by {offered.by}" if offered.by else ""
    facts = {
        "drive": f"/dev/{controller.name}{_EMULATED if controller.emulated else ''}: {controller.model}, "
        f"serial {controller.serial}, firmware {controller.firmware}",
        "attached by": " ".join(each for each in (controller.transport, controller.address) if each)
        + (f"; {_MULTIPATH}" if controller.multipath else ""),
        "subsystem": controller.subsystem_nqn,
        "capacity": f"{numbers.size(controller.total_bytes)}, "
        f"{numbers.size(controller.unallocated_bytes)} unallocated",
        "management": _management_text(device),
        "offers": f"{offered.isolation}{by}: {offered.why}",
        "isolates": offered.isolates,
        "shares": offered.shares,
        "OCP log": "yes (C0h)" if device.ocp else "no",
        "read with": f"nvme-cli {tool}",
    }
    print_facts(console, facts)
    if device.namespaces:
        _print_namespaces(console, device.namespaces)
    for group in device.groups:
        print_line(console, _group_text(group))
    for each in device.sets:
        text = f"NVM set {each.id}: {numbers.size(each.total_bytes)}, "
        text += (
            f"{numbers.size(each.unallocated_bytes)} unallocated, in endurance group {each.endurance_group}"
        )
        print_line(console, text)


def _management_text(device: NvmeDevice) -> str:
    controller = device.controller
    if not controller.namespace_management:
        return "namespaces cannot be created or attached (oacs bit 3 is 0)"
    claim = "claims to create and attach namespaces (oacs bit 3)"
    return f"{claim}; QEMU only attaches" if controller.emulated else claim


def _print_namespaces(console: Console, namespaces: tuple[NvmeNamespace, ...]) -> None:
    headings = ("NSID", "BLOCK DEVICE", "SIZE", "CAPACITY", "USED", "LBA", "GROUP", "SET", "HANDLES")
    rows = [
        (
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
        for each in namespaces
    ]
    print_rows(console, headings, rows, left=("BLOCK DEVICE",))


def _group_text(group: EnduranceGroup) -> str:
    parts = [f"endurance group {group.id}"]
    if group.total_bytes is not None:
        parts.append(
            f"{numbers.size(group.total_bytes)}, {numbers.size(group.unallocated_bytes)} unallocated"
        )
    if group.fdp_configs:
        parts.append("FDP enabled" if group.fdp_enabled else "FDP not enabled")
    parts += [
        f"configuration {config.index} with {config.handles} handles in "
        f"{counted(config.reclaim_groups, 'reclaim group')}, "
        f"reclaim units of {numbers.size(config.reclaim_unit_bytes)}"
        for config in group.fdp_configs
    ]
    if group.handles_in_use is not None:
        parts.append(f"{group.handles_in_use} handles in use")
    return f"{parts[0]}: {'; '.join(parts[1:]) or 'capacity not reported'}"


def _or_dash(number: int | None) -> str:
    return numbers.UNKNOWN if number is None else str(number)


_MERGES = {"SWITCH": "switch_merges", "PARTIAL": "partial_merges", "FULL MERGES": "full_merges"}
_MAP = {"MAP READS": "map_reads", "MAP WRITES": "map_writes"}


def _mapping_counters(record: DeviceRecord) -> dict[str, str]:
    """Headings and counters of the mapping of an SSD."""
    from slo_ctl.drives.record import SsdRecord

    if not isinstance(record, SsdRecord):
        return {}
    if record.drive.merges:
        return _MERGES
    return _MAP if record.drive.mapping == "dftl" else {}


def print_devices(console: Console, devices: Sequence[DriveStatus]) -> None:
    """A row for each emulated device."""
    texts = ("DEVICE", "KIND", "SERVED", "NAMESPACES", "SPEC")
    rows = [
        (
            device.name,
            "EMULATED",
            ("not responding" if device.problem else "yes") if device.served else "no",
            numbers.size(device.size_bytes),
            numbers.size(sum(namespace.allocated_bytes for namespace in device.namespaces)),
            ", ".join(namespace.name for namespace in device.namespaces),
            _properties(device.record.spec),
        )
        for device in devices
    ]
    headings = ("DEVICE", "KIND", "SERVED", "SIZE", "ON DISK", "NAMESPACES", "SPEC")
    print_rows(console, headings, rows, left=texts, folded=("NAMESPACES", "SPEC"))


def _properties(spec: str) -> str:
    """The specification of a device without the keys that other columns show."""
    pairs = [pair for pair in spec.split(",") if pair.partition("=")[0] not in ("name", "size")]
    return ",".join(pairs)


def print_device(console: Console, device: DriveStatus, root_option: str) -> None:
    """Properties and namespaces of an emulated device. `root_option` is appended to commands in hints."""
    from slo_ctl.drives.record import DiskRecord, SsdRecord

    record = device.record
    facts = {
        "device": f"{device.name} (EMULATED {'SSD' if record.kind == 'ssd' else 'hard disk'})",
        "served": _served_text(device, root_option),
        "spec": record.spec,
    }
    if isinstance(record, SsdRecord):
        facts |= _flash_facts(device, record, root_option)
    elif isinstance(record, DiskRecord):
        facts |= _disk_facts(device, record)
    facts |= {"folder": device.folder, "control": device.control_socket}
    print_facts(console, facts)
    _print_emulated_namespaces(console, device)
    if device.statistics and device.preconditioned:
        text = "LIFETIME WAF counts preconditioning too; `slo-ctl status` has the WAF of the last seconds"
        print_line(console, text)
    namespaces = (device.statistics or {}).get("namespaces", ())
    if any(each.get("space", {}).get("isolated") for each in namespaces):
        text = "OPS BLOCKS counts blocks that GC keeps free too; `slo-ctl status` leaves them out"
        print_line(console, text)
    for counters in namespaces:
        if counters.get("reason"):
            print_line(console, f"{counters['name']}: {counters['reason']}", style="bold red")
    # Without line breaks of our own, so that addresses can be copied and pasted.
    for namespace in device.namespaces:
        console.print(Text(f"{namespace.name}: {printable(namespace.uri)}"), soft_wrap=True)
    if nvme := (device.statistics or {}).get("nvme_tcp"):
        from slo_ctl.drives.status import nvme_text

        console.print(Text(printable(nvme_text(nvme))), soft_wrap=True)


def _flash_facts(device: DriveStatus, record: SsdRecord, root_option: str) -> dict[str, str]:
    drive = record.drive
    return {
        "size": f"{numbers.size(device.size_bytes)} logical{_unallocated_text(device)}, "
        f"{numbers.size(device.physical_bytes)} of flash",
        "mapping": _mapping_text(drive),
        "flash": f"{drive.dies} dies on {drive.channels} channels, pages of "
        f"{numbers.size(drive.page_bytes)}, {drive.pages_per_block} in a block",
        "latencies": f"read {_us(drive.read_ns)}, program {_us(drive.program_ns)}, "
        f"erase {_us(drive.erase_ns)}, transfer {_us(drive.transfer_ns)}"
        + (f", suspend {_us(drive.suspend_ns)}" if drive.suspend_ns else ""),
        "placement": "separate blocks for each namespace" if record.isolated else "shared blocks",
        "preconditioned": _preconditioned_text(device, root_option),
    }


def _unallocated_text(device: DriveStatus) -> str:
    free = device.unallocated_bytes
    return f" and {numbers.size(free)} unallocated" if free else ""


def _mapping_text(drive: Config) -> str:
    from ftl_emul import mappings

    text = f"{drive.mapping}: {dict(mappings()).get(drive.mapping, 'unknown')}"
    if drive.cluster_dies > 1:
        block_bytes = drive.page_bytes * drive.block_pages
        text += f"; blocks of {numbers.size(block_bytes)}, each over {drive.cluster_dies} dies"
    if drive.cached_entries is not None:
        text += f"; {numbers.count(drive.cached_entries)} entries cached"
    return text


def _disk_facts(device: DriveStatus, record: DiskRecord) -> dict[str, str]:
    array, disk = record.array, record.disk
    raid = f"RAID-0 of {array.disks}, stripes of {numbers.size(array.stripe_bytes)}; each "
    seeks = " / ".join(_us(time_ns) for time_ns in (disk.seek_min_ns, disk.seek_average_ns, disk.seek_max_ns))
    rates = " to ".join(f"{rate / 1e6:g}" for rate in (disk.outer_bytes_s, disk.inner_bytes_s))
    cache = numbers.size(disk.write_cache_bytes) if disk.write_cache_bytes else "off"
    return {
        "size": f"{numbers.size(device.size_bytes)} of {numbers.size(device.physical_bytes)}, outside in",
        "disks": (raid if array.disks > 1 else "")
        + f"{60e9 / disk.rotation_ns:.0f}/min, {rates} MB/s, write cache {cache}",
        "seeks": f"{seeks} (track to track, average, full stroke)",
        "scheduler": str((device.statistics or {}).get("scheduler", array.scheduler)),
    }


def _preconditioned_text(device: DriveStatus, root_option: str) -> str:
    preconditioned = device.preconditioned
    if preconditioned is None:
        return f"no (slo-ctl device precondition {device.name}{root_option}, while it is not served)"
    date = datetime.fromtimestamp(preconditioned.at_s, UTC).date().isoformat()
    state = "steady state" if preconditioned.settled else "not settled"
    waf = numbers.decimal(preconditioned.waf)
    return f"{state}, WAF {waf} after {preconditioned.drive_writes:.1f} drive writes ({date})"


def _served_text(device: DriveStatus, root_option: str) -> str:
    if not device.served:
        return f"no (slo-ctl device serve {device.name}{root_option})"
    if device.statistics is None:
        return f"yes, but its server does not respond: {device.problem}"
    if device.statistics["latency"] == "real":
        return f"yes, with modelled latency x {device.statistics['time_scale']:g}"
    return "yes, without modelled latency"


def _print_emulated_namespaces(console: Console, device: DriveStatus) -> None:
    counters = {each["name"]: each for each in (device.statistics or {}).get("namespaces", ())}
    ssd = device.record.kind == "ssd"
    headings = ["NAMESPACE", "SIZE", "ON DISK", "WEIGHT", "MAX IOPS"] + (["OPS BLOCKS"] if ssd else [])
    extra = _mapping_counters(device.record)
    activity = ["READS", "WRITES"] + (["LIFETIME WAF", *extra] if ssd else []) if counters else []
    rows = []
    for namespace in device.namespaces:
        namespace_counters = counters.get(namespace.name)
        cells = _namespace_cells(namespace, namespace_counters or {})[: len(headings)]
        cells += _activity_cells(namespace_counters, tuple(extra.values())) if namespace_counters else ()
        unknown = len(headings) + len(activity) - len(cells)
        rows.append((*cells, *[numbers.UNKNOWN] * unknown))
    print_rows(console, headings + activity, rows, left=("NAMESPACE",))


def _namespace_cells(namespace: NamespaceStatus, counters: Mapping[str, Any]) -> tuple[str, ...]:
    # While blocks are being moved, the setting of the namespace is their final number.
    ops_blocks = counters.get("space", {}).get("ops_blocks", namespace.ops_blocks)
    return (
        namespace.name,
        numbers.size(namespace.size_bytes),
        numbers.size(namespace.allocated_bytes),
        numbers.weight(float(f"{namespace.weight:.3g}")),
        numbers.count(namespace.limit_iops),
        numbers.count(ops_blocks),
    )


def _activity_cells(counters: dict[str, Any], extra: tuple[str, ...]) -> tuple[str, ...]:
    counts = (
        numbers.count(counters["answered"]["reads"]["requests"]),
        numbers.count(counters["answered"]["writes"]["requests"]),
    )
    if "flash" not in counters:
        return counts
    host, moved = counters["flash"]["host_page_writes"], counters["flash"]["gc_page_writes"]
    waf = numbers.decimal((host + moved) / host if host else None)
    return (*counts, waf, *(numbers.count(counters["flash"].get(counter)) for counter in extra))


def _us(nanoseconds: int) -> str:
    return numbers.latency(nanoseconds / 1000)
