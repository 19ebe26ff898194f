"""VMs of libvirt: name, UUID, state, disks, SLO metadata. Read-only."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

from slo_ctl.base.errors import UserError
from slo_ctl.base.files import hint_for
from slo_ctl.base.keyvalue import did_you_mean
from slo_ctl.model.host import Disk, FoundBy, Vm, VmState
from slo_ctl.model.slo import CONFIG_KEYS, FIELDS, SloError, SloFields, check_fields, field_named, parse_field

# Disks of a libvirt domain, from its XML.

LIMIT_CHARACTERS = 4 << 20
MAX_DISKS = 4096


class DomainXmlError(ValueError):
    """Invalid domain XML, with the reason."""


def parse_domain(xml: str) -> ElementTree.Element:
    """The element `domain`. Raises DomainXmlError for invalid text, also if it is hostile."""
    if len(xml) > LIMIT_CHARACTERS:
        raise DomainXmlError("its XML is far larger than a domain's can be")
    if "<!DOCTYPE" in xml:
        # libvirt writes none; it could only define entities.
        raise DomainXmlError("its XML has a document type")
    try:
        return ElementTree.fromstring(xml)  # noqa: S314 - no document type, so no entities to expand
    except ElementTree.ParseError as error:
        raise DomainXmlError(f"its XML is broken: {error}") from None


def disks_of(xml: str) -> tuple[Disk, ...]:
    """All disks in the order of the XML, without device numbers. Raises DomainXmlError."""
    disks = parse_domain(xml).findall("devices/disk")
    if len(disks) > MAX_DISKS:
        raise DomainXmlError(f"it has more than {MAX_DISKS} disks")
    return tuple(disk_of(element) for element in disks)


def disk_of(element: ElementTree.Element) -> Disk:
    """A disk, without its device number."""
    target, source = element.find("target"), element.find("source")
    kind = element.get("type", "")
    return Disk(
        target=target.get("dev", "") if target is not None else "",
        kind=kind,
        source=None if source is None else _source(kind, source),
        copy=_copy(element),
    )


def _copy(disk: ElementTree.Element) -> str | None:
    """The path of a copy that a block job makes; None without one, or if it is not on this host."""
    mirror = disk.find("mirror")
    source = None if mirror is None else mirror.find("source")
    if mirror is None or source is None or (kind := mirror.get("type", "")) not in ("block", "file"):
        return None
    return _source(kind, source)


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
        case _:  # vhostuser and vhostvdpa have a socket or a device; so may future types
            return source.get("path") or source.get("dev")


def _network(source: ElementTree.Element) -> str:
    """The URI of a network disk, as QEMU's tools accept it."""
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
    """PCI address and namespace of a controller that QEMU drives itself."""
    address = source.find("address")
    parts = [address.get(key, "?").removeprefix("0x") for key in _PCI] if address is not None else ["?"] * 4
    return "nvme://{}:{}:{}.{}".format(*parts) + f"/{source.get('namespace', '?')}"


_PCI = ("domain", "bus", "slot", "function")


DEFAULT_URI = "qemu:///system"

_STATES = {
    1: VmState.RUNNING,
    2: VmState.BLOCKED,
    3: VmState.PAUSED,
    4: VmState.SHUTTING_DOWN,
    5: VmState.SHUT_OFF,
    6: VmState.CRASHED,
    7: VmState.SUSPENDED,
}
"""States by virDomainState, which is part of libvirt's ABI."""
_RESUMED_FOR = {
    # Migrated, restored from a file, from a snapshot, after a post-copy migration.
    VmState.RUNNING: frozenset({2, 3, 4, 10}),
    # Being migrated, from a snapshot, starting, which includes being restored.
    VmState.PAUSED: frozenset({2, 7, 11}),
}
"""Reasons of these states, by virDomainRunningReason and virDomainPausedReason, for a VM that may have the
tuning of an earlier run. One that starts from its definition has the tuning of that."""


