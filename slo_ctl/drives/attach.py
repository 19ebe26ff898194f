"""Namespaces of emulated drives as disks of libvirt's VMs: choice, XML, users."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from string import ascii_lowercase
from xml.etree import ElementTree

from slo_ctl.base.accounts import Peer, group_name, groups_of, user_name
from slo_ctl.base.clock import wait_for
from slo_ctl.base.errors import UnreachableError, UserError
from slo_ctl.base.files import hint_for, try_lock
from slo_ctl.base.keyvalue import did_you_mean
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.drives.places import ExportPaths, Places, RunPlaces
from slo_ctl.drives.status import DriveStatus, NamespaceStatus
from slo_ctl.host.libvirt import DomainXmlError, disk_of, parse_domain
from slo_ctl.host.processes import connections, tcp_connections
from slo_ctl.model.host import Tenant

_RECONNECT_DELAY_S = 60
"""How long QEMU waits for a lost NBD server before the guest sees I/O errors."""

_RECONNECT_INTERVAL_S = 1
"""Interval at which QEMU reconnects to a vhost-user server, without limit."""

SHARED_MEMORY_XML = "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>"

VHOST_USER = "vhost-user"
"""Bus of disks whose server shares memory with the VM; virtio for the guest."""
_BUSES = {"virtio": "vd", VHOST_USER: "vd", "scsi": "sd", "sata": "sd", "usb": "sd", "ide": "hd"}
"""Prefixes of disk names, by bus."""

_ATTACH_TIMEOUT_S = 60.0
"""Longest wait for another command on the device; libvirt usually needs less than a second for a disk."""
_LOCK_POLL_S = 0.02

_TARGET = re.compile(r"(?P<prefix>vd|sd|hd)[a-z]{1,2}")
_BUS_OF = {"vd": "virtio", "sd": "scsi", "hd": "ide"}


def split_device(text: str) -> tuple[str, str | None]:
    """Device and namespace of `DEVICE` (namespace None) or `DEVICE/NAMESPACE`. Raises UserError."""
    device, slash, namespace = text.partition("/")
    if slash and not namespace:
        raise UserError(f"{text}: no namespace after the slash", "write DEVICE or DEVICE/NAMESPACE")
    return device, namespace or None


@contextmanager
def one_at_a_time(places: Places, device: str) -> Iterator[None]:
    """Wait for others that choose or remove namespaces of a device, so that no VM gets one in use or removed.

    Its server has the lock of the device, so this one is of its directory. Raises UserError after a timeout.
    """
    try:
        descriptor = os.open(places.device(device), os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        hint = hint_for(error, "run as its owner")
        raise UserError(f"device {device}: {error.strerror}", hint) from None
    try:
        if not wait_for(partial(try_lock, descriptor), _ATTACH_TIMEOUT_S, _LOCK_POLL_S):
            raise UserError(
                "another `slo-ctl vm attach`, `device remove` or `device delete` has been using device "
                f"{device} for {_ATTACH_TIMEOUT_S:g} s",
                "see whether libvirtd still answers: virsh list",
            )
        yield
    finally:
        os.close(descriptor)


def disk_xml(socket: Path | str, namespace: str, target: str, bus: str) -> str:
    """libvirt's XML of a disk on a namespace, over its NBD socket or, for that bus, its vhost-user socket."""
    if bus == VHOST_USER:
        disk = disk_element("vhostuser")
        source = ElementTree.SubElement(disk, "source", type="unix", path=str(socket))
        ElementTree.SubElement(source, "reconnect", enabled="yes", timeout=str(_RECONNECT_INTERVAL_S))
        return disk_text(disk, target, "virtio")
    disk = disk_element("network", cache="none", discard="unmap", detect_zeroes="unmap")
    source = ElementTree.SubElement(disk, "source", protocol="nbd", name=namespace)
    ElementTree.SubElement(source, "host", transport="unix", socket=str(socket))
    ElementTree.SubElement(source, "reconnect", delay=str(_RECONNECT_DELAY_S))
    return disk_text(disk, target, bus)


def disk_element(kind: str, **driver: str) -> ElementTree.Element:
    """libvirt's element of a disk with a source of this type, and QEMU's driver with these attributes."""
    disk = ElementTree.Element("disk", type=kind, device="disk")
    ElementTree.SubElement(disk, "driver", {"name": "qemu", "type": "raw", **driver})
    return disk


def disk_text(disk: ElementTree.Element, target: str, bus: str) -> str:
    """The XML of a disk, to which its target is added."""
    ElementTree.SubElement(disk, "target", dev=target, bus=bus)
    ElementTree.indent(disk)
    return ElementTree.tostring(disk, encoding="unicode")


