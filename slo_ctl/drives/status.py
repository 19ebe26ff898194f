"""Status of an emulated device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

from slo_ctl.drives.control import DEFAULT_TIMEOUT_S, ControlClient, ControlError
from slo_ctl.drives.record import (
    DeviceRecord,
    DiskRecord,
    Preconditioned,
    SsdRecord,
    read_preconditioned,
    read_settings,
)
from slo_ctl.drives.store import DeviceStore


@dataclass(frozen=True, slots=True)
class NamespaceStatus:
    """Status of one namespace."""

    name: str
    size_bytes: int
    allocated_bytes: int
    """Bytes of its data on disk."""
    weight: float
    ops_blocks: int
    """OPS after pending moves, including blocks that GC keeps free."""
    limit_iops: float | None
    limit_bytes_s: float | None
    socket: str
    uri: str
    """NBD URI for QEMU, libvirt and libnbd; valid while the device is served."""
    vhost_user_socket: str
    """Path for VMs with shared memory; it exists while the device is served with --vhost-user."""


@dataclass(frozen=True, slots=True)
class DriveStatus:
    """Status of one device."""

    record: DeviceRecord
    served: bool
    folder: str
    size_bytes: int
    """Size of all namespaces."""
    unallocated_bytes: int
    """Capacity for further namespaces."""
    physical_bytes: int
    """Size of the flash, or of the disks."""
    control_socket: str
    all_exports_socket: str
    namespaces: tuple[NamespaceStatus, ...]
    statistics: dict[str, Any] | None
    """The server's reply to `stats`; None while it is not served."""
    preconditioned: Preconditioned | None
    """Result of the last preconditioning; None without one."""
    problem: str | None
    """Why there are no statistics although it is served."""

    @property
    def name(self) -> str:
        return self.record.name

    def plain(self) -> dict[str, Any]:
        """The status as plain JSON types. Tables that devices of its kind do not have are None."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "record"}
        return {
            **dict.fromkeys(("geometry", "timing", "mapping", "array", "disk")),
            **self.record.model_dump(exclude={"format_version", "capacity_bytes", "namespace"}),
            "kind": self.record.kind,
            **own,
            "namespaces": [asdict(namespace) for namespace in self.namespaces],
            "preconditioned": None if self.preconditioned is None else self.preconditioned.model_dump(),
        }


def nbd_uri(socket: Path, export: str = "") -> str:
    """The URI of an export behind a Unix socket."""
    return f"nbd+unix:///{quote(export)}?socket={quote(str(socket))}"


def nvme_text(nvme: Mapping[str, str]) -> str:
    """Address of a device for NVMe hosts, from `nvme_tcp` of its server's statistics."""
    discovery = f", discovery {nvme['discovery']}" if "discovery" in nvme else ""
    return f"NVMe/TCP: {nvme['address']}, subsystem {nvme['nqn']}{discovery}"


def device_status(
    store: DeviceStore, record: DeviceRecord, timeout_s: float = DEFAULT_TIMEOUT_S
) -> DriveStatus:
    """Read the status of a device. Raises UserError when its settings are damaged.

    `timeout_s`: how long its server is waited for.
    """
    run, folder = store.places.run_of(record.name), store.places.device(record.name)
    settings, allocated = read_settings(folder), store.allocated_bytes(record)
    served = store.is_served(record.name)
    statistics, problem = _read_statistics(run.control, timeout_s) if served else (None, None)
    namespaces = []
    for namespace in record.namespace:
        changed, socket = settings.of(namespace.name), run.export(namespace.name)
        namespaces.append(
            NamespaceStatus(
                name=namespace.name,
                size_bytes=namespace.size_bytes if changed.size_bytes is None else changed.size_bytes,
                allocated_bytes=allocated[namespace.name],
                weight=namespace.weight if changed.weight is None else changed.weight,
                ops_blocks=namespace.ops_blocks if changed.ops_blocks is None else changed.ops_blocks,
                limit_iops=changed.limit_iops,
                limit_bytes_s=changed.limit_bytes_s,
                socket=str(socket),
                uri=nbd_uri(socket, namespace.name),
                vhost_user_socket=str(run.vhost_user_socket(namespace.name)),
            )
        )
    size_bytes = sum(namespace.size_bytes for namespace in namespaces)
    return DriveStatus(
        record=record,
        served=served,
        folder=str(folder),
        size_bytes=size_bytes,
        unallocated_bytes=max(0, store.capacity_bytes(record) - size_bytes),
        physical_bytes=_physical_bytes(record),
        control_socket=str(run.control),
        all_exports_socket=str(run.all_exports),
        namespaces=tuple(namespaces),
        statistics=statistics,
        preconditioned=read_preconditioned(folder),
        problem=problem,
    )


def _physical_bytes(record: DeviceRecord) -> int:
    if isinstance(record, DiskRecord):
        return record.array.disks * record.disk.capacity_bytes
    return record.drive.physical_bytes if isinstance(record, SsdRecord) else 0


def _read_statistics(socket: Path, timeout_s: float) -> tuple[dict[str, Any] | None, str | None]:
    try:
        with ControlClient(socket, timeout_s) as client:
            return client.statistics(), None
    except ControlError as error:
        return None, error.message
