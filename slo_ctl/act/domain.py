"""A VM of libvirt over a connection for changes, and writing its SLO into its metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any
from xml.etree import ElementTree

from slo_ctl.base.errors import UserError
from slo_ctl.base.keyvalue import did_you_mean, join_pairs
from slo_ctl.host.libvirt import ELEMENT, PREFIX, URI, XML_INACTIVE, connection_hint, fields_of, load_module
from slo_ctl.model.slo import SloFields, config_texts


class DomainState(IntEnum):
    """A state of a VM that a change can affect: virDomainModificationImpact, part of libvirt's ABI."""

    RUNNING = 1
    DEFINITION = 2

    def __str__(self) -> str:
        return "definition" if self is DomainState.DEFINITION else "running VM"


# virDomainMetadataType; part of libvirt's ABI, too.
_METADATA_ELEMENT = 2


class NoDomainError(UserError):
    """libvirt has no VM of this name."""


class WritableDomain:
    """A VM of libvirt, over a read-write connection. Methods raise UserError."""

    def __init__(self, domain: Any, module: Any) -> None:
        """`domain` and `module` are those of libvirt-python, which has no types."""
        self._domain = domain
        self._module = module
        self.name = str(domain.name())
        self.running = bool(self.call("isActive"))
        self.persistent = bool(self.call("isPersistent"))

    def call(self, method: str, *arguments: Any, hint: str = "") -> Any:
        """Call a method of libvirt's virDomain; its errors become UserError."""
        try:
            return getattr(self._domain, method)(*arguments)
        except self._module.libvirtError as error:
            raise UserError(f"VM {self.name}: {error}", hint or "see the log of libvirtd") from None

    def xml(self, state: DomainState) -> str:
        """XML of the persistent definition, or of the running VM."""
        return str(self.call("XMLDesc", XML_INACTIVE if state is DomainState.DEFINITION else 0))

    @property
    def states(self) -> tuple[DomainState, ...]:
        exists = {DomainState.RUNNING: self.running, DomainState.DEFINITION: self.persistent}
        return tuple(state for state in DomainState if exists[state])


@contextmanager
def writable_domain(uri: str, name: str) -> Iterator[WritableDomain]:
    """A VM by name, over a new connection. Raises UserError if the VM or libvirt does not exist."""
    with writable_libvirt(uri) as (connection, module):
        yield find_domain(connection, module, name)


@contextmanager
def writable_libvirt(uri: str) -> Iterator[tuple[Any, Any]]:
    """A read-write connection and the module libvirt-python. Raises UserError."""
    module = load_module()
    try:
        connection = module.open(uri)
    except module.libvirtError as error:
        raise UserError(
            f"no connection to {uri}: {error}",
            connection_hint(
                uri, "start libvirtd, run as root or in the group libvirt, or use another with --connect URI"
            ),
        ) from None
    try:
        yield connection, module
    finally:
        connection.close()


def find_domain(connection: Any, module: Any, name: str) -> WritableDomain:
    """A VM by name. Raises UserError, whose hint names existing VMs."""
    try:
        return WritableDomain(connection.lookupByName(name), module)
    except module.libvirtError as error:
        if error.get_error_code() != module.VIR_ERR_NO_DOMAIN:
            raise UserError(f"VM {name}: {error}", "see the log of libvirtd") from None
        names = [str(domain.name()) for domain in connection.listAllDomains()]
        hint = did_you_mean(name, names) if names else "libvirt has no VMs"
        raise NoDomainError(f"libvirt has no VM {name}", hint) from None


def read_metadata(domain: WritableDomain) -> SloFields:
    """The SLO fields in the metadata of the running VM, or else of its definition."""
    return fields_of(domain.xml(DomainState.RUNNING if domain.running else DomainState.DEFINITION))


def write_metadata(domain: WritableDomain, fields: Mapping[str, float]) -> None:
    """Replace the SLO fields in the metadata, and read them back. Without fields, remove the element."""
    element = _element(fields) if fields else None
    if element is None and not any(URI in domain.xml(state) for state in domain.states):
        return
    domain.call("setMetadata", _METADATA_ELEMENT, element, PREFIX, URI, sum(domain.states))
    wanted = fields_of(_domain_with(element)) if element else {}
    for state in domain.states:
        found = fields_of(domain.xml(state))
        if found != wanted:
            raise UserError(
                f"VM {domain.name}: libvirt accepted the metadata, but the {state} has "
                f"{config_texts(found) or 'none'}",
                "see the log of libvirtd, and check whether another program changes the VM",
            )


def write_all_metadata(changes: Sequence[tuple[WritableDomain, SloFields, SloFields]]) -> None:
    """Replace the SLO fields of several VMs, given before and after the change, or when one fails, of none.

    Raises UserError, which names VMs whose fields could not be restored.
    """
    for index, (changed, _, after) in enumerate(changes):
        try:
            write_metadata(changed, after)
        except UserError as error:
            undone = changes[: index + 1]
            left = [text for domain, before, _ in undone if (text := _not_restored(domain, before))]
            if not left:
                raise
            raise UserError(f"{error.message}; not restored: {', '.join(left)}", error.hint) from None


def _not_restored(domain: WritableDomain, before: SloFields) -> str:
    """Restore the SLO fields of a VM; what it has now if that fails."""
    try:
        write_metadata(domain, before)
    except UserError:
        try:
            found = [fields_of(domain.xml(state)) for state in domain.states]
        except UserError:
            return f"VM {domain.name}, whose metadata cannot be read"
        other = next((fields for fields in found if fields != before), None)
        if other is not None:
            return f"VM {domain.name} has {join_pairs(config_texts(other)) or 'none'}"
    return ""


def _element(fields: Mapping[str, float]) -> str:
    """The element without namespace and prefix, which libvirt adds."""
    return ElementTree.tostring(ElementTree.Element(ELEMENT, config_texts(fields)), encoding="unicode")


def _domain_with(element: str) -> str:
    domain = ElementTree.Element("domain")
    slo = ElementTree.fromstring(element)  # noqa: S314 - written above
    slo.tag = f"{{{URI}}}{ELEMENT}"
    ElementTree.SubElement(domain, "metadata").append(slo)
    return ElementTree.tostring(domain, encoding="unicode")
