"""SLOs set with `slo-ctl vm set`, stored in `slos.json`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from slo_ctl.base.errors import UserError
from slo_ctl.base.files import move_command
from slo_ctl.base.json_store import JsonStore
from slo_ctl.model.slo import SloEntry, SloError, SloUpdate, check_fields, check_vm_name


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    format_version: Literal[1]
    vms: dict[str, dict[str, float]]
    classes: dict[str, str] = {}
    groups: dict[str, str] = {}


StoredSlos = Mapping[str, SloEntry]
"""Stored SLOs by VM, without VMs for which nothing is set."""


def update_slos(slos: StoredSlos, vms: Collection[str], update: SloUpdate) -> StoredSlos:
    """The SLOs after a change of these VMs. Raises UserError when fields contradict each other."""
    after = dict(slos)
    for vm in vms:
        try:
            after[vm] = update.applied_to(slos.get(vm, SloEntry()))
        except SloError as error:
            raise UserError(f"VM {vm}: {error.message}", error.hint) from None
    return {vm: entry for vm, entry in after.items() if entry.is_set}


class SloStore:
    """The stored SLOs. Thread-safe. Methods raise UserError when the file is damaged or cannot be read or
    written, and then leave it unchanged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._store = JsonStore(
            path,
            _File,
            repair=f"restore it, or start without the SLOs of vm set: {move_command(path)}",
            mode=0o644,
        )
        self._cached: tuple[tuple[int, int, int] | None, StoredSlos] | None = None
        """Identity of the file, and its content as last read or written."""

    def read(self) -> StoredSlos:
        """All stored SLOs, from memory while the file is unchanged; empty if it does not exist."""
        identity, cached = self._identity(), self._cached
        if identity is not None and cached is not None and cached[0] == identity:
            return cached[1]
        file = self._store.read()
        try:
            for fields in file.vms.values() if file is not None else ():
                check_fields(fields)
        except SloError as error:
            raise self._store.damaged(error.message) from None
        slos = {} if file is None else _entries(file)
        self._cached = identity, slos
        return slos

    def change(
        self,
        vms: Collection[str],
        update: SloUpdate,
        check: Callable[[StoredSlos, StoredSlos], None] | None = None,
        *,
        dry_run: bool = False,
    ) -> StoredSlos:
        """Change the SLOs of all these VMs, or raise UserError and change none; returns all stored SLOs.

        `check` gets the SLOs before and after, and raises UserError to refuse the change. With `dry_run`
        nothing is written. Unsetting a field that is not set is not an error.
        """
        for vm in vms:
            check_vm_name(vm)
        before, after = self._changed(vms, update, check)
        if after == before or dry_run:
            # Also a change that is refused leaves no lock and no directory behind.
            return after
        with self.locked():
            before, after = self._changed(vms, update, check)
            if after != before:
                self._write(after)
        return after

    def _changed(
        self,
        vms: Collection[str],
        update: SloUpdate,
        check: Callable[[StoredSlos, StoredSlos], None] | None,
    ) -> tuple[StoredSlos, StoredSlos]:
        """The SLOs before and after a change."""
        before = self.read()
        after = update_slos(before, vms, update)
        if check is not None:
            check(before, after)
        return before, after

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the file against other writers. Raises UserError when it stays locked."""
        with self._store.locked(f"another slo-ctl is changing {self.path}"):
            yield

    def _write(self, slos: StoredSlos) -> None:
        vms = sorted(slos)
        self._store.write(
            _File(
                format_version=1,
                vms={vm: slos[vm].fields for vm in vms if slos[vm].fields},
                classes={vm: name for vm in vms if (name := slos[vm].class_name) is not None},
                groups={vm: name for vm in vms if (name := slos[vm].group_name) is not None},
            )
        )
        self._cached = self._identity(), slos

    def _identity(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


def _entries(file: _File) -> StoredSlos:
    vms = sorted({*file.vms, *file.classes, *file.groups})
    return {vm: SloEntry(file.vms.get(vm, {}), file.classes.get(vm), file.groups.get(vm)) for vm in vms}
