"""Parts and features of an NVMe drive, from its identify data and logs.

Bit and field names are those of the NVM Express Base Specification 2.0: section 5.17 (identify), 5.16 (logs).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

QEMU_VENDOR = 0x1B36
"""PCI vendor ID of QEMU's emulated controller, whose media counters are synthetic."""


@dataclass(frozen=True, slots=True)
class PlacementHandle:
    """A reclaim unit handle that a namespace may write through with FDP."""

    index: int
    """Placement identifier in writes (`pid` with one reclaim group)."""
    reclaim_unit_handle: int
    """Index in the endurance group; namespaces with the same handle share reclaim units."""


@dataclass(frozen=True, slots=True)
class NvmeNamespace:
    """A namespace allocated on the drive, attached to this host or not."""

    nsid: int
    attached: bool
    size_blocks: int
    """Size (NSZE) in LBAs."""
    capacity_blocks: int
    """Capacity (NCAP) in LBAs; below the size if thinly provisioned."""
    used_blocks: int
    """Utilization (NUSE) in LBAs."""
    block_bytes: int
    """Bytes of an LBA without metadata."""
    name: str | None = None
    """Block device, such as `nvme0n1` (its number is not the NSID); None: not attached."""
    shared: bool = False
    """Whether it may be attached to several controllers (NMIC bit 0)."""
    nvm_set: int | None = None
    endurance_group: int | None = None
    nguid: str = ""
    """32 hexadecimal digits; empty if the drive reports none. `eui64` has 16."""
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
    """An FDP configuration of an endurance group."""

    index: int
    reclaim_groups: int
    handles: int
    reclaim_unit_bytes: int


@dataclass(frozen=True, slots=True)
class EnduranceGroup:
    """Media with separate wear and counters."""

    id: int
    total_bytes: int | None = None
    """None: not reported; so is `unallocated_bytes`."""
    unallocated_bytes: int | None = None
    fdp_enabled: bool = False
    fdp_configs: tuple[FdpConfig, ...] = ()
    handles_used: tuple[bool, ...] | None = None
    """Whether a namespace uses each reclaim unit handle; None when not reported."""

    @property
    def handles_in_use(self) -> int | None:
        """Number of reclaim unit handles in use; None: not reported."""
        return None if self.handles_used is None else sum(self.handles_used)

    @property
    def unused_handles(self) -> tuple[int, ...]:
        """Reclaim unit handles that no namespace uses."""
        return tuple(index for index, used in enumerate(self.handles_used or ()) if not used)


@dataclass(frozen=True, slots=True)
class NvmSet:
    """Media with separate garbage collection."""

    id: int
    endurance_group: int
    total_bytes: int
    unallocated_bytes: int


@dataclass(frozen=True, slots=True)
class NvmeController:
    """Fields of Identify Controller."""

    name: str
    """Name below /dev, such as `nvme0`."""
    model: str
    serial: str
    firmware: str
    vendor: int
    controller_id: int
    subsystem_nqn: str
    oacs: int
    """Optional admin commands (bits)."""
    ctratt: int
    """Controller attributes (bits)."""
    total_bytes: int | None
    """TNVMCAP; None: not reported; so is `unallocated_bytes` (UNVMCAP)."""
    unallocated_bytes: int | None
    max_namespaces: int
    max_endurance_group: int = 0
    transport: str = ""
    address: str = ""
    multipath: bool = False
    """Whether the kernel uses multipath for its namespaces."""

    @property
    def emulated(self) -> bool:
        return self.vendor == QEMU_VENDOR

    @property
    def namespace_management(self) -> bool:
        """OACS bit 3, which QEMU sets although it only supports attachment."""
        return bool(self.oacs & 1 << 3)

    @property
    def nvm_sets(self) -> bool:
        """Whether it has NVM sets (CTRATT bit 2)."""
        return bool(self.ctratt & 1 << 2)

    @property
    def uuid_list(self) -> bool:
        """Whether a UUID list identifies its vendor-specific logs and commands (CTRATT bit 9)."""
        return bool(self.ctratt & 1 << 9)

    @property
    def endurance_groups(self) -> bool:
        """Whether it has endurance groups (CTRATT bit 4)."""
        return bool(self.ctratt & 1 << 4)

    @property
    def capacity_management(self) -> bool:
        """Whether endurance groups and NVM sets can be created (CTRATT bits 11 and 12)."""
        return bool(self.ctratt & (1 << 11 | 1 << 12))

    @property
    def fdp(self) -> bool:
        """Whether it supports FDP (CTRATT bit 19)."""
        return bool(self.ctratt & 1 << 19)


@dataclass(frozen=True, slots=True)
class NvmeDevice:
    """A drive as discovered through one controller."""

    controller: NvmeController
    namespaces: tuple[NvmeNamespace, ...] = ()
    groups: tuple[EnduranceGroup, ...] = ()
    sets: tuple[NvmSet, ...] = ()
    ocp: bool = False
    """Whether it has OCP's extended SMART log (C0h)."""
    ops: DriveOps | None = None
    """OPS of its namespaces; None: not reported."""
    notes: tuple[str, ...] = field(default=())
    """One sentence for each read that failed."""

    def namespace(self, nsid: int) -> NvmeNamespace | None:
        return next((namespace for namespace in self.namespaces if namespace.nsid == nsid), None)

    @property
    def has_own_ops(self) -> bool:
        """Whether each namespace has its own blocks; in a shared pool each reports the blocks of all."""
        sizes = {namespace.nsid: namespace.size_bytes for namespace in self.namespaces}
        return self.ops is not None and all(
            item.logical_blocks * self.ops.block_bytes < sizes[item.nsid] + self.ops.block_bytes
            for item in self.ops.namespaces
            if item.nsid in sizes
        )

    def group(self, id_: int | None) -> EnduranceGroup | None:
        """The endurance group with this ID; None if there is none."""
        return next((group for group in self.groups if group.id == id_), None)


class Isolation(StrEnum):
    """Isolation of a VM's stream, strongest first; see docs/nvme.md."""

    ISOLATED = "isolated OPS"
    """Separate media, garbage collection and spare capacity."""
    SEPARATION = "separation"
    """FDP: separate reclaim units, shared spare capacity."""
    CAPACITY = "capacity partition"
    """A namespace: only the address space is separate."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class OfferedPlacement:
    """Strongest placement of a drive, with what it isolates and what it shares."""

    isolation: Isolation
    by: str
    """Mechanism, such as `NVM sets` or `FDP`; empty without one."""
    isolates: str
    shares: str
    why: str
    """Identify data or log that shows it."""


@dataclass(frozen=True, slots=True)
class NamespaceOps:
    """OPS and GC counters (since its creation) of a namespace."""

    nsid: int
    ops_blocks: int
    min_ops_blocks: int
    """Minimum with which GC always makes progress."""
    logical_blocks: int
    """Blocks of its logical size."""
    host_page_writes: int
    gc_page_writes: int
    victims: int
    victim_valid_pages: int


@dataclass(frozen=True, slots=True)
class DriveOps:
    """OPS of all namespaces of a drive, from its log page E0h (`host.nvme.ops`)."""

    at_s: float
    """Time of a monotonic clock."""
    block_bytes: int
    page_bytes: int
    spare_blocks: int
    pending_blocks: int
    """Blocks still to be moved."""
    namespaces: tuple[NamespaceOps, ...]

    @property
    def pages_per_block(self) -> int:
        return self.block_bytes // self.page_bytes

    def namespace(self, nsid: int) -> NamespaceOps | None:
        return next((namespace for namespace in self.namespaces if namespace.nsid == nsid), None)
