"""The emulated SSD: a flash translation layer with tenants, over-provisioning isolation and virtual time; and
hard disks.

The work is done by the compiled `ftl_emul._core`; this package is its typed face. Arrays go in as contiguous
numpy columns, records come out, and the GIL is released in between.
"""

from ftl_emul._core import (
    Device,
    DiskPreset,
    Disks,
    LatencyUs,
    Moved,
    MoveRecord,
    Preconditioning,
    Preset,
    QueueRecord,
    SpaceRecord,
    TenantRecord,
    disk_presets,
    mappings,
    presets,
    schedulers,
    victim_policies,
)
from ftl_emul.config import LEAST_LOG_BLOCKS, Config

__all__ = [
    "LEAST_LOG_BLOCKS",
    "Config",
    "Device",
    "DiskPreset",
    "Disks",
    "DriveError",
    "LatencyUs",
    "MoveRecord",
    "Moved",
    "Preconditioning",
    "Preset",
    "QueueRecord",
    "SpaceRecord",
    "TenantRecord",
    "disk_presets",
    "mappings",
    "presets",
    "schedulers",
    "victim_policies",
]


class DriveError(Exception):
    """A request that the emulated SSD refused; nothing was changed."""
