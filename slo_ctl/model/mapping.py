"""A VM's stream on an NVMe namespace: how it came to be there, step by step, and how it is undone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Purpose(StrEnum):
    """Purpose of a step of a mapping."""

    MAP = "map"
    UNMAP = "unmap"


class SpareOwner(StrEnum):
    """Whose over-provisioning the spare capacity is."""

    VM = "the VM's own"
    DRIVE = "the drive's"


@dataclass(frozen=True, slots=True)
class DriveIdentity:
    """Identity of a drive, the same when the kernel renames it."""

    model: str
    serial: str
    subsystem_nqn: str

    def __str__(self) -> str:
        return f"{self.model} {self.serial}"


@dataclass(frozen=True, slots=True)
class LbaFormat:
    """A way of formatting a namespace that a drive offers."""

    index: int
    block_bytes: int
    metadata_bytes: int
    relative_performance: int
    """0 is best (NVM Command Set Specification, LBA Format Data Structure)."""


@dataclass(frozen=True, slots=True)
class CreateNamespace:
    """Allocate a namespace, all of its size as capacity."""

    size_blocks: int
    block_bytes: int
    format_index: int
    endurance_group: int | None = None
    nvm_set: int | None = None
    handles: tuple[int, ...] = ()
    """Reclaim unit handles that it may write through."""
    kind: Literal["create"] = "create"


@dataclass(frozen=True, slots=True)
class AttachNamespace:
    """Have a controller of this host offer the namespace."""

    controller_id: int
    kind: Literal["attach"] = "attach"


@dataclass(frozen=True, slots=True)
class Deallocate:
    """Tell the drive that nothing is stored in these bytes of the namespace."""

    offset_bytes: int
    length_bytes: int
    kind: Literal["deallocate"] = "deallocate"


@dataclass(frozen=True, slots=True)
class GiveDisk:
    """Make the namespace's first `size_bytes` a disk of the VM."""

    target: str | None
    """None: the next free one."""
    bus: str | None
    size_bytes: int
    whole: bool
    """The VM gets all of the namespace."""
    kind: Literal["give disk"] = "give disk"


@dataclass(frozen=True, slots=True)
class TakeDisk:
    """Take the disk out of the VM."""

    unplug: bool
    """Also remove it from the running VM."""
    kind: Literal["take disk"] = "take disk"


@dataclass(frozen=True, slots=True)
class DetachNamespace:
    """Have a controller of this host offer the namespace no more; the data stay."""

    controller_id: int
    kind: Literal["detach"] = "detach"


@dataclass(frozen=True, slots=True)
class DeleteNamespace:
    """Destroy the namespace and its data."""

    kind: Literal["delete"] = "delete"


Step = (
    CreateNamespace | AttachNamespace | Deallocate | GiveDisk | TakeDisk | DetachNamespace | DeleteNamespace
)
DESTRUCTIVE = (Deallocate, DeleteNamespace)
"""Steps that destroy data."""


@dataclass(frozen=True, slots=True)
class Spare:
    """Capacity beyond what the VM can write, for the drive's garbage collection."""

    size_bytes: int
    owner: SpareOwner
    how: str
    """`unallocated` or `deallocated`; empty for none."""


@dataclass(frozen=True, slots=True)
class NamespacePlacement:
    """Isolation of this VM's stream, in the terms of docs/nvme.md."""

    isolation: str
    by: str


@dataclass(frozen=True, slots=True)
class NamespaceMapping:
    """One VM on one namespace. Complete when all `steps` are `done` and the purpose is to map."""

    vm: str
    drive: DriveIdentity
    controller: str
    """Last known name, such as `nvme0`."""
    size_bytes: int
    """Size that the VM sees."""
    created: bool
    """The namespace is ours; otherwise it was adopted, and is never deleted."""
    spare: Spare
    placement: NamespacePlacement
    steps: tuple[Step, ...]
    done: int = 0
    """Number of `steps` that are done."""
    purpose: Purpose = Purpose.MAP
    nsid: int | None = None
    """None: not yet created."""
    namespace_bytes: int = 0
    """Size of the whole namespace."""
    nguid: str = ""
    attached_by_us: bool = False
    """The namespace was not offered to this host before."""
    pool: str = ""
    """Capacity that its spare is a part of: `drive`, `group N` or `set N`."""
    target: str = ""
    """The VM's disk, once it has one."""
    path: str = ""
    """The path that libvirt opens for it."""
    namespaces_before: tuple[int, ...] | None = None
    """NSIDs on the drive just before ours was created: after a crash, ours is one that is not among them."""

    @property
    def complete(self) -> bool:
        """Whether all steps are done."""
        return self.done == len(self.steps)

    def __str__(self) -> str:
        return f"VM {self.vm} on namespace {self.nsid or '(new)'} of {self.drive}"
