"""Planning a device from `name=ssd0,preset=fast15,size=8GiB,op=15%`, `name=hdd0,preset=cheetah-15k7` or
`name=raid0,class=raid0,disks=4`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ftl_emul import DiskPreset, disk_presets
from slo_ctl.base.clock import now_text
from slo_ctl.base.errors import UserError
from slo_ctl.base.keyvalue import Fields, split_pairs
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.drives.build import PRESET_NAMES, SCHEDULER_NAMES, DrivePlan, device_spec, divide, plan_drive
from slo_ctl.drives.record import (
    MAX_NAMESPACES,
    Array,
    DeviceRecord,
    DiskParameters,
    DiskRecord,
    Namespace,
    SsdRecord,
    check_name,
)
from slo_ctl.model.slo import MAX_WEIGHT, MIN_WEIGHT

CLASSES = ("ssd", "disk", "raid0")
_DEFAULT_PRESETS = {"disk": "barracuda-xt", "raid0": "cheetah-15k7"}
"""Default presets of hard disks, by class."""
_DEFAULT_RAID_DISKS = 2
_DEFAULT_STRIPE_BYTES = 64 << 10
MAX_DISKS = 64
_SECTOR_BYTES = 512
_DEFAULT_SCHEDULER = "wfq"
_OWN_KEYS = ("name", "class", "placement", "scheduler", "precondition", "unallocated")
"""Keys of a device that a drive of a replay does not have."""
_NOUN = "namespace"
_UNALLOCATED = "unallocated="


@dataclass(frozen=True, slots=True)
class RequestedNamespace:
    """Options of a namespace; `size_bytes` None: an equal part of the remaining space."""

    name: str
    size_bytes: int | None
    weight: float


def plan_device(spec: str, namespaces: Sequence[str]) -> DeviceRecord:
    """Record of the device that the options describe.

    Without namespaces it gets one of the whole size with its own name. Raises UserError naming option and
    key.
    """
    pairs = split_pairs("device", spec)
    if _is_disk(pairs):
        return _plan_disk(spec, pairs, namespaces)
    own = Fields("device", {key: value for key, value in pairs.items() if key in _OWN_KEYS})
    own.flag("precondition")
    own.choice("class", CLASSES)
    name = _name("device", own, "ssd0")
    isolated = own.choice("placement", ("isolated", "shared")) != "shared"
    scheduler = own.choice("scheduler", SCHEDULER_NAMES) or _DEFAULT_SCHEDULER
    drive = device_spec(Fields(f"device {name}", drive_pairs(pairs)))
    unallocated_bytes = own.size("unallocated") or 0
    size_bytes = drive.size_bytes - unallocated_bytes
    if size_bytes <= 0:
        raise UserError(
            f"device {name}: unallocated={format_bytes_exact(unallocated_bytes)} leaves no space",
            f"choose less than the {format_bytes_exact(drive.size_bytes)} of the device",
        )
    parts = _parts(namespaces) or [RequestedNamespace(name, size_bytes, 1.0)]
    sizes = divide(size_bytes, [(f"--namespace {part.name}", part.size_bytes) for part in parts], _NOUN)
    sized = [(part.name, size) for part, size in zip(parts, sizes, strict=True)]
    if unallocated_bytes:
        # Blocks are counted as for one more namespace, which is not created.
        sized.append((_UNALLOCATED, unallocated_bytes))
    plan = plan_drive(drive, sized, noun=_NOUN, scheduler=scheduler)
    config = plan.config
    count = len(parts)
    return SsdRecord(
        name=name,
        spec=spec,
        created=now_text(),
        capacity_bytes=plan.total_pages * config.page_bytes if unallocated_bytes else None,
        drive=config,
        isolated=isolated,
        namespace=tuple(
            Namespace(
                name=part.name, size_bytes=pages * config.page_bytes, weight=part.weight, ops_blocks=ops
            )
            for part, pages, ops in zip(
                parts,
                plan.logical_pages[:count],
                _ops_blocks(plan, isolated=isolated)[:count],
                strict=True,
            )
        ),
    )


def drive_pairs(pairs: Mapping[str, str]) -> dict[str, str]:
    """The keys of a device that a drive of a replay also has."""
    return {key: value for key, value in pairs.items() if key not in _OWN_KEYS}


def wants_preconditioning(spec: str) -> bool:
    """Whether the device shall be preconditioned after its creation. Raises UserError."""
    pairs = split_pairs("device", spec)
    if _is_disk(pairs):
        return False
    return Fields("device", pairs).flag("precondition") is True


def _ops_blocks(plan: DrivePlan, *, isolated: bool) -> tuple[int, ...]:
    """OPS and the blocks that GC keeps free, which namespaces that share a pool need only once."""
    held = plan.config.held_blocks
    return tuple(ops + (held if isolated or index == 0 else 0) for index, ops in enumerate(plan.ops_blocks))


def _parts(options: Sequence[str]) -> list[RequestedNamespace]:
    if len(options) > MAX_NAMESPACES:
        raise UserError(f"{len(options)} namespaces are too many", f"a device has at most {MAX_NAMESPACES}")
    return [parse_namespace(option) for option in options]


def parse_namespace(option: str) -> RequestedNamespace:
    """From `name=db,size=2GiB,weight=3`. Raises UserError naming the key."""
    where = f"--namespace {option}"
    if "=" not in option:
        raise UserError(f"{where}: not key=value", f"write --namespace name={option or 'db'}")
    fields = Fields(where, dict(split_pairs(where, option)))
    weight = fields.number("weight", least=MIN_WEIGHT, most=MAX_WEIGHT)
    part = RequestedNamespace(_name(where, fields, "vm1"), fields.size("size"), weight or 1.0)
    fields.finish()
    return part


def _name(where: str, fields: Fields, example: str) -> str:
    name = fields.text("name")
    if name is None:
        raise UserError(f"{where}: the name is missing", f"add name=NAME, such as name={example}")
    return check_name(f"{where}: name", name)


# Hard disks.


def _is_disk(pairs: Mapping[str, str]) -> bool:
    """Whether the options describe hard disks."""
    return pairs.get("class", "") in _DEFAULT_PRESETS or pairs.get("preset", "") in _presets()


def _plan_disk(spec: str, pairs: Mapping[str, str], namespaces: Sequence[str]) -> DiskRecord:
    """Record of the hard disks that the options describe; namespaces follow each other from the outer tracks.

    Raises UserError naming option and key.
    """
    fields = Fields("device", dict(pairs))
    name = _name("device", fields, "hdd0")
    disks = fields.count("disks", most=MAX_DISKS)
    kind = fields.choice("class", CLASSES) or ("raid0" if (disks or 1) > 1 else "disk")
    if kind == "ssd":
        raise UserError(f"device {name}: preset {pairs['preset']} is a hard disk", "omit class=")
    disks = disks or (_DEFAULT_RAID_DISKS if kind == "raid0" else 1)
    if (kind == "disk") != (disks == 1):
        raise UserError(
            f"device {name}: class={kind} with disks={disks}",
            "write class=raid0 for several disks"
            if kind == "disk"
            else "write class=disk, or disks=2 or more",
        )
    preset = _presets()[fields.choice("preset", _presets()) or _DEFAULT_PRESETS[kind]]
    array = Array(
        disks=disks,
        stripe_bytes=_stripe(name, fields),
        scheduler=fields.choice("scheduler", SCHEDULER_NAMES) or "fifo",
        queue_depth=fields.count("queue", most=16384) or 0,
    )
    disk = DiskParameters(**{key: getattr(preset, key) for key in DiskParameters.model_fields})
    if fields.flag("write_cache") is False:
        disk = disk.model_copy(update={"write_cache_bytes": 0})
    capacity_bytes = disk.capacity_bytes // array.stripe_bytes * array.stripe_bytes * disks
    size_bytes = fields.size("size") or capacity_bytes
    fields.finish()
    if size_bytes > capacity_bytes:
        raise UserError(
            f"device {name}: size {format_bytes_exact(size_bytes)} is more than the disks hold",
            f"write at most size={format_bytes_exact(capacity_bytes)}, the size of "
            f"{'one disk' if disks == 1 else f'{disks} disks'} {preset.name}",
        )
    parts = _parts(namespaces) or [RequestedNamespace(name, size_bytes, 1.0)]
    return DiskRecord(
        name=name,
        spec=spec,
        created=now_text(),
        array=array,
        disk=disk,
        namespace=_disk_namespaces(name, parts, size_bytes),
    )


def preset_names() -> tuple[str, ...]:
    """Presets of SSDs, then of hard disks."""
    return (*PRESET_NAMES, *_presets())


def _presets() -> dict[str, DiskPreset]:
    return {preset.name: preset for preset in disk_presets()}


def _stripe(name: str, fields: Fields) -> int:
    stripe_bytes = fields.size("stripe") or _DEFAULT_STRIPE_BYTES
    if stripe_bytes % _SECTOR_BYTES or stripe_bytes > 1 << 30:
        raise UserError(
            f"device {name}: stripe {stripe_bytes} is not a multiple of 512 up to 1 GiB", "try 64KiB"
        )
    return stripe_bytes


def _disk_namespaces(
    device: str, parts: Sequence[RequestedNamespace], size_bytes: int
) -> tuple[Namespace, ...]:
    """Namespaces with their sizes; those without one get equal parts of the remaining space."""
    names = [part.name for part in parts]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--namespace {name} is given twice", "give each its own name")
    left = size_bytes - sum(part.size_bytes or 0 for part in parts)
    open_parts = sum(part.size_bytes is None for part in parts)
    share = left // max(open_parts, 1) // _SECTOR_BYTES * _SECTOR_BYTES
    if left < 0 or (open_parts and share == 0):
        raise UserError(
            f"device {device}: its namespaces are larger than its {format_bytes_exact(size_bytes)}",
            "make some smaller, or omit size= to divide the remaining space",
        )
    sizes = [share if part.size_bytes is None else part.size_bytes for part in parts]
    for part, size in zip(parts, sizes, strict=True):
        if size % _SECTOR_BYTES:
            raise UserError(f"--namespace {part.name}: {size} bytes is not a multiple of 512", "try 1GiB")
    return tuple(
        Namespace(name=part.name, size_bytes=size, weight=part.weight, ops_blocks=0)
        for part, size in zip(parts, sizes, strict=True)
    )
