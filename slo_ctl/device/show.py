"""Devices on a terminal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ftl_emul import LEAST_LOG_BLOCKS, mappings
from slo_ctl.show import numbers
from slo_ctl.show.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from slo_ctl.device.status import DeviceStatus, NamespaceStatus


_MERGES = {"SWITCH": "switch_merges", "PARTIAL": "partial_merges", "FULL MERGES": "full_merges"}
_OF_MAPPING = {
    **dict.fromkeys(LEAST_LOG_BLOCKS, _MERGES),
    "dftl": {"MAP READS": "map_reads", "MAP WRITES": "map_writes"},
}
"""Headings and counters that a mapping has beside the WAF."""


def device_table(devices: Sequence[DeviceStatus]) -> Table:
    """A line for each device."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("DEVICE", "KIND", "SERVED", "SIZE", "ON DISK", "NAMESPACES", "MADE FROM"):
        table.add_column(heading, justify="right" if heading in ("SIZE", "ON DISK") else "left")
    for device in devices:
        table.add_row(
            device.name,
            "EMULATED",
            "yes" if device.served else "no",
            numbers.size(device.size_bytes),
            numbers.size(sum(namespace.allocated_bytes for namespace in device.namespaces)),
            ", ".join(namespace.name for namespace in device.namespaces),
            printable(device.spec),
        )
    return table


def print_device(console: Console, device: DeviceStatus) -> None:
    """Everything about one device."""
    facts = {
        "device": f"{device.name} (EMULATED {'SSD' if device.kind == 'ssd' else 'hard disk'})",
        "served": _served(device),
        "made from": device.spec,
        **(_disk_facts(device) if device.disk else _flash_facts(device)),
        "folder": device.folder,
        "control": device.control_socket,
    }
    width = max(map(len, facts))
    for name, fact in facts.items():
        console.print(Text(f"{name:<{width}}  {printable(str(fact))}"), soft_wrap=True)
    console.print(_namespaces(device))
    for told in (device.statistics or {}).get("namespaces", ()):
        if told.get("reason"):
            console.print(Text(f"{told['name']}: {printable(told['reason'])}", "bold red"), soft_wrap=True)
    for namespace in device.namespaces:
        console.print(Text(f"{namespace.name}: {printable(namespace.uri)}"), soft_wrap=True)


def _flash_facts(device: DeviceStatus) -> dict[str, str]:
    geometry, timing, mapping = device.geometry or {}, device.timing or {}, device.mapping or {}
    dies = geometry["channels"] * geometry["dies_per_channel"]
    return {
        "size": f"{numbers.size(device.size_bytes)} logical, {numbers.size(device.physical_bytes)} of flash",
        "mapping": _mapping(geometry, mapping),
        "flash": f"{dies} dies on {geometry['channels']} channels, pages of "
        f"{numbers.size(geometry['page_bytes'])}, {geometry['pages_per_block']} in a block",
        "latencies": f"read {_us(timing['read_ns'])}, program {_us(timing['program_ns'])}, "
        f"erase {_us(timing['erase_ns'])}, transfer {_us(timing['transfer_ns'])}",
        "placement": "blocks of its own for each namespace" if mapping["isolated"] else "shared blocks",
        "aged": _aged(device),
    }


def _mapping(geometry: dict[str, int], mapping: dict[str, Any]) -> str:
    told = f"{mapping['kind']}: {dict(mappings()).get(mapping['kind'], 'not known here')}"
    if mapping["cluster_dies"] > 1:
        block_bytes = geometry["page_bytes"] * geometry["pages_per_block"] * mapping["cluster_dies"]
        told += f"; blocks of {numbers.size(block_bytes)}, each over {mapping['cluster_dies']} dies"
    if mapping["cached_entries"] is not None:
        told += f"; {numbers.count(mapping['cached_entries'])} entries cached"
    return told


def _disk_facts(device: DeviceStatus) -> dict[str, str]:
    array, disk = device.array or {}, device.disk or {}
    raid = f"RAID-0 of {array['disks']}, stripes of {numbers.size(array['stripe_bytes'])}; each "
    seeks = " / ".join(_us(disk[f"seek_{which}_ns"]) for which in ("min", "average", "max"))
    rates = " to ".join(f"{disk[f'{where}_bytes_s'] / 1e6:g}" for where in ("outer", "inner"))
    cache = numbers.size(disk["write_cache_bytes"]) if disk["write_cache_bytes"] else "off"
    return {
        "size": f"{numbers.size(device.size_bytes)} of {numbers.size(device.physical_bytes)}, outside in",
        "disks": (raid if array["disks"] > 1 else "")
        + f"{60e9 / disk['rotation_ns']:.0f}/min, {rates} MB/s, write cache {cache}",
        "seeks": f"{seeks} (track to track, average, full stroke)",
        "scheduler": str((device.statistics or {}).get("scheduler", array["scheduler"])),
    }


def _aged(device: DeviceStatus) -> str:
    aged = device.aged
    if aged is None:
        return f"no; `slo-ctl device age {device.name}` does, while it is not served"
    when = datetime.fromtimestamp(aged.at_s, UTC).date().isoformat()
    how = "steady state" if aged.settled else "not settled yet"
    return f"{how}, WAF {numbers.decimal(aged.waf)} after {aged.drive_writes:.1f} drive writes ({when})"


def _served(device: DeviceStatus) -> str:
    if not device.served:
        return f"no; `slo-ctl device serve {device.name}` does"
    if device.statistics is None:
        return f"yes, but it does not tell: {device.problem}"
    if device.statistics["latency"] == "real":
        return f"yes, with modelled latency x {device.statistics['time_scale']:g}"
    return "yes, without modelled latency"


def _namespaces(device: DeviceStatus) -> Table:
    told = {each["name"]: each for each in (device.statistics or {}).get("namespaces", ())}
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    ssd = device.kind == "ssd"
    headings = ["NAMESPACE", "SIZE", "ON DISK", "WEIGHT", "MAX IOPS"] + (["OPS BLOCKS"] if ssd else [])
    extra = _OF_MAPPING.get((device.mapping or {}).get("kind", ""), {})
    activity = ["READS", "WRITES"] + (["WAF", *extra] if ssd else [])
    for heading in headings + (activity if told else []):
        table.add_column(heading, justify="left" if heading == "NAMESPACE" else "right")
    for namespace in device.namespaces:
        table.add_row(
            *_row(namespace)[: len(headings)],
            *(_activity(told[namespace.name], tuple(extra.values())) if namespace.name in told else ()),
        )
    return table


def _row(namespace: NamespaceStatus) -> tuple[str, ...]:
    return (
        namespace.name,
        numbers.size(namespace.size_bytes),
        numbers.size(namespace.allocated_bytes),
        numbers.weight(namespace.weight),
        numbers.count(namespace.limit_iops),
        numbers.count(namespace.ops_blocks),
    )


def _activity(told: dict[str, Any], extra: tuple[str, ...]) -> tuple[str, ...]:
    counts = (
        numbers.count(told["answered"]["reads"]["requests"]),
        numbers.count(told["answered"]["writes"]["requests"]),
    )
    if "flash" not in told:
        return counts
    host, moved = told["flash"]["host_page_writes"], told["flash"]["gc_page_writes"]
    waf = numbers.decimal((host + moved) / host if host else None)
    return (*counts, waf, *(numbers.count(told["flash"].get(counter)) for counter in extra))


def _us(nanoseconds: int) -> str:
    return numbers.latency(nanoseconds / 1000)
