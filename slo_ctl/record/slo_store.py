"""The SLOs given with `slo-ctl vm set`, in `promises.json`. They survive crashes of every kind."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from slo_ctl.base.errors import UserError
from slo_ctl.base.json_store import JsonStore
from slo_ctl.model.slo import SloError, SloFields, check_fields, check_vm_name


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    format_version: Literal[1]
    vms: dict[str, dict[str, float]]


class SloStore:
    """Some fields of an SLO for each of some VMs. Every method raises UserError on a damaged file, or none
    that can be read or written; the file is then left as it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._store = JsonStore(
            path,
            _File,
            repair="restore it, or move it away to start without what `slo-ctl vm set` has set",
            mode=0o644,
        )

    def all(self) -> dict[str, SloFields]:
        """All fields set, by VM. A file that is not there sets none."""
        file = self._store.read()
        if file is None:
            return {}
        try:
            for fields in file.vms.values():
                check_fields(fields)
        except SloError as error:
            raise self._store.damaged(error.message) from None
        return file.vms

    def set(self, vm: str, fields: Mapping[str, float]) -> None:
        """Set these fields besides those there are. Raises UserError when they cannot all be set."""
        check_vm_name(vm)
        with self.locked():
            vms = self.all()
            merged = vms.get(vm, {}) | dict(fields)
            try:
                check_fields(merged)
            except SloError as error:
                raise UserError(f"VM {vm}: {error.message}", error.hint) from None
            if not merged or vms.get(vm) == merged:
                return
            self._write(vms | {vm: merged})

    def unset(self, vm: str, names: Collection[str] | None = None) -> None:
        """Take back the fields of these names, or all of the VM's. What is not there is no error."""
        with self.locked():
            vms = self.all()
            before = vms.pop(vm, {})
            left = {} if names is None else {name: before[name] for name in before if name not in names}
            if left == before:
                return
            self._write(vms | ({vm: left} if left else {}))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold off other writers. Raises UserError when one does not end."""
        with self._store.locked(f"another slo-ctl is changing {self.path}"):
            yield

    def _write(self, vms: Mapping[str, SloFields]) -> None:
        self._store.write(_File(format_version=1, vms={vm: dict(vms[vm]) for vm in sorted(vms)}))
