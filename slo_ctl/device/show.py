"""Devices on a terminal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from slo_ctl.show import numbers
from slo_ctl.show.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from slo_ctl.device.status import DeviceStatus, NamespaceStatus


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
    geometry, timing = device.geometry, device.timing
    dies = geometry["channels"] * geometry["dies_per_channel"]
    facts = {
        "device": f"{device.name} (EMULATED SSD)",
        "served": _served(device),
        "made from": device.spec,
        "size": f"{numbers.size(device.size_bytes)} logical, {numbers.size(device.physical_bytes)} of flash",
        "flash": f"{dies} dies on {geometry['channels']} channels, pages of "
        f"{numbers.size(geometry['page_bytes'])}, {geometry['pages_per_block']} in a block",
        "latencies": f"read {_us(timing['read_ns'])}, program {_us(timing['program_ns'])}, "
        f"erase {_us(timing['erase_ns'])}, transfer {_us(timing['transfer_ns'])}",
        "placement": "blocks of its own for each namespace"
        if device.mapping["isolated"]
        else "shared blocks",
        "aged": _aged(device),
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
    headings = ["NAMESPACE", "SIZE", "ON DISK", "WEIGHT", "MAX IOPS", "OPS BLOCKS"]
    for heading in headings + (["READS", "WRITES", "WAF"] if told else []):
        table.add_column(heading, justify="left" if heading == "NAMESPACE" else "right")
    for namespace in device.namespaces:
        table.add_row(*_row(namespace), *(_activity(told[namespace.name]) if namespace.name in told else ()))
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


def _activity(told: dict[str, Any]) -> tuple[str, ...]:
    host, moved = told["flash"]["host_page_writes"], told["flash"]["gc_page_writes"]
    return (
        numbers.count(told["answered"]["reads"]["requests"]),
        numbers.count(told["answered"]["writes"]["requests"]),
        numbers.decimal((host + moved) / host if host else None),
    )


def _us(nanoseconds: int) -> str:
    return numbers.latency(nanoseconds / 1000)
