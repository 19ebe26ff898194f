"""Disks of a libvirt domain, from its XML."""

from __future__ import annotations

from xml.etree import ElementTree

from slo_ctl.model import Disk

LIMIT_CHARACTERS = 4 << 20
MAX_DISKS = 4096


class DomainXmlError(ValueError):
    """What should describe a domain does not; says why."""


def parse_domain(xml: str) -> ElementTree.Element:
    """The element `domain`. Raises DomainXmlError for text that is no domain's, however hostile."""
    if len(xml) > LIMIT_CHARACTERS:
        raise DomainXmlError("its XML is far larger than a domain's can be")
    if "<!DOCTYPE" in xml:
        # libvirt writes none; entities are all it could be for.
        raise DomainXmlError("its XML has a document type")
    try:
        return ElementTree.fromstring(xml)  # noqa: S314 - no document type, so no entities to expand
    except ElementTree.ParseError as error:
        raise DomainXmlError(f"its XML is broken: {error}") from None


def disks_of(xml: str) -> tuple[Disk, ...]:
    """Every disk, in the guest's order, without the device numbers. Raises DomainXmlError."""
    disks = parse_domain(xml).findall("devices/disk")
    if len(disks) > MAX_DISKS:
        raise DomainXmlError(f"it has more than {MAX_DISKS} disks")
    return tuple(_disk(element) for element in disks)


def _disk(element: ElementTree.Element) -> Disk:
    target, source = element.find("target"), element.find("source")
    kind = element.get("type", "")
    return Disk(
        target=target.get("dev", "") if target is not None else "",
        kind=kind,
        source=None if source is None else _source(kind, source),
    )


def _source(kind: str, source: ElementTree.Element) -> str | None:
    match kind:
        case "network":
            return _network(source)
        case "volume":
            return f"{source.get('pool', '')}/{source.get('volume', '')}"
        case "nvme":
            return _nvme(source)
        case "block":
            return source.get("dev")
        case "dir":
            return source.get("dir")
        case "file":
            return source.get("file")
        case _:  # vhostuser and vhostvdpa name a socket or device; what comes after them may
            return source.get("path") or source.get("dev")


def _network(source: ElementTree.Element) -> str:
    """As the URI that QEMU's tools take."""
    protocol, name = source.get("protocol", ""), source.get("name", "")
    host = source.find("host")
    if host is not None and host.get("transport") == "unix":
        return f"{protocol}+unix:///{name}?socket={host.get('socket', '')}"
    where = ""
    if host is not None:
        port = host.get("port")
        where = host.get("name", "") + (f":{port}" if port else "")
    return f"{protocol}://{where}/{name}"


def _nvme(source: ElementTree.Element) -> str:
    """A controller that the VM's process drives by itself: its PCI address and the namespace."""
    address = source.find("address")
    parts = [address.get(key, "?").removeprefix("0x") for key in _PCI] if address is not None else ["?"] * 4
    return "nvme://{}:{}:{}.{}".format(*parts) + f"/{source.get('namespace', '?')}"


_PCI = ("domain", "bus", "slot", "function")