def disk_at(domain_xml: str, target: str) -> ElementTree.Element | None:
    """The disk with this target; None if there is none. Raises UserError for invalid XML."""
    return next((disk for disk in disks_in(domain_xml) if disk_of(disk).target == target), None)


def tenant_of(disk: ElementTree.Element, places: Places) -> Tenant | None:
    """The namespace behind a disk; None if it is not on an emulated drive."""
    return ExportPaths(places.run).tenant_of_source(disk_of(disk).source)


def check_shared_memory(vm: str, domain_xml: str) -> None:
    """Raise UserError for a VM without shared memory, which vhost-user needs."""
    try:
        backing = parse_domain(domain_xml).find("memoryBacking")
    except DomainXmlError as error:
        raise UserError(f"VM {vm}: libvirt's XML cannot be read: {error}", "see `virsh dumpxml`") from None
    source = None if backing is None else backing.find("source")
    access = None if backing is None else backing.find("access")
    kind = None if source is None else source.get("type")
    if kind == "memfd" and access is not None and access.get("mode") == "shared":
        return
    problem = (
        f"its memory has <source type='{kind}'/>, which can be truncated while the server uses it"
        if kind not in (None, "memfd")
        else "the VM has no shared memory"
    )
    raise UserError(
        f"VM {vm} cannot have disks over vhost-user: {problem}",
        f"`virsh edit {shlex.quote(vm)}`: below <domain> add {SHARED_MEMORY_XML}; then shut it down and "
        "start it, or use --bus virtio",
    )


def disks_on_namespaces(
    domains: Iterable[tuple[str, str]], places: Places
) -> Iterator[tuple[Tenant, str, str]]:
    """Namespace, VM and target of each disk on a namespace; `domains` are names and XML."""
    for name, xml in domains:
        for disk in disks_in(xml):
            tenant = tenant_of(disk, places)
            if tenant is not None:
                yield tenant, name, disk_of(disk).target


def users_of(domains: Iterable[tuple[str, str]], places: Places) -> dict[Tenant, str]:
    """Users of namespaces as `VM (DISK)`; `domains` are names and XML."""
    users: dict[Tenant, str] = {}
    for tenant, vm, target in disks_on_namespaces(domains, places):
        users.setdefault(tenant, f"{vm} ({target})")
    return users


def clients_of(run: RunPlaces, namespace: str) -> int:
    """Number of connections to the NBD and vhost-user sockets of a namespace; 0 if unknown."""
    return _count_connections((run.export(namespace), run.vhost_user_socket(namespace)))


def clients_of_device(run: RunPlaces, device: DriveStatus) -> int:
    """Number of connections that may use any namespace: to `all.sock` and of NVMe hosts."""
    nvme = (device.statistics or {}).get("nvme_tcp")
    _, _, port = nvme["address"].rpartition(":") if nvme else ("", "", "")
    return _count_connections((run.all_exports,)) + (tcp_connections(int(port)) if port.isdecimal() else 0)


def _count_connections(paths: Iterable[Path]) -> int:
    sockets = {os.fsencode(name) for path in paths for name in (path, os.path.realpath(path))}
    try:
        return len(connections(lambda path: path in sockets))
    except OSError:
        return 0


def choose_target(domain_xmls: Iterable[str], target: str | None, bus: str | None) -> tuple[str, str]:
    """Target and bus of a new disk; by default the next free target on virtio.

    `domain_xmls` are the XML of the running VM and of its definition. Raises UserError when `target` is
    invalid or in use.
    """
    taken = {disk_of(disk).target for xml in domain_xmls for disk in disks_in(xml)}
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
            f"--target: the VM already has a disk {target}", "omit --target to use the next free name"
        )
    return target, bus or _BUS_OF[match["prefix"]]


def choose_namespace(
    device: DriveStatus, namespace: str | None, size_bytes: int | None, users: Mapping[Tenant, str]
) -> NamespaceStatus:
    """The namespace with this name; without one, the smallest unused namespace of at least this size.

    Without both, the only unused namespace. Raises UserError, whose hint lists all namespaces.
    """
    listed = _listed(device, users)
    free = [candidate for candidate in device.namespaces if Tenant(device.name, candidate.name) not in users]
    if namespace is not None:
        found = next((candidate for candidate in device.namespaces if candidate.name == namespace), None)
        if found is None:
            hint = did_you_mean(namespace, (candidate.name for candidate in device.namespaces), listed)
            raise UserError(f"device {device.name} has no namespace {namespace}", hint)
        if found not in free:
            raise UserError(
                f"namespace {device.name}/{namespace} is used by VM {users[Tenant(device.name, namespace)]}",
                "detach it from that VM, or choose another; two VMs on one disk corrupt its data",
            )
        if size_bytes is not None and found.size_bytes < size_bytes:
            raise UserError(
                f"namespace {device.name}/{namespace} has {format_bytes_exact(found.size_bytes)}, less than "
                f"--size {format_bytes_exact(size_bytes)}",
                listed,
            )
        return found
    fitting = [candidate for candidate in free if candidate.size_bytes >= (size_bytes or 0)]
    if not fitting:
        size = f" of {format_bytes_exact(size_bytes)} or more" if size_bytes else ""
        raise UserError(
            f"device {device.name} has no free namespace{size}",
            f"{listed}; add one with `slo-ctl device add`",
        )
    if size_bytes is None and len(fitting) > 1:
        raise UserError(
            f"device {device.name} has {len(fitting)} free namespaces",
            f"choose one, such as {device.name}/{fitting[0].name}, or use --size; {listed}",
        )
    return min(fitting, key=lambda candidate: (candidate.size_bytes, candidate.name))


