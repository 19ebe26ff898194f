"""From `name=hdd0,preset=cheetah-15k7` or `name=raid0,class=raid0,disks=4` to a hard disk, or several."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ftl_emul import DiskPreset, disk_presets
from slo_ctl.device.record import MAX_NAMESPACES, Array, Disk, DiskRecord, Namespace, check_name
from slo_ctl.errors import UserError
from slo_ctl.quantity import format_bytes_exact
from slo_ctl.replay.fields import Fields, split_pairs
from slo_ctl.replay.scenario_parts import SCHEDULER_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CLASSES = ("ssd", "disk", "raid0")
DEFAULT_PRESETS = {"disk": "barracuda-xt", "raid0": "cheetah-15k7"}
"""The disks of bench/serra.py's classes."""
DEFAULT_RAID_DISKS = 2
DEFAULT_STRIPE_BYTES = 64 << 10
MAX_DISKS = 64
_SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class _Part:
    """A namespace as it was asked for."""

    name: str
    size_bytes: int | None
    weight: float


def is_disk(pairs: Mapping[str, str]) -> bool:
    """Whether the options of a device are those of disks."""
    return pairs.get("class", "") in DEFAULT_PRESETS or pairs.get("preset", "") in _presets()


def plan_disk(spec: str, pairs: Mapping[str, str], namespaces: Sequence[str]) -> DiskRecord:
    """The disks that the options describe; namespaces are parts of them, from the outside in.

    Raises UserError naming option and key.
    """
    fields = Fields("device", dict(pairs))
    name = fields.text("name")
    if name is None:
        raise UserError("device: it has no name", "add name=NAME, such as name=hdd0")
    name = check_name("device: name", name)
    disks = fields.count("disks", most=MAX_DISKS)
    kind = fields.choice("class", CLASSES) or ("raid0" if (disks or 1) > 1 else "disk")
    if kind == "ssd":
        raise UserError(f"device {name}: preset {pairs['preset']} is a hard disk", "leave class= out")
    disks = disks or (DEFAULT_RAID_DISKS if kind == "raid0" else 1)
    if (kind == "disk") != (disks == 1):
        raise UserError(
            f"device {name}: class={kind} with disks={disks}", "write class=raid0 for several disks"
        )
    preset = _presets()[fields.choice("preset", _presets()) or DEFAULT_PRESETS[kind]]
    array = Array(
        disks=disks,
        stripe_bytes=_stripe(name, fields),
        scheduler=fields.choice("scheduler", SCHEDULER_NAMES) or "fifo",
        queue_depth=fields.count("queue", most=16384) or 0,
    )
    disk = Disk(**{key: getattr(preset, key) for key in Disk.model_fields})
    if fields.flag("write_cache") is False:
        disk = disk.model_copy(update={"write_cache_bytes": 0})
    capacity_bytes = disk.capacity_bytes // array.stripe_bytes * array.stripe_bytes * disks
    size_bytes = fields.size("size") or capacity_bytes
    fields.finish()
    if size_bytes > capacity_bytes:
        raise UserError(
            f"device {name}: size {format_bytes_exact(size_bytes)} is more than the disks hold",
            f"{disks} of {preset.name} have {format_bytes_exact(capacity_bytes)}",
        )
    parts = [_part(option) for option in namespaces] or [_Part(name, size_bytes, 1.0)]
    return DiskRecord(
        name=name,
        spec=spec,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        array=array,
        disk=disk,
        namespace=_laid_out(name, parts, size_bytes),
    )


def _presets() -> dict[str, DiskPreset]:
    return {preset.name: preset for preset in disk_presets()}


def _stripe(name: str, fields: Fields) -> int:
    stripe_bytes = fields.size("stripe") or DEFAULT_STRIPE_BYTES
    if stripe_bytes % _SECTOR_BYTES or stripe_bytes > 1 << 30:
        raise UserError(
            f"device {name}: stripe {stripe_bytes} is no multiple of 512 up to 1 GiB", "try 64KiB"
        )
    return stripe_bytes


def _part(option: str) -> _Part:
    where = f"--namespace {option}"
    fields = Fields(where, dict(split_pairs(where, option)))
    name = fields.text("name")
    if name is None:
        raise UserError(f"{where}: it has no name", "add name=NAME")
    part = _Part(check_name(where, name), fields.size("size"), fields.number("weight", above=0) or 1.0)
    fields.finish()
    return part


def _laid_out(device: str, parts: Sequence[_Part], size_bytes: int) -> tuple[Namespace, ...]:
    """Parts with their sizes; those without one share what the others leave."""
    if len(parts) > MAX_NAMESPACES:
        raise UserError(f"{len(parts)} namespaces are too many", f"a device has at most {MAX_NAMESPACES}")
    names = [part.name for part in parts]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--namespace {name} is there twice", "give each its own name")
    left = size_bytes - sum(part.size_bytes or 0 for part in parts)
    open_parts = sum(part.size_bytes is None for part in parts)
    share = left // max(open_parts, 1) // _SECTOR_BYTES * _SECTOR_BYTES
    if left < 0 or (open_parts and share == 0):
        raise UserError(
            f"device {device}: its namespaces are larger than its {format_bytes_exact(size_bytes)}",
            "make some smaller, or leave size= out to divide what is left",
        )
    sizes = [share if part.size_bytes is None else part.size_bytes for part in parts]
    for part, size in zip(parts, sizes, strict=True):
        if size % _SECTOR_BYTES:
            raise UserError(f"--namespace {part.name}: {size} bytes are no whole sectors of 512", "try 1GiB")
    return tuple(
        Namespace(name=part.name, size_bytes=size, weight=part.weight, ops_blocks=0)
        for part, size in zip(parts, sizes, strict=True)
    )
