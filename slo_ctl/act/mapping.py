"""Mappings of VMs onto NVMe namespaces, finished or not, on disk before each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from pydantic import ConfigDict

from slo_ctl.act import namespaces as disks
from slo_ctl.act.domain_metadata import WritableDomain
from slo_ctl.act.namespaces import Namespaces
from slo_ctl.base.errors import UserError
from slo_ctl.base.json_store import JsonStore
from slo_ctl.model.mapping import (
    AttachNamespace,
    CreateNamespace,
    Deallocate,
    DeleteNamespace,
    DetachNamespace,
    GiveDisk,
    NamespaceMapping,
    Purpose,
    Step,
    TakeDisk,
)
from slo_ctl.model.nvme import NvmeDevice


@dataclass(frozen=True, slots=True)
class _File:
    """Its content. Unknown keys are refused: they could be steps."""

    format_version: Literal[1]
    mappings: tuple[NamespaceMapping, ...]
    __pydantic_config__ = ConfigDict(extra="forbid", strict=False)


class MappingStore:
    """All mappings of this host. Read and written only while `locked`."""

    def __init__(self, path: Path) -> None:
        self._store = JsonStore(
            path,
            _File,
            repair="put back a copy; without it, `slo-ctl vm map --adopt` takes the namespaces up again",
            mode=0o600,
        )

    def all(self) -> tuple[NamespaceMapping, ...]:
        """Every mapping. Raises UserError when the file is damaged: it is neither changed nor passed over."""
        file = self._store.read()
        return () if file is None else file.mappings

    def put(self, old: NamespaceMapping | None, new: NamespaceMapping | None) -> None:
        """Have `new` in place of `old`; None: add, or remove. On disk when it returns. Raises UserError."""
        kept = [each for each in self.all() if each != old]
        self._store.write(_File(1, (*kept, *([new] if new is not None else []))))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock for mapping and unmapping. Raises UserError when another process holds it."""
        with self._store.locked("another slo-ctl is mapping or unmapping", timeout_s=0.0):
            yield


# Carrying out a mapping's steps, each recorded, so that a crash loses and repeats nothing.

_CLOSE_TIMEOUT_S = 5.0
_POLL_S = 0.1


class Domains(Protocol):
    """Where VMs are found that are given disks."""

    def __call__(self, name: str) -> AbstractContextManager[WritableDomain]:
        """One VM, to change it. Raises UserError."""
        ...


class MappingRun:
    """One mapping being carried out. Every method raises UserError; what was done by then is recorded."""

    def __init__(
        self,
        store: MappingStore,
        device: NvmeDevice,
        namespaces: Namespaces,
        domains: Domains,
        dev: Path = Path("/dev"),
        user_of: Callable[[int], str] = lambda _nsid: "",
    ) -> None:
        """`user_of` finds who uses a namespace besides its VM's definition; asked before it is taken away."""
        self._store = store
        self._device = device
        self._namespaces = namespaces
        self._domains = domains
        self._dev = dev
        self._user_of = user_of

    def carry_out(
        self, mapping: NamespaceMapping, previous: NamespaceMapping | None, report: Callable[[Step], None]
    ) -> NamespaceMapping | None:
        """Do what is left to do; `previous` is what the store has of it. None: nothing is left of it.

        A mapping whose first step fails is not kept: nothing was changed.
        """
        if mapping != previous:
            self._store.put(previous, mapping)
        while not mapping.complete:
            step = mapping.steps[mapping.done]
            report(step)
            if isinstance(step, CreateNamespace) and mapping.namespaces_before is None:
                before = self._namespaces.allocated()
                mapping = self._keep(mapping, replace(mapping, namespaces_before=before))
            try:
                after = self._do(mapping, step)
            except UserError:
                if mapping.done == 0 and mapping.purpose is Purpose.MAP and not self._made_something(mapping):
                    self._store.put(mapping, None)
                raise
            mapping = self._keep(mapping, replace(after, done=mapping.done + 1))
        if mapping.purpose is Purpose.UNMAP:
            self._store.put(mapping, None)
            return None
        return mapping

    def _keep(self, old: NamespaceMapping, new: NamespaceMapping) -> NamespaceMapping:
        self._store.put(old, new)
        return new

    def _made_something(self, mapping: NamespaceMapping) -> bool:
        """Whether the first step left anything behind, though it failed."""
        before = mapping.namespaces_before
        return before is not None and set(self._namespaces.allocated()) != set(before)

    def _do(self, mapping: NamespaceMapping, step: Step) -> NamespaceMapping:
        if isinstance(step, CreateNamespace):
            return replace(mapping, nsid=self._namespaces.create(step, mapping.namespaces_before or ()))
        nsid = mapping.nsid
        if nsid is None:
            raise UserError(f"{mapping}: its namespace is not known", "see `slo-ctl vm maps`")
        known = self._device.namespace(nsid)
        match step:
            case AttachNamespace():
                if known is None or not known.attached:
                    self._namespaces.attach(nsid, step.controller_id)
            case Deallocate():
                block = self._namespaces.block(nsid)
                self._wait_until_unused(nsid)
                self._namespaces.deallocate(block, step.offset_bytes, step.length_bytes)
            case GiveDisk():
                return self._give(mapping, step, nsid)
            case TakeDisk():
                with self._domains(mapping.vm) as domain:
                    disks.take(domain, mapping.target, mapping.path, unplug=step.unplug)
            case DetachNamespace():
                if known is not None and known.attached:
                    self._wait_until_unused(nsid)
                    self._namespaces.detach(nsid, step.controller_id)
            case DeleteNamespace():
                if known is not None:
                    self._wait_until_unused(nsid)
                    self._namespaces.delete(nsid)
        return mapping

    def _give(self, mapping: NamespaceMapping, step: GiveDisk, nsid: int) -> NamespaceMapping:
        path = disks.stable_path(self._dev / self._namespaces.block(nsid), nsid)
        with self._domains(mapping.vm) as domain:
            if disks.target_of(domain, path) is None:
                self._wait_until_unused(nsid)
            size_bytes = None if step.whole else step.size_bytes
            target = disks.give(domain, path, step.target, step.bus, size_bytes)
        return replace(mapping, target=target, path=str(path))

    def _wait_until_unused(self, nsid: int) -> None:
        """A QEMU that released its disk closes it a moment later. Raises UserError when it stays in use."""
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        while user := self._user_of(nsid):
            if time.monotonic() > deadline:
                raise UserError(
                    f"namespace {nsid} of {self._device.controller.name} is still in use: {user}",
                    "stop that, then continue with `slo-ctl vm map VM --resume`",
                )
            time.sleep(_POLL_S)
