"""Carrying out a mapping's steps, each recorded, so that a crash loses and repeats nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from slo_ctl.act.nvme import disks
from slo_ctl.errors import UserError
from slo_ctl.model.mapping import (
    AttachNamespace,
    CreateNamespace,
    Deallocate,
    DeleteNamespace,
    DetachNamespace,
    GiveDisk,
    Purpose,
    TakeDisk,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from slo_ctl.act.domain_metadata import WritableDomain
    from slo_ctl.act.nvme.namespaces import Namespaces
    from slo_ctl.act.nvme.store import MappingStore
    from slo_ctl.model.mapping import Mapping, Step
    from slo_ctl.model.nvme import NvmeDevice

_CLOSE_PATIENCE_S = 5.0
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
        """`user_of` tells who uses a namespace besides its VM's definition; asked before it is taken away."""
        self._store = store
        self._device = device
        self._namespaces = namespaces
        self._domains = domains
        self._dev = dev
        self._user_of = user_of

    def carry_out(
        self, mapping: Mapping, previous: Mapping | None, tell: Callable[[Step], None]
    ) -> Mapping | None:
        """Do what is left to do; `previous` is what the store has of it. None: nothing is left of it.

        A mapping whose first step fails is not kept: nothing was changed.
        """
        if mapping != previous:
            self._store.put(previous, mapping)
        while not mapping.complete:
            step = mapping.steps[mapping.done]
            tell(step)
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

    def _keep(self, old: Mapping, new: Mapping) -> Mapping:
        self._store.put(old, new)
        return new

    def _made_something(self, mapping: Mapping) -> bool:
        """Whether the first step left anything behind, though it failed."""
        before = mapping.namespaces_before
        return before is not None and set(self._namespaces.allocated()) != set(before)

    def _do(self, mapping: Mapping, step: Step) -> Mapping:
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

    def _give(self, mapping: Mapping, step: GiveDisk, nsid: int) -> Mapping:
        path = disks.stable_path(self._dev / self._namespaces.block(nsid), nsid)
        with self._domains(mapping.vm) as domain:
            if disks.target_of(domain, path) is None:
                self._wait_until_unused(nsid)
            size_bytes = None if step.whole else step.size_bytes
            target = disks.give(domain, path, step.target, step.bus, size_bytes)
        return replace(mapping, target=target, path=str(path))

    def _wait_until_unused(self, nsid: int) -> None:
        """A QEMU that let go of its disk closes it a moment later. Raises UserError when it stays in use."""
        deadline = time.monotonic() + _CLOSE_PATIENCE_S
        while user := self._user_of(nsid):
            if time.monotonic() > deadline:
                raise UserError(
                    f"namespace {nsid} of {self._device.controller.name} is still in use: {user}",
                    "stop that, then go on with `slo-ctl vm map VM --resume`",
                )
            time.sleep(_POLL_S)