XML_INACTIVE = 2
"""virDomainXMLFlags."""


class LibvirtError(UserError):
    """libvirt is not installed or does not respond."""


class LibvirtHost:
    """One read-only connection to libvirt."""

    def __init__(self, connection: Any, module: Any) -> None:
        """`connection` and `module` are those of libvirt-python, which has no types."""
        self._connection = connection
        self._module = module

    @property
    def uri(self) -> str:
        return str(self._connection.getURI())

    @property
    def has_local_vms(self) -> bool:
        """Whether its VMs are QEMU processes of this host."""
        return str(self._connection.getType()) == "QEMU" and is_local(self.uri)

    @property
    def version(self) -> str:
        """Version of the daemon, such as `9.0.0`. Raises LibvirtError."""
        try:
            number = int(self._connection.getLibVersion())
        except self._module.libvirtError as error:
            raise LibvirtError(str(error), "check that libvirtd is running") from None
        return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"

    def domains(self, note: Callable[[str], None]) -> list[DomainReading]:
        """Every domain, running or not, without cgroup and device numbers. Raises LibvirtError.

        Skips domains that are undefined meanwhile. `note` receives a sentence for each error.
        """
        try:
            domains = self._connection.listAllDomains()
        except self._module.libvirtError as error:
            raise LibvirtError(str(error), "check that libvirtd is running") from None
        readings = []
        for domain in domains:
            try:
                reading = read_domain(domain, self._module)
            except self._module.libvirtError as error:
                note(f"VM {domain.name()} is skipped: {error}")
                continue
            if reading is not None:
                readings.append(reading)
                for sentence in reading.notes:
                    note(sentence)
        return readings

    def all_xml(self) -> list[tuple[str, str]]:
        """Name and XML of every VM, running and defined; one that disappears meanwhile is skipped.

        Raises LibvirtError.
        """
        found = []
        try:
            for domain in self._connection.listAllDomains():
                try:
                    flags = [0, *([XML_INACTIVE] if domain.isActive() and domain.isPersistent() else [])]
                    found += [(str(domain.name()), str(domain.XMLDesc(each))) for each in flags]
                except self._module.libvirtError as error:
                    if error.get_error_code() != self._module.VIR_ERR_NO_DOMAIN:
                        raise
        except self._module.libvirtError as error:
            raise LibvirtError(str(error), "check that libvirtd is running") from None
        return found

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> LibvirtHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class DomainReading:
    """One reading of a domain."""

    vm: Vm
    xml: str
    """The complete XML, including the metadata of other programs."""
    notes: tuple[str, ...] = ()
    """One sentence for each invalid part."""


def read_domain(domain: Any, module: Any, before: DomainReading | None = None) -> DomainReading | None:
    """Read a domain; None when it no longer exists. Raises libvirt's error.

    `before` is the last reading: disks of unchanged XML are not parsed again, and keep their devices.
    """
    name = str(domain.name())
    try:
        number, reason = domain.state()
        state = _STATES.get(number, VmState.UNKNOWN)
        libvirt_id = domain.ID()
        xml = str(domain.XMLDesc(0))
    except module.libvirtError as error:
        if error.get_error_code() == module.VIR_ERR_NO_DOMAIN:
            return None
        raise
    notes: tuple[str, ...] = ()
    if before is not None and before.xml == xml and before.vm.disks:
        disks = before.vm.disks
    else:
        try:
            disks = disks_of(xml)
        except DomainXmlError as error:
            disks, notes = (), (f"disks of VM {name} are unknown: {error}",)
    vm = Vm(
        name=name,
        found_by=FoundBy.LIBVIRT,
        state=state,
        uuid=str(domain.UUIDString()),
        libvirt_id=libvirt_id if libvirt_id >= 0 else None,
        disks=disks,
        resumed=reason in _RESUMED_FOR.get(state, ()),
    )
    return DomainReading(vm, xml, notes)


