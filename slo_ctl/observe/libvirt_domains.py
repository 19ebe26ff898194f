"""VMs as libvirt knows them: name, UUID, state, disks. Over a connection that may only read."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from slo_ctl.model import FoundBy, Vm, VmState
from slo_ctl.observe.domain_xml import DomainXmlError, disks_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

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
"""By virDomainState, which is part of libvirt's ABI."""


class LibvirtError(Exception):
    """libvirt cannot be asked: why, and what to do about it."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.fix = fix


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
        """Of the daemon, such as `9.0.0`. Raises LibvirtError."""
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
    """What could not be understood of it."""


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