def qemu_credentials(running_xml: str) -> Peer | None:
    """Credentials of a VM's QEMU, from the XML of the running VM; None if it does not have them."""
    try:
        domain = parse_domain(running_xml)
    except DomainXmlError:
        return None
    label = domain.findtext("seclabel[@model='dac']/label", "")
    match = re.fullmatch(r"\+?(\d{1,10}):\+?(\d{1,10})", label.strip())
    if match is None:
        return None
    uid, gid = int(match[1]), int(match[2])
    return Peer(uid, groups_of(uid, gid))


def refused_path(socket: Path, credentials: Peer) -> Path | None:
    """The socket or directory whose permissions prevent a connection; None if it is allowed.

    Raises OSError when a permission cannot be read.
    """
    if credentials.uid == 0:
        return None
    for folder in reversed(socket.parents):
        if not _allowed(folder.stat(), credentials, stat.S_IXOTH):
            return folder
    return None if _allowed(socket.stat(), credentials, stat.S_IWOTH) else socket


def check_socket(socket: Path, device: str, credentials: Peer | None, extra_options: str) -> None:
    """Raise UserError unless the device is served and QEMU may connect.

    `extra_options`: further options for `device serve` in the hint.
    """
    try:
        if not stat.S_ISSOCK(socket.stat().st_mode):
            raise UserError(f"{socket} is not a socket", f"serve the device: slo-ctl device serve {device}")
        refused = refused_path(socket, credentials) if credentials else None
    except FileNotFoundError:
        raise UnreachableError(
            f"device {device} is not being served: {socket} not found",
            f"serve it first: slo-ctl device serve {device}{_group_option(credentials)}{extra_options}",
        ) from None
    except OSError as error:
        raise UserError(f"{socket}: {error.strerror}", "run as root") from None
    if refused is None or credentials is None:
        return
    user = user_name(credentials.uid) or f"user {credentials.uid}"
    if refused != socket:
        raise UserError(
            f"QEMU runs as {user}, who may not enter {refused}, the directory of the socket",
            "keep sockets in a directory with mode 0755, named with --root",
        )
    raise UserError(
        f"QEMU runs as {user}, who may not use {socket} (group {_group_name(socket)})",
        f"serve with its group: slo-ctl device serve {device}{_group_option(credentials)}{extra_options}",
    )


def disks_in(xml: str) -> list[ElementTree.Element]:
    """The disks in the XML of a VM. Raises UserError for invalid XML."""
    try:
        return parse_domain(xml).findall("devices/disk")
    except DomainXmlError as error:
        raise UserError(f"a VM of libvirt cannot be read: {error}", "see `virsh dumpxml`") from None


def _listed(device: DriveStatus, users: Mapping[Tenant, str]) -> str:
    """`vm1 2GiB used by web (vdb), vm2 1GiB free`."""
    parts = [
        f"{namespace.name} {format_bytes_exact(namespace.size_bytes)} "
        + (f"used by {user}" if (user := users.get(Tenant(device.name, namespace.name))) else "free")
        for namespace in device.namespaces[:20]
    ]
    more = len(device.namespaces) - len(parts)
    return f"{device.name} has {', '.join(parts)}" + (f" and {more} more" if more else "")


def _allowed(status: os.stat_result, credentials: Peer, other_bit: int) -> bool:
    """Permission check as in the kernel: the first match of owner, group and others decides."""
    if status.st_uid == credentials.uid:
        return bool(status.st_mode & other_bit << 6)
    if status.st_gid in credentials.gids:
        return bool(status.st_mode & other_bit << 3)
    return bool(status.st_mode & other_bit)


def _group_name(socket: Path) -> str:
    with suppress(OSError):
        return group_name(socket.stat().st_gid) or "unknown"
    return "unknown"


def _group_option(credentials: Peer | None) -> str:
    """` --group NAME` with a group of QEMU's user; empty if none has a name."""
    names = map(group_name, sorted(credentials.gids) if credentials else ())
    return next((f" --group {name}" for name in names if name is not None), "")