def starting_domain(xml: str) -> DomainReading:
    """A domain that libvirt is about to start, from its XML. Raises DomainXmlError."""
    domain = parse_domain(xml)
    name, uuid = domain.findtext("name", ""), domain.findtext("uuid", "")
    if not (0 < len(name) <= 255 and _UUID.fullmatch(uuid)):
        raise DomainXmlError("its XML has no name or no UUID")
    return DomainReading(Vm(name, FoundBy.LIBVIRT, VmState.SHUT_OFF, uuid, disks=disks_of(xml)), xml)


_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def load_module() -> Any:
    """The module libvirt-python. Raises LibvirtError when it is not installed."""
    try:
        module = import_module("libvirt")
    except ImportError as error:
        raise LibvirtError(
            f"libvirt-python is not installed ({error})",
            "install the extra `host` of slo-ctl, or libvirt-python with the headers of libvirt",
        ) from None
    except OSError as error:
        raise LibvirtError(
            f"libvirt-python cannot be loaded: {error.strerror}", hint_for(error, "reinstall it")
        ) from None
    # By default libvirt also prints every error that it raises.
    module.registerErrorHandler(lambda _context, _error: None, None)
    return module


def connect(uri: str = DEFAULT_URI) -> LibvirtHost:
    """Open a read-only connection. Raises LibvirtError."""
    module = load_module()
    try:
        return LibvirtHost(module.openReadOnly(uri), module)
    except module.libvirtError as error:
        raise LibvirtError(
            f"no connection to {uri}: {error}",
            connection_hint(uri, "start libvirtd, or use another with --connect URI"),
        ) from None


def connection_hint(uri: str, start: str) -> str:
    """What to do without a connection: `start` the daemon, but libvirt's test driver has none."""
    if not uri.startswith("test:///"):
        return start
    path = uri.removeprefix("test://")
    return f"see whether {path} exists and describes a host of libvirt's test driver"


def is_local(uri: str) -> bool:
    """Whether a libvirt URI names a daemon of this host: no server, no transport but a Unix socket."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return False
    _, _, transport = parts.scheme.partition("+")
    return not parts.netloc and transport in ("", "unix")


# Limits that slo-ctl has set on disks, recognized by the name of their throttle group.

_GROUP_PREFIX = "slo-ctl-"


def throttle_group(targets: Sequence[str], replaced: str = "") -> str:
    """Name of the throttle group, within its VM, of disks that slo-ctl limits.

    `replaced`: the group that a disk was in, because others had limited it.
    """
    return _GROUP_PREFIX + "-".join(targets) + (f"={replaced}" if replaced else "")


def replaced_group(name: str) -> str:
    """The group that a disk was in before slo-ctl's of this name; empty without one."""
    return name.partition("=")[2] if is_throttle_group(name) else ""


def is_throttle_group(name: str) -> bool:
    """Whether slo-ctl has named this throttle group."""
    return name.startswith(_GROUP_PREFIX)


def foreign_limits(xml: str) -> dict[str, dict[str, float]]:
    """Limits of disks in the XML of a running VM that slo-ctl has not set, by target and libvirt's name."""
    found = {}
    for disk in parse_domain(xml).findall("devices/disk"):
        tune = disk.find("iotune")
        if tune is None or is_throttle_group(tune.findtext("group_name", "")):
            continue
        limits = {limit.tag: float(limit.text or 0) for limit in tune if limit.tag.endswith("_sec")}
        if limits:
            found[disk_of(disk).target] = limits
    return found


def has_throttle_group(xml: str) -> bool:
    """Whether slo-ctl has limited a disk of the domain with this XML, or of one that it was resumed from."""
    return f"<group_name>{_GROUP_PREFIX}" in xml


# The SLO in the metadata of a libvirt domain, which migrates with the VM.

URI = "https://slo-ctl.org/xmlns/libvirt/1.0"
PREFIX = "slo-ctl"
ELEMENT = "slo"


