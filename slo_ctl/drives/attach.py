"""Namespaces of emulated SSDs as disks of libvirt's VMs: which one, its XML, who uses which."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from xml.etree import ElementTree

from slo_ctl.base.accounts import group_name, groups_of, user_name
from slo_ctl.base.errors import UnreachableError, UserError
from slo_ctl.base.keyvalue import did_you_mean
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.drives.places import Places, RunPlaces
from slo_ctl.drives.status import DriveStatus, NamespaceStatus
from slo_ctl.host.libvirt import DomainXmlError, parse_domain
from slo_ctl.host.processes import connections, tcp_connections
from slo_ctl.model import Tenant

_RECONNECT_DELAY_S = 60
"""For so long the guest waits for a server that is gone, instead of seeing I/O errors."""

_RECONNECT_INTERVAL_S = 1
"""Over vhost-user it tries again after so long, as often as it takes."""

SHARED_MEMORY_XML = "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>"

VHOST_USER = "vhost-user"
"""The bus of disks whose server shares memory with the VM; virtio to the guest."""
_BUSES = {"virtio": "vd", VHOST_USER: "vd", "scsi": "sd", "sata": "sd", "usb": "sd", "ide": "hd"}
"""Buses, and what names of disks on them begin with."""

_TARGET = re.compile(r"(?P<prefix>vd|sd|hd)[a-z]{1,2}")
_BUS_OF = {"vd": "virtio", "sd": "scsi", "hd": "ide"}


@dataclass(frozen=True, slots=True)
class Credentials:
    """User and groups of a process."""

    user: int
    groups: frozenset[int]


def split_device(text: str) -> tuple[str, str | None]:
    """`DEVICE` or `DEVICE/NAMESPACE`."""
    device, slash, namespace = text.partition("/")
    if slash and not namespace:
        raise UserError(f"{text}: no namespace after the slash", "write DEVICE or DEVICE/NAMESPACE")
    return device, namespace or None


def disk_xml(socket: Path | str, namespace: str, target: str, bus: str) -> str:
    """libvirt's XML of a disk: a namespace behind its Unix socket, of NBD or, on that bus, vhost-user."""
    if bus == VHOST_USER:
        disk = ElementTree.Element("disk", type="vhostuser", device="disk")
        ElementTree.SubElement(disk, "driver", name="qemu", type="raw")
        source = ElementTree.SubElement(disk, "source", type="unix", path=str(socket))
        ElementTree.SubElement(source, "reconnect", enabled="yes", timeout=str(_RECONNECT_INTERVAL_S))
        ElementTree.SubElement(disk, "target", dev=target, bus="virtio")
        ElementTree.indent(disk)
        return ElementTree.tostring(disk, encoding="unicode")
    disk = ElementTree.Element("disk", type="network", device="disk")
    ElementTree.SubElement(
        disk, "driver", name="qemu", type="raw", cache="none", discard="unmap", detect_zeroes="unmap"
    )
    source = ElementTree.SubElement(disk, "source", protocol="nbd", name=namespace)
    ElementTree.SubElement(source, "host", transport="unix", socket=str(socket))
    ElementTree.SubElement(source, "reconnect", delay=str(_RECONNECT_DELAY_S))
    ElementTree.SubElement(disk, "target", dev=target, bus=bus)
    ElementTree.indent(disk)
    return ElementTree.tostring(disk, encoding="unicode")


def disk_at(domain_xml: str, target: str) -> ElementTree.Element | None:
    """The disk of that name. Raises UserError for XML that is not a domain's."""
    return next((disk for disk in _disks(domain_xml) if _target(disk) == target), None)


def tenant_of(disk: ElementTree.Element, places: Places) -> Tenant | None:
    """The namespace of a disk; None for a disk that is not on an emulated drive."""
    source = disk.find("source")
    if source is not None and disk.get("type") == "vhostuser":
        match _below(places.run, source.get("path", "")):
            case [device, "vhost-user", socket] if socket.endswith(".sock"):
                return Tenant(device, socket.removesuffix(".sock"))
        return None
    host = source.find("host") if source is not None else None
    if source is None or host is None or disk.get("type") != "network":
        return None
    if source.get("protocol") != "nbd" or host.get("transport") != "unix":
        return None
    name = source.get("name", "")
    match _below(places.run, host.get("socket", "")):
        case [device, "all.sock"]:
            return Tenant(device, name)
        case [device, "exports", socket] if socket == f"{name}.sock":
            return Tenant(device, name)
    return None


def _below(folder: Path, path: str) -> list[str]:
    """The parts of a path below a directory; none for other paths."""
    try:
        return list(Path(os.path.normpath(path)).relative_to(folder).parts)
    except ValueError:
        return []


