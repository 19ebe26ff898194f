"""VMs as libvirt knows them: name, UUID, state, disks. Over a connection that may only read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

from slo_ctl.base.errors import UserError
from slo_ctl.base.keyvalue import did_you_mean
from slo_ctl.model import Disk, FoundBy, Vm, VmState
from slo_ctl.model.slo import CONFIG_KEYS, SloError, SloFields, check_fields, parse_fields

# Disks of a libvirt domain, from its XML.

LIMIT_CHARACTERS = 4 << 20
MAX_DISKS = 4096


class DomainXmlError(ValueError):
    """Invalid domain XML, with the reason."""


def parse_domain(xml: str) -> ElementTree.Element:
    """The element `domain`. Raises DomainXmlError for text that is not a domain's, however hostile."""
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
    """The URI that QEMU's tools take."""
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


class LibvirtError(UserError):
    """libvirt cannot be asked."""


class LibvirtHost:
    """One read-only connection to libvirt."""

    def __init__(self, connection: Any, module: Any) -> None:
        """`connection` and `module` are those of libvirt-python, which has no types."""
        self._connection = connection
        self._module = module

    @property
    def uri(self) -> str:
        """Where this is connected to."""
        return str(self._connection.getURI())

    @property
    def runs_here(self) -> bool:
        """Its VMs are QEMU processes of this host: their paths, cgroups and devices are ours."""
        return str(self._connection.getType()) == "QEMU" and is_local(self.uri)

    @property
    def version(self) -> str:
        """Version of the daemon, such as `9.0.0`. Raises LibvirtError."""
        try:
            number = int(self._connection.getLibVersion())
        except self._module.libvirtError as error:
            raise LibvirtError(str(error), "see whether libvirtd still runs") from None
        return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"

    def vms(self, note: Callable[[str], None]) -> list[Vm]:
        """Every VM, running or not, without cgroup and device numbers. Raises LibvirtError.

        A VM that is undefined meanwhile is left out. `note` takes one sentence for what could not be read.
        """
        try:
            domains = self._connection.listAllDomains()
        except self._module.libvirtError as error:
            raise LibvirtError(str(error), "see whether libvirtd still runs") from None
        return [vm for domain in domains if (vm := self._vm(domain, note)) is not None]

    def _vm(self, domain: Any, note: Callable[[str], None]) -> Vm | None:
        try:
            known = read_domain(domain, self._module)
        except self._module.libvirtError as error:
            note(f"VM {domain.name()} is left out: {error}")
            return None
        for sentence in known.notes if known else ():
            note(sentence)
        return known.vm if known else None

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def __enter__(self) -> LibvirtHost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class KnownDomain:
    """A domain as it was read last."""

    vm: Vm
    xml: str
    """All of it, the metadata of other programs included."""
    notes: tuple[str, ...] = ()
    """Parts that are not valid."""


def read_domain(domain: Any, module: Any, before: KnownDomain | None = None) -> KnownDomain | None:
    """Ask for one domain. None when it is undefined by now. Raises libvirt's error.

    `before` is what was known; what has not changed is not looked through again.
    """
    name = str(domain.name())
    try:
        state = _STATES.get(domain.state()[0], VmState.UNKNOWN)
        libvirt_id = domain.ID()
        xml = str(domain.XMLDesc(0))
    except module.libvirtError as error:
        if error.get_error_code() == module.VIR_ERR_NO_DOMAIN:
            return None
        raise
    notes: tuple[str, ...] = ()
    if before is not None and before.xml == xml:
        disks, notes = before.vm.disks, before.notes
    else:
        try:
            disks = disks_of(xml)
        except DomainXmlError as error:
            disks, notes = (), (f"disks of VM {name} are not known: {error}",)
    vm = Vm(
        name=name,
        found_by=FoundBy.LIBVIRT,
        state=state,
        uuid=str(domain.UUIDString()),
        libvirt_id=libvirt_id if libvirt_id >= 0 else None,
        disks=disks,
    )
    return KnownDomain(vm, xml, notes)


def starting_domain(xml: str) -> KnownDomain:
    """A domain that libvirt is about to start, from its XML alone. Raises DomainXmlError."""
    domain = parse_domain(xml)
    name, uuid = domain.findtext("name", ""), domain.findtext("uuid", "")
    if not (0 < len(name) <= 255 and _UUID.fullmatch(uuid)):
        raise DomainXmlError("its XML has no name or no UUID")
    return KnownDomain(Vm(name, FoundBy.LIBVIRT, VmState.SHUT_OFF, uuid, disks=disks_of(xml)), xml)


_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def load_module() -> Any:
    """libvirt-python. Raises LibvirtError when it is not there."""
    try:
        module = import_module("libvirt")
    except ImportError as error:
        raise LibvirtError(
            f"libvirt-python is not installed ({error})",
            "install the extra `host` of slo-ctl, or libvirt-python with the headers of libvirt",
        ) from None
    # By default libvirt prints every error on stderr, besides raising it.
    module.registerErrorHandler(lambda _context, _error: None, None)
    return module


