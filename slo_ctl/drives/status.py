"""Status of a device as one value, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from slo_ctl.drives.control import ControlClient, ControlError
from slo_ctl.drives.record import DeviceRecord, DiskRecord, SsdRecord, read_settings
from slo_ctl.drives.store import DeviceStore, Preconditioned, read_preconditioned


@dataclass(frozen=True, slots=True)
class NamespaceStatus:
    """One namespace."""

    name: str
    size_bytes: int
    allocated_bytes: int
    """Bytes of its data on disk."""
    weight: float
    ops_blocks: int
    """Over-provisioning blocks, those that GC holds free included, once every move is carried out."""
    limit_iops: float | None
    limit_bytes_s: float | None
    socket: str
    uri: str
    """For QEMU, libvirt and the tools of libnbd; answered while the device is served."""
    vhost_user_socket: str
    """For VMs with shared memory; answered while the device is served with --vhost-user."""


@dataclass(frozen=True, slots=True)
class DriveStatus:
    """One device."""

    name: str
    emulated: bool
    served: bool
    spec: str
    created: str
    folder: str
    size_bytes: int
    """Of all namespaces."""
    unallocated_bytes: int
    """Left for namespaces that are added."""
    kind: str
    """`ssd`, `disk` or `raid0`."""
    physical_bytes: int
    """Size of the flash, or of the disks."""
    geometry: dict[str, int] | None
    """Of an SSD only, as `timing` and `mapping`."""
    timing: dict[str, int] | None
    mapping: dict[str, Any] | None
    array: dict[str, Any] | None
    """With `disk`: of disks."""
    disk: dict[str, int] | None
    control_socket: str
    all_exports_socket: str
    namespaces: tuple[NamespaceStatus, ...]
    statistics: dict[str, Any] | None
    """The server's reply to `stats`; None while it is not served."""
    preconditioned: Preconditioned | None
    """How its placement was brought to a steady state; None where it was not."""
    problem: str | None
    """Why there are no statistics although it is served."""

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {
            "preconditioned": None if self.preconditioned is None else self.preconditioned.model_dump()
        }


def nbd_uri(socket: Path, export: str = "") -> str:
    """The URI of an export behind a Unix socket."""
    return f"nbd+unix:///{quote(export)}?socket={quote(str(socket))}"


def nvme_text(nvme: Mapping[str, str]) -> str:
    """Where NVMe hosts find a device, from what its server says in `nvme_tcp`."""
    discovery = f", discovery {nvme['discovery']}" if "discovery" in nvme else ""
    return f"NVMe/TCP: {nvme['address']}, subsystem {nvme['nqn']}{discovery}"


def device_status(store: DeviceStore, record: DeviceRecord) -> DriveStatus:
    """Look at a device. Raises UserError when its settings are damaged."""
    run, folder = store.places.run_of(record.name), store.places.device(record.name)
    settings, allocated = read_settings(folder), store.allocated_bytes(record)
    served = store.is_served(record.name)
    statistics, problem = _ask(run.control) if served else (None, None)
    namespaces = []
    for given in record.namespace:
        changed, socket = settings.of(given.name), run.export(given.name)
        namespaces.append(
            NamespaceStatus(
                name=given.name,
                size_bytes=given.size_bytes if changed.size_bytes is None else changed.size_bytes,
                allocated_bytes=allocated[given.name],
                weight=given.weight if changed.weight is None else changed.weight,
                ops_blocks=given.ops_blocks if changed.ops_blocks is None else changed.ops_blocks,
                limit_iops=changed.limit_iops,
                limit_bytes_s=changed.limit_bytes_s,
                socket=str(socket),
                uri=nbd_uri(socket, given.name),
                vhost_user_socket=str(run.vhost_user_socket(given.name)),
            )
        )
    tables = record.model_dump()
    return DriveStatus(
        name=record.name,
        emulated=True,
        served=served,
        spec=record.spec,
        created=record.created,
        folder=str(folder),
        size_bytes=(size_bytes := sum(namespace.size_bytes for namespace in namespaces)),
        unallocated_bytes=max(0, store.capacity_bytes(record) - size_bytes),
        kind=record.kind,
        physical_bytes=_physical_bytes(record),
        **{name: tables.get(name) for name in ("geometry", "timing", "mapping", "array", "disk")},
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


def _ask(socket: Path) -> tuple[dict[str, Any] | None, str | None]:
    try:
        with ControlClient(socket) as client:
            return client.statistics(), None
    except ControlError as error:
        return None, error.message
