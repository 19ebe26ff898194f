"""Which namespace of which emulated SSD a stream goes to."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from slo_ctl.model import Stream, Tenant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

_SCHEME = "nbd+unix:///"
_SUFFIX = ".sock"
_EXPORTS = "exports"


class ExportPaths:
    """Sockets of emulated SSDs below the folder that has a folder for each:
    `DEVICE/exports/NAMESPACE.sock`."""

    def __init__(self, run: Path) -> None:
        # Servers and clients may have come by different ways.
        self._folders = {os.fsencode(str(run)) + b"/", os.fsencode(os.path.realpath(run)) + b"/"}

    def is_export(self, path: bytes) -> bool:
        """Whether a socket is that of one namespace."""
        return self._parts(path)[1:2] == [_EXPORTS]

    def tenant_of(self, path: bytes, export: str = "") -> Tenant | None:
        """The namespace behind a socket; on that of all namespaces, the one that `export` names."""
        match self._parts(path):
            case [device, "exports", name] if name.endswith(_SUFFIX):
                return Tenant(device, name.removesuffix(_SUFFIX))
            case [device, "all.sock"] if export:
                return Tenant(device, export)
        return None

    def tenant_of_source(self, source: str | None) -> Tenant | None:
        """The namespace behind a disk, by its source as in `Disk`."""
        if source is None or not source.startswith(_SCHEME):
            return None
        export, _, path = source.removeprefix(_SCHEME).partition("?socket=")
        return self.tenant_of(path.encode("utf-8", "surrogateescape"), export)

    def _parts(self, path: bytes) -> list[str]:
        for folder in self._folders:
            if path.startswith(folder):
                return path[len(folder) :].decode("utf-8", "surrogateescape").split("/")
        return []


def tagged(
    streams: Iterable[Stream],
    exports: ExportPaths,
    connected: Mapping[str, Iterable[bytes]],
    configured: Mapping[str, Sequence[str]],
    cgroups: Mapping[str, str | None],
    note: Callable[[str], None],
) -> list[Stream]:
    """`streams` with their namespaces, and one more for each namespace that no disk leads to.

    Disks say it themselves; else `connected`, the sockets by cgroup; else `configured`, namespaces as
    `DEVICE/NAMESPACE` by VM. `cgroups` are those of all VMs.
    """
    found = [_by_source(stream, exports) for stream in streams]
    known = {(stream.vm, stream.tenant) for stream in found if stream.tenant}
    for vm, cgroup in cgroups.items():
        tenants = {tenant for path in connected.get(cgroup or "", ()) if (tenant := exports.tenant_of(path))}
        for text in configured.get(vm, ()):
            device, slash, namespace = text.partition("/")
            if slash:
                tenants.add(Tenant(device, namespace))
        for tenant in sorted(tenants):
            if (vm, tenant) not in known:
                known.add((vm, tenant))
                found.append(Stream(vm, None, cgroup, None, None, tenant))
    users = Counter(tenant for _, tenant in known)
    for tenant, count in sorted((t, n) for t, n in users.items() if t is not None and n > 1):
        names = ", ".join(sorted(vm for vm, used in known if used == tenant))
        note(f"{tenant} is used by {count} VMs ({names}): their I/O cannot be told apart")
    return found


def tenant_keys(streams: Iterable[Stream], device: str) -> dict[str, str]:
    """The key of each namespace of a device that a VM is on.

    The VM's name, or `VM:DISK` (`VM:NAMESPACE` without a known disk) where it has several there. Of several
    VMs on one namespace the first counts.
    """
    mine = [s for s in streams if s.tenant is not None and s.tenant.device == device]
    count = Counter(vm for vm, _ in {(s.vm, s.tenant) for s in mine})
    keys: dict[str, str] = {}
    for stream in mine:
        if stream.tenant is not None and stream.tenant.namespace not in keys:
            part = stream.disk.target if stream.disk else stream.tenant.namespace
            several = count[stream.vm] > 1
            keys[stream.tenant.namespace] = f"{stream.vm}:{part}" if several else stream.vm
    return keys


def _by_source(stream: Stream, exports: ExportPaths) -> Stream:
    tenant = exports.tenant_of_source(stream.disk.source) if stream.disk else None
    if tenant is None:
        return stream
    return Stream(stream.vm, stream.disk, stream.cgroup, stream.device, stream.counters, tenant)
