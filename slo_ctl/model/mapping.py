"""Mapping of a VM onto an NVMe namespace: the steps of mapping and unmapping, and their state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Purpose(StrEnum):
    """Purpose of a step of a mapping."""

    MAP = "map"
    UNMAP = "unmap"


class SpareOwner(StrEnum):
    """Owner of spare capacity."""

    VM = "the VM's own"
    DRIVE = "the drive's"


@dataclass(frozen=True, slots=True)
class DriveIdentity:
    """Identity of a drive, independent of its kernel name."""

    model: str
    serial: str
    subsystem_nqn: str

    def __str__(self) -> str:
        return f"{self.model} {self.serial}"


@dataclass(frozen=True, slots=True)
class LbaFormat:
    """An LBA format that a drive supports."""

    index: int
    block_bytes: int
    metadata_bytes: int
    relative_performance: int
    """0 is best (NVM Command Set Specification, LBA Format Data Structure)."""


@dataclass(frozen=True, slots=True)
class CreateNamespace:
    """Create a namespace whose capacity equals its size."""

    size_blocks: int
    block_bytes: int
    format_index: int
    endurance_group: int | None = None
    nvm_set: int | None = None
    handles: tuple[int, ...] = ()
    """Reclaim unit handles that the namespace may use."""
    kind: Literal["create"] = "create"


@dataclass(frozen=True, slots=True)
class AttachNamespace:
    """Attach the namespace to a controller of this host."""

    controller_id: int
    kind: Literal["attach"] = "attach"


@dataclass(frozen=True, slots=True)
class Deallocate:
    """Deallocate a range of the namespace."""

    offset_bytes: int
    length_bytes: int
    kind: Literal["deallocate"] = "deallocate"


@dataclass(frozen=True, slots=True)
class AddDisk:
    """Add the first `size_bytes` of the namespace to the VM as a disk."""

    target: str | None
    """Target of the disk; None: the next free one."""
    bus: str | None
    size_bytes: int
    whole: bool
    """Whether the disk is the whole namespace."""
    kind: Literal["give disk"] = "give disk"


@dataclass(frozen=True, slots=True)
class RemoveDisk:
    """Remove the disk from the VM."""

    unplug: bool
    """Also remove it from the running VM."""
    kind: Literal["take disk"] = "take disk"


@dataclass(frozen=True, slots=True)
class DetachNamespace:
    """Detach the namespace from a controller of this host; its data is kept."""

    controller_id: int
    kind: Literal["detach"] = "detach"


@dataclass(frozen=True, slots=True)
class DeleteNamespace:
    """Delete the namespace and its data."""

    kind: Literal["delete"] = "delete"


Step = (
    CreateNamespace | AttachNamespace | Deallocate | AddDisk | RemoveDisk | DetachNamespace | DeleteNamespace
)
DESTRUCTIVE = (Deallocate, DeleteNamespace)
"""Steps that destroy data."""


@dataclass(frozen=True, slots=True)
class Spare:
    """Capacity that the VM cannot write, for garbage collection of the drive."""

    size_bytes: int
    owner: SpareOwner
    how: str
    """`unallocated` or `deallocated`; empty without spare capacity."""


@dataclass(frozen=True, slots=True)
class NamespacePlacement:
    """Isolation of the VM's stream, and the mechanism; see docs/nvme.md."""

    isolation: str
    by: str


@dataclass(frozen=True, slots=True)
class NamespaceMapping:
    """One VM on one namespace, with the steps of mapping or unmapping."""

    vm: str
    drive: DriveIdentity
    controller: str
    """Last known name of the controller, such as `nvme0`."""
    size_bytes: int
    """Size of the VM's disk."""
    created: bool
    """Whether slo-ctl created the namespace; otherwise it was adopted and is never deleted."""
    spare: Spare
    placement: NamespacePlacement
    steps: tuple[Step, ...]
    done: int = 0
    """Number of completed `steps`."""
    purpose: Purpose = Purpose.MAP
    nsid: int | None = None
    """NSID; None: not yet created."""
    namespace_bytes: int = 0
    """Size of the whole namespace."""
    nguid: str = ""
    attached_by_us: bool = False
    """Whether slo-ctl attached the namespace."""
    pool: str = ""
    """Capacity that the namespace is part of: `drive`, `group N` or `set N`."""
    target: str = ""
    """Target of the VM's disk; empty before it was added."""
    path: str = ""
    """Path of the disk's source."""
    namespaces_before: tuple[int, ...] | None = None
    """NSIDs before the creation, to identify the new namespace, also after a crash."""

    @property
    def complete(self) -> bool:
        """Whether all steps are done."""
        return self.done == len(self.steps)

    def __str__(self) -> str:
        return f"VM {self.vm} on namespace {self.nsid or '(new)'} of {self.drive}"
