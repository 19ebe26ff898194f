"""Drives of the guest as tests describe them, and QEMU's arguments for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import assert_never


@dataclass(frozen=True)
class Medium:
    """The backend of a drive or namespace: an empty sparse file, or the export at a URI.

    `iops_max` is a limit of QEMU on reads and writes together: it gives a drive a known capacity that is the
    same on all machines.
    """

    size_bytes: int = 256 << 20
    uri: str | None = None
    """Such as `nbd://localhost:10809` or `nbd+unix:///NAME?socket=PATH`; `size_bytes` is then ignored."""
    iops_max: int | None = None
    iops_group: str | None = None
    """Media of one group share the limit, as namespaces of one drive do; each must specify the same limit."""


@dataclass(frozen=True)
class PlainNvme:
    """An NVMe drive with one namespace and no optional features."""

    serial: str
    medium: Medium = Medium()
    ocp: bool = False
    """Whether it has the OCP SMART log (C0h)."""


@dataclass(frozen=True)
class Namespace:
    """One namespace of a drive."""

    nsid: int
    medium: Medium = Medium()
    attached: bool = True
    fdp_handles: str | None = None
    """Reclaim unit handles that it may use, such as `0-3`; only on drives with FDP."""


@dataclass(frozen=True)
class Fdp:
    """Flexible data placement: one endurance group with one reclaim group."""

    reclaim_unit_bytes: int = 16 << 20
    handles: int = 8


@dataclass(frozen=True)
class NvmeSubsystem:
    """An NVMe drive whose namespaces can be attached and detached. QEMU cannot create or delete any."""

    serial: str
    namespaces: tuple[Namespace, ...]
    fdp: Fdp | None = None
    ocp: bool = False


@dataclass(frozen=True)
class VirtioDisk:
    """A virtio-blk disk."""

    serial: str
    medium: Medium = Medium()


Drive = PlainNvme | NvmeSubsystem | VirtioDisk


def qemu_arguments(drives: tuple[Drive, ...], folder: Path) -> list[str]:
    """QEMU's arguments; creates the files of the drives in `folder`."""
    arguments: list[str] = []
    for number, drive in enumerate(drives):
        name = f"d{number}"
        match drive:
            case PlainNvme():
                arguments += _backend(name, drive.medium, folder)
                arguments += ["-device", f"nvme,drive={name},serial={drive.serial}{_ocp(drive.ocp)}"]
            case NvmeSubsystem():
                arguments += _subsystem(name, drive, folder)
            case VirtioDisk():
                arguments += _backend(name, drive.medium, folder)
                arguments += ["-device", f"virtio-blk-pci,drive={name},serial={drive.serial}"]
            case _:
                assert_never(drive)
    return arguments


def _subsystem(name: str, drive: NvmeSubsystem, folder: Path) -> list[str]:
    fdp = ""
    if drive.fdp is not None:
        fdp = f",fdp=on,fdp.runs={drive.fdp.reclaim_unit_bytes},fdp.nrg=1,fdp.nruh={drive.fdp.handles}"
    arguments = ["-device", f"nvme-subsys,id={name}s,nqn={drive.serial}{fdp}"]
    arguments += ["-device", f"nvme,id={name}c,serial={drive.serial},subsys={name}s{_ocp(drive.ocp)}"]
    for namespace in drive.namespaces:
        backend = f"{name}n{namespace.nsid}"
        arguments += _backend(backend, namespace.medium, folder)
        device = f"nvme-ns,drive={backend},bus={name}c,nsid={namespace.nsid}"
        device += "" if namespace.attached else ",detached=on"
        device += "" if namespace.fdp_handles is None else f",fdp.ruhs={namespace.fdp_handles}"
        arguments += ["-device", device]
    return arguments


def _ocp(there: bool) -> str:
    return ",ocp=on" if there else ""


def _backend(name: str, medium: Medium, folder: Path) -> list[str]:
    if medium.uri is not None:
        source = medium.uri
    else:
        path = folder / f"{name}.raw"
        with path.open("wb") as file:
            file.truncate(medium.size_bytes)
        source = str(path)
    limit = "" if medium.iops_max is None else f",throttling.iops-total={medium.iops_max}"
    if medium.iops_group is not None:
        limit += f",throttling.group={medium.iops_group}"
    # A comma would end the value, so it is doubled. No data outlives the guest, so flushes are ignored.
    file_name = source.replace(",", ",,")
    return ["-drive", f"id={name},if=none,format=raw,cache=unsafe,discard=unmap,file={file_name}{limit}"]