def check_shared_memory(vm: str, domain_xml: str) -> None:
    """Raise UserError for a VM whose memory no other process can have, as vhost-user needs."""
    try:
        backing = parse_domain(domain_xml).find("memoryBacking")
    except DomainXmlError as error:
        raise UserError(f"VM {vm}: libvirt's XML cannot be read: {error}", "see `virsh dumpxml`") from None
    source = None if backing is None else backing.find("source")
    access = None if backing is None else backing.find("access")
    kind = None if source is None else source.get("type")
    if kind == "memfd" and access is not None and access.get("mode") == "shared":
        return
    why = (
        f"its memory has <source type='{kind}'/>, which can be truncated while the server uses it"
        if kind not in (None, "memfd")
        else "the VM has no shared memory"
    )
    raise UserError(
        f"VM {vm} cannot have disks over vhost-user: {why}",
        f"`virsh edit {vm}`: below <domain> add {SHARED_MEMORY_XML}; then shut it down and start it, or use "
        "--bus virtio",
    )


def users_of(domains: Iterable[tuple[str, str]], places: Places) -> dict[Tenant, str]:
    """Who uses which namespace, as `VM (DISK)`, given names and XML of domains."""
    users: dict[Tenant, str] = {}
    for name, xml in domains:
        for disk in _disks(xml):
            tenant = tenant_of(disk, places)
            if tenant is not None:
                users.setdefault(tenant, f"{name} ({_target(disk)})")
    return users


def clients_of(run: RunPlaces, namespace: str) -> int:
    """Connections to the sockets of a namespace, of NBD and vhost-user; 0 where the kernel does not say."""
    return _connected((run.export(namespace), run.vhost_user_socket(namespace)))


def clients_of_device(run: RunPlaces, device: DriveStatus) -> int:
    """Connections that may be for any namespace of the device: to `all.sock`, and of NVMe hosts."""
    nvme = (device.statistics or {}).get("nvme_tcp")
    _, _, port = nvme["address"].rpartition(":") if nvme else ("", "", "")
    return _connected((run.all_exports,)) + (tcp_connections(int(port)) if port.isdecimal() else 0)


def _connected(paths: Iterable[Path]) -> int:
    sockets = {os.fsencode(name) for path in paths for name in (path, os.path.realpath(path))}
    try:
        return len(connections(lambda path: path in sockets))
    except OSError:
        return 0


def choose_target(domain_xmls: Iterable[str], target: str | None, bus: str | None) -> tuple[str, str]:
    """Name and bus of a new disk, by default the next free one on virtio.

    `domain_xmls` are the VM as it runs and as it is defined. Raises UserError when the name is taken or none.
    """
    taken = {_target(disk) for xml in domain_xmls for disk in _disks(xml)}
    if bus is not None and bus not in _BUSES:
        raise UserError(f"--bus: {bus} is not known", did_you_mean(bus, _BUSES))
    if target is None:
        bus = bus or "virtio"
        names = (_BUSES[bus] + first + last for first in ("", *ascii_lowercase) for last in ascii_lowercase)
        free = next((name for name in names if name not in taken), None)
        if free is None:
            raise UserError("the VM has no free name for a disk on this bus", "choose another with --bus")
        return free, bus
    match = _TARGET.fullmatch(target)
    if match is None:
        raise UserError(f"--target: {target} is not the name of a disk", "write one such as vdb or sda")
    if target in taken:
        raise UserError(
            f"--target: the VM has a disk {target} already", "leave --target out to have the next free one"
        )
    return target, bus or _BUS_OF[match["prefix"]]


def choose_namespace(
    device: DriveStatus, namespace: str | None, size_bytes: int | None, users: Mapping[Tenant, str]
) -> NamespaceStatus:
    """The namespace of that name; or else the smallest unused one of at least that size.

    Without either, the only one that is free. Raises UserError that lists them all.
    """
    listed = _listed(device, users)
    free = [each for each in device.namespaces if Tenant(device.name, each.name) not in users]
    if namespace is not None:
        found = next((each for each in device.namespaces if each.name == namespace), None)
        if found is None:
            hint = did_you_mean(namespace, (each.name for each in device.namespaces), listed)
            raise UserError(f"device {device.name} has no namespace {namespace}", hint)
        if found not in free:
            raise UserError(
                f"namespace {device.name}/{namespace} is used by VM {users[Tenant(device.name, namespace)]}",
                "detach it there, or choose another; two VMs on one disk corrupt its data",
            )
        if size_bytes is not None and found.size_bytes < size_bytes:
            raise UserError(
                f"namespace {device.name}/{namespace} has {format_bytes_exact(found.size_bytes)}, less than "
                f"--size {format_bytes_exact(size_bytes)}",
                listed,
            )
        return found
    fitting = [each for each in free if each.size_bytes >= (size_bytes or 0)]
    if not fitting:
        size = f" of {format_bytes_exact(size_bytes)} or more" if size_bytes else ""
        raise UserError(
            f"device {device.name} has no free namespace{size}",
            f"{listed}; add one with `slo-ctl device add`",
        )
    if size_bytes is None and len(fitting) > 1:
        raise UserError(
            f"device {device.name} has {len(fitting)} free namespaces",
            f"name one as {device.name}/{fitting[0].name}, or ask for a --size; {listed}",
        )
    return min(fitting, key=lambda each: (each.size_bytes, each.name))


