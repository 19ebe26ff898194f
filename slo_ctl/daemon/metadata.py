"""What libvirt metadata promise, read again only where a domain's XML has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.observe.domain_metadata import fields_of

if TYPE_CHECKING:
    from slo_ctl.observe.inventory import Inventory
    from slo_ctl.promises import SloFields


class Metadata:
    """Promises by VM."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        """What of them could not be understood."""
        self._known: dict[str, tuple[str, SloFields, list[str]]] = {}

    def of(self, inventory: Inventory) -> dict[str, SloFields]:
        """Those of the VMs that promise anything."""
        known: dict[str, tuple[str, SloFields, list[str]]] = {}
        promised = {}
        self.notes = []
        for vm in inventory.vms:
            xml = inventory.domain_xml.get(vm.uuid or "")
            if xml is None or vm.uuid is None:
                continue
            before = self._known.get(vm.uuid)
            if before is None or before[0] is not xml:
                notes: list[str] = []
                before = (xml, fields_of(xml, notes.append), notes)
            known[vm.uuid] = before
            self.notes += before[2]
            if before[1]:
                promised[vm.name] = before[1]
        self._known = known
        return promised
