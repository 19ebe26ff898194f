"""An NVMe drive: its parts and features, from its identify data and logs.

Bit and field names are those of the NVM Express Base Specification 2.0: section 5.17 (identify), 5.16 (logs).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

QEMU_VENDOR = 0x1B36
"""PCI vendor of QEMU's emulated controller, whose media counters are synthetic."""


@dataclass(frozen=True, slots=True)
class PlacementHandle:
    """A reclaim unit handle that a namespace may write through with FDP."""

    index: int
    """Placement identifier in writes (`pid` with one reclaim group)."""
    reclaim_unit_handle: int
    """Of the endurance group: namespaces that have the same one share reclaim units."""


@dataclass(frozen=True, slots=True)
class NvmeNamespace:
    """A namespace that is allocated on the drive, whether a controller of this host has it or not."""

    nsid: int
    attached: bool
    size_blocks: int
    """NSZE."""
    capacity_blocks: int
    """NCAP: less than the size where it is thinly provisioned."""
    used_blocks: int
    """NUSE."""
    block_bytes: int
    """Data of one LBA in the format in use, without metadata."""
    name: str | None = None
    """The block device of this host, such as `nvme0n1`. The number in it is not the NSID."""
    shared: bool = False
    """NMIC bit 0: several controllers may have it."""
    nvm_set: int | None = None
    endurance_group: int | None = None
    nguid: str = ""
    """32 hexadecimal digits; empty when the drive gives none. `eui64` likewise, 16."""
    eui64: str = ""
    handles: tuple[PlacementHandle, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Size that a host sees."""
        return self.size_blocks * self.block_bytes

    @property
    def capacity_bytes(self) -> int:
        """Capacity: bytes that may be stored in it."""
        return self.capacity_blocks * self.block_bytes


@dataclass(frozen=True, slots=True)
class FdpConfig:
    """A way of placing data that an endurance group can be set to."""

    index: int
    reclaim_groups: int
    handles: int
    reclaim_unit_bytes: int


@dataclass(frozen=True, slots=True)
class EnduranceGroup:
    """Media that wears, and is counted, apart from the rest."""

    id: int
    total_bytes: int | None = None
    """None: the drive does not report it. Same for what is unallocated."""
    unallocated_bytes: int | None = None
    fdp_enabled: bool = False
    fdp_configs: tuple[FdpConfig, ...] = ()
    handles_used: tuple[bool, ...] | None = None
    """Whether a namespace uses each reclaim unit handle; None when not reported."""

    @property
    def handles_in_use(self) -> int | None:
        """How many are."""
        return None if self.handles_used is None else sum(self.handles_used)

    @property
    def unused_handles(self) -> tuple[int, ...]:
        """Reclaim unit handles that no namespace uses."""
        return tuple(index for index, used in enumerate(self.handles_used or ()) if not used)


@dataclass(frozen=True, slots=True)
class NvmSet:
    """Media that is managed apart from the rest: its garbage collection is its own."""

    id: int
    endurance_group: int
    total_bytes: int
    unallocated_bytes: int


@dataclass(frozen=True, slots=True)
class NvmeController:
    """Part of Identify Controller."""

    name: str
    """`nvme0`: the admin device below /dev."""
    model: str
    serial: str
    firmware: str
    vendor: int
    controller_id: int
    subsystem_nqn: str
    oacs: int
    """Optional admin commands."""
    ctratt: int
    """Controller attributes."""
    total_bytes: int | None
    """TNVMCAP; None: not reported. Same for UNVMCAP."""
    unallocated_bytes: int | None
    max_namespaces: int
    max_endurance_group: int = 0
    transport: str = ""
    address: str = ""
    multipath: bool = False
    """The kernel puts multipath disks before its namespaces."""

    @property
    def emulated(self) -> bool:
        """Whether QEMU emulates it."""
        return self.vendor == QEMU_VENDOR

    @property
    def namespace_management(self) -> bool:
        """OACS bit 3. QEMU claims it and knows attachment only."""
        return bool(self.oacs & 1 << 3)

    @property
    def nvm_sets(self) -> bool:
        """CTRATT bit 2."""
        return bool(self.ctratt & 1 << 2)

    @property
    def uuid_list(self) -> bool:
        """CTRATT bit 9: it says whose its vendor-specific logs and commands are."""
        return bool(self.ctratt & 1 << 9)

    @property
    def endurance_groups(self) -> bool:
        """CTRATT bit 4."""
        return bool(self.ctratt & 1 << 4)

    @property
    def capacity_management(self) -> bool:
        """CTRATT bits 11 (fixed) and 12 (variable): endurance groups and NVM sets can be made."""
        return bool(self.ctratt & (1 << 11 | 1 << 12))

    @property
    def fdp(self) -> bool:
        """CTRATT bit 19."""
        return bool(self.ctratt & 1 << 19)


@dataclass(frozen=True, slots=True)
class NvmeDevice:
    """All that was found out about one controller's drive."""

    controller: NvmeController
    namespaces: tuple[NvmeNamespace, ...] = ()
    groups: tuple[EnduranceGroup, ...] = ()
    sets: tuple[NvmSet, ...] = ()
    ocp: bool = False
    """Whether it has OCP's extended SMART log (C0h)."""
    ops: DriveOps | None = None
    """OPS of its namespaces; None: it does not report that."""
    notes: tuple[str, ...] = field(default=())
    """Reads that failed, one sentence each."""

    def namespace(self, nsid: int) -> NvmeNamespace | None:
        """The one with this NSID."""
        return next((each for each in self.namespaces if each.nsid == nsid), None)

    @property
    def has_own_ops(self) -> bool:
        """Whether each namespace has flash blocks of its own; those of one pool report the blocks of all."""
        sizes = {each.nsid: each.size_bytes for each in self.namespaces}
        return self.ops is not None and all(
            each.logical_blocks * self.ops.block_bytes < sizes[each.nsid] + self.ops.block_bytes
            for each in self.ops.namespaces
            if each.nsid in sizes
        )

    def group(self, id_: int | None) -> EnduranceGroup | None:
        """The endurance group with this number."""
        return next((each for each in self.groups if each.id == id_), None)


class Isolation(StrEnum):
    """The strongest that a drive offers to a VM's stream, in the words of docs/nvme.md."""

    ISOLATED = "isolated OPS"
    """Media, garbage collection and spare of its own."""
    SEPARATION = "separation"
    """FDP: reclaim units of its own, spare shared."""
    CAPACITY = "capacity partition"
    """A namespace: only the address space is its own."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class OfferedPlacement:
    """Placement that a drive offers, and what it does and does not isolate."""

    isolation: Isolation
    by: str
    """The mechanism, such as `NVM sets` or `FDP`; empty for none."""
    isolates: str
    shares: str
    why: str
    """The data of the drive that shows it."""


@dataclass(frozen=True, slots=True)
class NamespaceOps:
    """OPS of a namespace, and what garbage collection has done there since it was created."""

    nsid: int
    ops_blocks: int
    min_ops_blocks: int
    """The fewest with which GC is sure to make progress."""
    logical_blocks: int
    """Blocks that its size fills."""
    host_page_writes: int
    gc_page_writes: int
    victims: int
    victim_valid_pages: int


@dataclass(frozen=True, slots=True)
class DriveOps:
    """OPS of every namespace of a drive, as its log page E0h has them (`host.nvme.ops`)."""

    at_s: float
    """Time of a monotonic clock."""
    block_bytes: int
    page_bytes: int
    spare_blocks: int
    pending_blocks: int
    """That moves still have to hand over."""
    namespaces: tuple[NamespaceOps, ...]

    @property
    def pages_per_block(self) -> int:
        """Pages of a block."""
        return self.block_bytes // self.page_bytes

    def namespace(self, nsid: int) -> NamespaceOps | None:
        """The one with this NSID."""
        return next((each for each in self.namespaces if each.nsid == nsid), None)