def qemu_credentials(running_xml: str) -> Credentials | None:
    """Credentials of a VM's QEMU, from its XML while it runs; None when it does not say."""
    try:
        domain = parse_domain(running_xml)
    except DomainXmlError:
        return None
    label = domain.findtext("seclabel[@model='dac']/label", "")
    match = re.fullmatch(r"\+?(\d{1,10}):\+?(\d{1,10})", label.strip())
    return _credentials(int(match[1]), int(match[2])) if match else None


def refused_path(socket: Path, who: Credentials) -> Path | None:
    """The socket, or the directory above it, that keeps `who` from connecting; None when nothing does.

    Raises OSError when it cannot be looked at.
    """
    if who.user == 0:
        return None
    for folder in reversed(socket.parents):
        if not _allowed(folder.stat(), who, stat.S_IXOTH):
            return folder
    return None if _allowed(socket.stat(), who, stat.S_IWOTH) else socket


def check_socket(socket: Path, device: str, who: Credentials | None, again: str) -> None:
    """Raise UserError unless the device is served and QEMU may connect. `again`: more options for `serve`."""
    try:
        if not stat.S_ISSOCK(socket.stat().st_mode):
            raise UserError(f"{socket} is not a socket", f"serve the device: slo-ctl device serve {device}")
        refused = refused_path(socket, who) if who else None
    except FileNotFoundError:
        raise UnreachableError(
            f"device {device} is not being served: {socket} not found",
            f"serve it first: slo-ctl device serve {device}{_group_option(who)}{again}",
        ) from None
    except OSError as error:
        raise UserError(f"{socket}: {error.strerror}", "run as root") from None
    if refused is None or who is None:
        return
    user = user_name(who.user) or f"user {who.user}"
    if refused != socket:
        raise UserError(
            f"QEMU runs as {user}, who may not enter {refused}, the directory of the socket",
            "keep sockets in a directory with mode 0755, see --root",
        )
    raise UserError(
        f"QEMU runs as {user}, who may not use {socket} (group {_group_name(socket)})",
        f"serve with its group: slo-ctl device serve {device}{_group_option(who)}{again}",
    )


def _disks(xml: str) -> list[ElementTree.Element]:
    try:
        return parse_domain(xml).findall("devices/disk")
    except DomainXmlError as error:
        raise UserError(f"a VM of libvirt cannot be read: {error}", "see `virsh dumpxml`") from None


def _target(disk: ElementTree.Element) -> str:
    target = disk.find("target")
    return target.get("dev", "") if target is not None else ""


def _listed(device: DriveStatus, users: Mapping[Tenant, str]) -> str:
    """`vm1 2GiB used by web (vdb), vm2 1GiB free`."""
    parts = [
        f"{each.name} {format_bytes_exact(each.size_bytes)} "
        + (f"used by {user}" if (user := users.get(Tenant(device.name, each.name))) else "free")
        for each in device.namespaces[:20]
    ]
    more = len(device.namespaces) - len(parts)
    return f"{device.name} has {', '.join(parts)}" + (f" and {more} more" if more else "")


def _credentials(user: int, group: int) -> Credentials:
    return Credentials(user, groups_of(user, group))


def _allowed(status: os.stat_result, who: Credentials, other_bit: int) -> bool:
    """The kernel's rule: the first of owner, group and others that fits decides."""
    if status.st_uid == who.user:
        return bool(status.st_mode & other_bit << 6)
    if status.st_gid in who.groups:
        return bool(status.st_mode & other_bit << 3)
    return bool(status.st_mode & other_bit)


def _group_name(socket: Path) -> str:
    with suppress(OSError):
        return group_name(socket.stat().st_gid) or "unknown"
    return "unknown"


def _group_option(who: Credentials | None) -> str:
    """`--group` with a group of QEMU's user that has a name; the least common one last."""
    names = map(group_name, sorted(who.groups) if who else ())
    return next((f" --group {name}" for name in names if name is not None), "")