def fields_of(xml: str, note: Callable[[str], None] | None = None) -> SloFields:
    """The fields of `<slo-ctl:slo .../>` in the metadata of a domain; empty without that element.

    Invalid fields are skipped; `note` receives a sentence for each, which names the VM.
    """
    report = note or (lambda _: None)
    try:
        domain = parse_domain(xml)
    except DomainXmlError as error:
        report(f"SLO in libvirt metadata is unknown: {error}")
        return {}
    found = domain.findall(f"metadata/{{{URI}}}{ELEMENT}")
    where = f"VM {domain.findtext('name', '?')}: libvirt metadata"
    if len(found) > 1:
        report(f"{where}: {len(found)} elements {PREFIX}:{ELEMENT}; only the first one is used")
    return _fields(found[0].attrib, lambda text: report(f"{where}: {text}")) if found else {}


def _fields(attributes: dict[str, str], note: Callable[[str], None]) -> SloFields:
    fields: SloFields = {}
    for key, value in attributes.items():
        try:
            name = field_named(key)
        except SloError:
            note(f"unknown attribute {key[:60]} is ignored; {did_you_mean(key, CONFIG_KEYS)}")
            continue
        if name in fields:
            note(f"attribute {key} is ignored, as {FIELDS[name].key} is given already; give it once")
            continue
        try:
            fields[name] = parse_field(key, value)
        except SloError as error:
            note(f"{error.message} and is ignored; {error.hint}")
    try:
        check_fields(fields)
    except SloError as error:
        note(f"{error.message}; both are ignored; {error.hint}")
        del fields["min_iops"], fields["max_iops"]
    return fields


# Names that libvirt and systemd give the cgroup of a VM.

_ESCAPED_BYTE = re.compile(rb"\\x([0-9a-fA-F]{2})")
_SYSTEMD_SCOPE = re.compile(r"machine-(?P<machine>.+)\.scope", re.DOTALL)
_MACHINE = re.compile(r"qemu-(?P<id>\d{1,9})(?:-(?P<name>.*))?", re.DOTALL)
_PLAIN_SUFFIX = ".libvirt-qemu"


@dataclass(frozen=True, slots=True)
class Machine:
    """A VM's ID and name according to the name of its cgroup."""

    libvirt_id: int
    name: str
    """Name of the VM without some characters and possibly truncated by libvirt; empty if it has no others."""

    def may_be(self, vm_name: str) -> bool:
        """Whether the cgroup can be that of a VM with this name."""
        vm, own = _alphanumeric(vm_name), _alphanumeric(self.name)
        return vm.startswith(own) and bool(own) == bool(vm)


def machine_of(folder: str) -> Machine | None:
    r"""The VM in the name of a cgroup's directory; None if it is not named by libvirt.

    libvirt with systemd creates `machine-qemu\x2d3\x2dNAME.scope`, without it `qemu-3-NAME.libvirt-qemu`,
    or `qemu-3` for a name without any ASCII letter or digit.
    """
    scope = _SYSTEMD_SCOPE.fullmatch(folder)
    if scope:
        machine = _unescaped(scope["machine"])
    elif folder.endswith(_PLAIN_SUFFIX):
        machine = folder.removesuffix(_PLAIN_SUFFIX)
    else:
        return None
    parts = _MACHINE.fullmatch(machine)
    return Machine(int(parts["id"]), parts["name"] or "") if parts else None


def _unescaped(unit: str) -> str:
    r"""A unit name with systemd's escapes, such as `\x2d`, replaced."""
    raw = unit.encode("utf-8", "surrogateescape")
    plain = _ESCAPED_BYTE.sub(lambda match: bytes.fromhex(match[1].decode("ascii")), raw)
    return plain.decode("utf-8", "surrogateescape")


def _alphanumeric(name: str) -> str:
    """The characters of a name that libvirt keeps in the name of a cgroup."""
    return "".join(c for c in name if c.isascii() and c.isalnum())
