"""The SLOs given with `slo-ctl vm set`, in `promises.json`. They survive crashes of every kind."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from slo_ctl.base.errors import UserError
from slo_ctl.base.json_store import JsonStore
from slo_ctl.model.slo import (
    CLASS_KEY,
    GROUP_KEY,
    SloError,
    SloFields,
    SloUpdate,
    check_fields,
    check_vm_name,
)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    format_version: Literal[1]
    vms: dict[str, dict[str, float]]
    classes: dict[str, str] = {}
    groups: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class StoredSlos:
    """SLO fields set, by VM."""

    fields: dict[str, SloFields] = field(default_factory=dict)
    classes: dict[str, str] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)

    def __contains__(self, vm: str) -> bool:
        return vm in self.fields or vm in self.classes or vm in self.groups

    @property
    def vms(self) -> list[str]:
        """VMs with any field, class or group set."""
        return sorted({*self.fields, *self.classes, *self.groups})

    def changed(self, vms: Collection[str], change: SloUpdate) -> StoredSlos:
        """After a change of these VMs. Raises UserError when fields contradict each other."""
        fields, named = dict(self.fields), {CLASS_KEY: dict(self.classes), GROUP_KEY: dict(self.groups)}
        for vm in vms:
            before = fields.pop(vm, {})
            after = {name: value for name, value in before.items() if name not in change.unset}
            after |= change.fields
            try:
                check_fields(after)
            except SloError as error:
                raise UserError(f"VM {vm}: {error.message}", error.hint) from None
            if after:
                fields[vm] = after
            for key, by_vm in named.items():
                if key in change.chosen:
                    by_vm[vm] = change.chosen[key]
                elif key in change.unset:
                    by_vm.pop(vm, None)
        return StoredSlos(fields, named[CLASS_KEY], named[GROUP_KEY])


class SloStore:
    """Some fields of an SLO for each of some VMs. Every method raises UserError on a damaged file, or none
    that can be read or written; the file is then left as it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._store = JsonStore(
            path,
            _File,
            repair="restore it, or move it away to start without the SLOs of `slo-ctl vm set`",
            mode=0o644,
        )

    def read(self) -> StoredSlos:
        """All that is set. A file that is not there sets nothing."""
        file = self._store.read()
        if file is None:
            return StoredSlos()
        try:
            for fields in file.vms.values():
                check_fields(fields)
        except SloError as error:
            raise self._store.damaged(error.message) from None
        return StoredSlos(file.vms, file.classes, file.groups)

    def change(self, vms: Collection[str], change: SloUpdate) -> StoredSlos:
        """Change the SLOs of all these VMs, or raise UserError and change none. What is set afterwards.

        Unsetting a field that is not set is not an error.
        """
        for vm in vms:
            check_vm_name(vm)
        with self.locked():
            before = self.read()
            after = before.changed(vms, change)
            if after != before:
                self._write(after)
        return after

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold off other writers. Raises UserError when one does not end."""
        with self._store.locked(f"another slo-ctl is changing {self.path}"):
            yield

    def _write(self, slos: StoredSlos) -> None:
        self._store.write(
            _File(
                format_version=1,
                vms=dict(sorted(slos.fields.items())),
                classes=dict(sorted(slos.classes.items())),
                groups=dict(sorted(slos.groups.items())),
            )
        )
