"""The SLO that a libvirt domain carries in its metadata, so that it moves with the VM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.observe.domain_xml import DomainXmlError, parse_domain
from slo_ctl.observe.libvirt_domains import LibvirtError, load_module
from slo_ctl.promises.check import CONFIG_KEYS, SloError, SloFields, check_fields, parse_fields
from slo_ctl.replay.fields import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

URI = "https://slo-ctl.org/xmlns/libvirt/1.0"
PREFIX = "slo-ctl"
ELEMENT = "slo"


def fields_of(xml: str, note: Callable[[str], None] | None = None) -> SloFields:
    """What `<slo-ctl:slo .../>` in the metadata of a domain promises; nothing where there is none.

    A field that cannot be is left out. `note` takes one sentence for each, naming the VM.
    """
    say = note or _ignore
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


def _ignore(_text: str) -> None:
    """For callers who want no notes."""