def connect(uri: str = DEFAULT_URI) -> LibvirtHost:
    """Connect, for reading only. Raises LibvirtError."""
    module = load_module()
    try:
        return LibvirtHost(module.openReadOnly(uri), module)
    except module.libvirtError as error:
        raise LibvirtError(
            f"no connection to {uri}: {error}", "start libvirtd, or name another with --connect URI"
        ) from None


def is_local(uri: str) -> bool:
    """Whether a libvirt URI names a daemon of this host: no server, and no transport but a socket of ours."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return False
    _, _, transport = parts.scheme.partition("+")
    return not parts.netloc and transport in ("", "unix")


# The SLO that a libvirt domain carries in its metadata, so that it moves with the VM.

URI = "https://slo-ctl.org/xmlns/libvirt/1.0"
PREFIX = "slo-ctl"
ELEMENT = "slo"


def fields_of(xml: str, note: Callable[[str], None] | None = None) -> SloFields:
    """The fields of `<slo-ctl:slo .../>` in the metadata of a domain; none where there is none.

    A field that cannot be is left out. `note` takes one sentence for each, naming the VM.
    """
    say = note or (lambda _: None)
    try:
        domain = parse_domain(xml)
    except DomainXmlError as error:
        say(f"SLO in libvirt metadata is not known: {error}")
        return {}
    found = domain.findall(f"metadata/{{{URI}}}{ELEMENT}")
    where = f"VM {domain.findtext('name', '?')}: libvirt metadata"
    if len(found) > 1:
        say(f"{where}: {len(found)} elements {PREFIX}:{ELEMENT}; the first one counts")
    return _fields(found[0].attrib, lambda text: say(f"{where}: {text}")) if found else {}


def read_xml(uri: str, name: str) -> str | None:
    """The XML of one VM of libvirt, over a connection that may only read; None when it cannot be had."""
    try:
        module = load_module()
    except LibvirtError:
        return None
    try:
        connection = module.openReadOnly(uri)
        try:
            return str(connection.lookupByName(name).XMLDesc(0))
        finally:
            connection.close()
    except module.libvirtError:
        return None


def _fields(attributes: dict[str, str], note: Callable[[str], None]) -> SloFields:
    fields: SloFields = {}
    for key, value in attributes.items():
        if key not in CONFIG_KEYS:
            note(f"unknown attribute {key[:60]} is ignored; {did_you_mean(key, CONFIG_KEYS)}")
            continue
        try:
            fields |= parse_fields({key: value})
        except SloError as error:
            note(f"{error.message} and is ignored; {error.hint}")
    try:
        check_fields(fields)
    except SloError as error:
        note(f"{error.message}; both are ignored; {error.hint}")
        del fields["min_iops"], fields["max_iops"]
    return fields


# What libvirt and systemd call the cgroup of a VM, and which VM that is.

_ESCAPED_BYTE = re.compile(rb"\\x([0-9a-fA-F]{2})")
_SYSTEMD_SCOPE = re.compile(r"machine-(?P<machine>.+)\.scope", re.DOTALL)
_MACHINE = re.compile(r"qemu-(?P<id>\d{1,9})-(?P<name>.+)", re.DOTALL)
_PLAIN_SUFFIX = ".libvirt-qemu"


@dataclass(frozen=True, slots=True)
class Machine:
    """ID and name of a VM in the name of its cgroup."""

    libvirt_id: int
    name: str
    """libvirt leaves characters out and cuts the end off: a hint, not the VM's name."""

    def may_be(self, vm_name: str) -> bool:
        """Whether a VM of that name can have a cgroup of this one."""
        return _alphanumeric(vm_name).startswith(_alphanumeric(self.name))


def machine_of(folder: str) -> Machine | None:
    r"""The VM that a cgroup's directory is named after, else None.

    libvirt with systemd makes `machine-qemu\x2d3\x2dNAME.scope`, without it `qemu-3-NAME.libvirt-qemu`.
    """
    scope = _SYSTEMD_SCOPE.fullmatch(folder)
    if scope:
        machine = _unescaped(scope["machine"])
    elif folder.endswith(_PLAIN_SUFFIX):
        machine = folder.removesuffix(_PLAIN_SUFFIX)
    else:
        return None
    parts = _MACHINE.fullmatch(machine)
    return Machine(int(parts["id"]), parts["name"]) if parts else None


def _unescaped(unit: str) -> str:
    r"""systemd's `\x2d` as the byte it stands for."""
    raw = unit.encode("utf-8", "surrogateescape")
    plain = _ESCAPED_BYTE.sub(lambda match: bytes.fromhex(match[1].decode("ascii")), raw)
    return plain.decode("utf-8", "surrogateescape")


def _alphanumeric(name: str) -> str:
    """Characters of a name that appear in the name of a cgroup in any case."""
    return "".join(c for c in name if c.isascii() and c.isalnum())
