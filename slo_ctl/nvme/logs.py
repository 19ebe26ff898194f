"""What the log commands print: FDP, endurance groups, SMART and OCP's extended SMART log.

Units are those of the NVM Express Base Specification 2.0, section 5.16, and of the OCP Datacenter NVMe SSD
Specification 2.0, section 4.8.5 (SMART-1: physical media units written, in bytes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slo_ctl.model.nvme import FdpConfig, PlacementHandle
from slo_ctl.nvme.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Mapping

SMART_UNIT_BYTES = 512_000
"""Data units written: thousands of 512 bytes."""
GROUP_UNIT_BYTES = 1_000_000_000
"""All units of the endurance group log."""


@dataclass(frozen=True, slots=True)
class FdpStatistics:
    """Of an endurance group, since it was made."""

    host_bytes: int
    """HBMW: host bytes with metadata written."""
    media_bytes: int
    """MBMW."""
    erased_bytes: int
    """MBE."""


@dataclass(frozen=True, slots=True)
class GroupLog:
    """Of an endurance group. In bytes, though counted in units of 10**9."""

    host_bytes: int
    media_bytes: int
    total_bytes: int | None
    """None: not told."""
    unallocated_bytes: int | None


def fdp_statistics(answer: Mapping[str, Any]) -> FdpStatistics:
    """From `fdp stats`. Raises NvmeSchemaError."""
    fields = Fields(answer, "fdp stats")
    return FdpStatistics(*(fields.uint(name, bits=128) for name in ("hbmw", "mbmw", "mbe")))


def fdp_configs(answer: Mapping[str, Any]) -> tuple[FdpConfig, ...]:
    """From `fdp configs`. Raises NvmeSchemaError."""
    return tuple(
        FdpConfig(
            index=index,
            reclaim_groups=each.uint("nrg", bits=32),
            handles=each.uint("nruh", bits=16),
            reclaim_unit_bytes=each.uint("runs"),
            max_handles_per_namespace=_handles_per_namespace(each),
        )
        for index, each in enumerate(Fields(answer, "fdp configs").each("configs"))
    )


def _handles_per_namespace(fields: Fields) -> int | None:
    """MAXPIDS, which no version up to 3.0-rc1 prints; for one that will."""
    return fields.uint("maxpids", bits=16) + 1 if fields.has("maxpids") else None


def fdp_handles_used(answer: Mapping[str, Any]) -> tuple[bool, ...]:
    """From `fdp usage`: by handle, whether it is not unused (0). Raises NvmeSchemaError."""
    return tuple(each.uint("ruha", bits=8) != 0 for each in Fields(answer, "fdp usage").each("ruhus"))


def fdp_handles(answer: Mapping[str, Any]) -> tuple[PlacementHandle, ...]:
    """From `fdp status` of a namespace. Raises NvmeSchemaError."""
    return tuple(
        PlacementHandle(each.uint("pid", bits=16), each.uint("ruhid", bits=16))
        for each in Fields(answer, "fdp status").each("ruhss")
    )


def group_log(answer: Mapping[str, Any]) -> GroupLog:
    """From `endurance-log`; 2.3 does not print the capacities. Raises NvmeSchemaError."""
    fields = Fields(answer, "endurance-log")
    total = fields.uint("total_end_grp_cap", bits=128, default=0)
    return GroupLog(
        host_bytes=fields.uint("data_units_written", bits=128) * GROUP_UNIT_BYTES,
        media_bytes=fields.uint("media_units_written", bits=128) * GROUP_UNIT_BYTES,
        total_bytes=total or None,
        unallocated_bytes=fields.uint("unalloc_end_grp_cap", bits=128, default=0) if total else None,
    )


def host_bytes_written(answer: Mapping[str, Any]) -> int:
    """From `smart-log`: in bytes, though counted in units of 512,000. Raises NvmeSchemaError."""
    return Fields(answer, "smart-log").uint("data_units_written", bits=128) * SMART_UNIT_BYTES


def ocp_media_bytes_written(answer: Mapping[str, Any]) -> int:
    """From `ocp smart-add-log`, in either schema. Raises NvmeSchemaError."""
    fields = Fields(answer, "ocp smart-add-log")
    return fields.wide("Physical media units written", "physical_media_units_written")
