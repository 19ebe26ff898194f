"""Building a drive from `preset=fast15,size=8GiB,op=15%`: presets, numbers of blocks, namespaces."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ftl_emul import (
    LEAST_LOG_BLOCKS,
    Config,
    Device,
    DriveError,
    Preset,
    mappings,
    presets,
    schedulers,
    victim_policies,
)
from slo_ctl.base.errors import UserError
from slo_ctl.base.keyvalue import Fields, split_pairs
from slo_ctl.base.quantity import format_bytes_exact, format_number
from slo_ctl.decide.ops_plan import allocate
from slo_ctl.model.sample import FlashTiming, TimingModel

PRESET_NAMES = tuple(preset.name for preset in presets())
SCHEDULER_NAMES = tuple(name for name, _ in schedulers())
MAPPING_NAMES = tuple(name for name, _ in mappings())
VICTIM_NAMES = tuple(name for name, _ in victim_policies())
"""Victim policies; `d-choices:N` chooses among N blocks."""
_LEAST_OP = 0.01
"""Below 1 %, namespaces have too few blocks for GC with any block size."""
_LEAST_NAMESPACE_BYTES = 4096
"""The smallest page of any preset."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """Specification of an emulated SSD; None: as in the preset. Raises UserError if it is invalid."""

    size_bytes: int = 8 * 2**30
    """Logical size: sum of all namespaces."""
    preset: str = "fast15"
    op: float = 0.15
    """OP ratio: physical / logical size - 1, of usable blocks."""
    page_bytes: int | None = None
    block_bytes: int | None = None
    channels: int | None = None
    dies: int | None = None
    """Dies of the whole device."""
    planes: int | None = None
    """Planes of one die."""
    read_us: float | None = None
    program_us: float | None = None
    erase_us: float | None = None
    transfer_us: float | None = None
    suspend_us: float | None = None
    """Time to suspend and resume a program or an erase for a read; 0 or None: reads wait."""
    copyback: bool | None = None
    """Whether GC copies pages inside the die, without the channel."""
    mapping: str | None = None
    """One of MAPPING_NAMES; None: page mapping."""
    cluster: int | None = None
    """For bast and fast: number of dies that a block spans."""
    cached_entries: int | None = None
    """For dftl: number of mapping entries in memory."""
    victim: str | None = None
    """Victim policy, one of VICTIM_NAMES, or d-choices:N."""
    separate_gc_frontier: bool | None = None
    """Whether GC writes into separate blocks instead of the host's open block."""
    preconditioned: bool = True
    """Whether a replay first overwrites the drive at random until WAF is steady."""

    def __post_init__(self) -> None:
        if self.op < _LEAST_OP:
            raise UserError(
                f"device: op={self.op * 100:g}% is too small to run",
                f"over-provisioning must be at least {_LEAST_OP:.0%}; drives are sold with 7% to 28%",
            )
        if self.channels is not None and self.dies is not None and self.dies % self.channels:
            raise UserError(
                f"device: {self.dies} dies cannot be spread evenly over {self.channels} channels",
                "make dies= a multiple of channels=",
            )
        page, block = self.page_bytes, self.block_bytes
        if page is not None and block is not None and (block < page or block % page):
            raise UserError(
                f"device: a block of {_size_text(block)} is not a whole number of pages "
                f"of {_size_text(page)}",
                "make block= a multiple of page=",
            )


def parse_device(text: str) -> DeviceSpec:
    """Specification from the text of `slo-ctl replay --device`. Raises UserError naming the key."""
    return device_spec(Fields("device", split_pairs("device", text)))


def _op(fields: Fields, key: str) -> float | None:
    op, text = fields.fraction(key), fields.text(key)
    if op is not None and op >= 1 and not str(text).endswith("%"):
        fields.fail(key, f"would be {op:.0%}", f"write op={text}%, or op={op:.0%} if that is intended")
    return op


def _victim(fields: Fields, key: str) -> str | None:
    name, colon, choices = (fields.text(key) or "").partition(":")
    if colon and name == "d-choices" and choices.isdecimal() and int(choices) > 0:
        return f"{name}:{int(choices)}"
    return fields.choice(key, VICTIM_NAMES)


def _frontier(fields: Fields, key: str) -> bool | None:
    frontier = fields.choice(key, ("shared", "separate"))
    return None if frontier is None else frontier == "separate"


def _percent(share: float) -> str:
    """A share as a percentage if that parses to exactly the same value, else as a number."""
    percent = round(share * 100, 9)
    return f"{format_number(percent)}%" if percent / 100 == share else format_number(share)


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


_MOST_PLANES, _MOST_MAP_ENTRIES, _MOST_US = 2**16, 2**32, 1e9
"""The core has numbers of a fixed size."""
_KEYS: dict[str, tuple[str, Callable[[Fields, str], Any], Callable[[Any], str]]] = {
    "preset": ("preset", lambda fields, key: fields.choice(key, PRESET_NAMES), str),
    "size": ("size_bytes", Fields.size, format_bytes_exact),
    "op": ("op", _op, _percent),
    "page": ("page_bytes", Fields.size, format_bytes_exact),
    "block": ("block_bytes", Fields.size, format_bytes_exact),
    **{key: (key, Fields.count, str) for key in ("channels", "dies", "cluster")},
    "planes": ("planes", lambda fields, key: fields.count(key, most=_MOST_PLANES), str),
    "cmt": ("cached_entries", lambda fields, key: fields.count(key, most=_MOST_MAP_ENTRIES), str),
    **{
        key: (key, lambda fields, key: fields.number(key, above=0, most=_MOST_US), format_number)
        for key in ("read_us", "program_us", "erase_us")
    },
    **{
        key: (key, lambda fields, key: fields.number(key, least=0, most=_MOST_US), format_number)
        for key in ("transfer_us", "suspend_us")
    },
    "copyback": ("copyback", Fields.flag, _yes_or_no),
    "mapping": ("mapping", lambda fields, key: fields.choice(key, MAPPING_NAMES), str),
    "victim": ("victim", _victim, str),
    "frontier": ("separate_gc_frontier", _frontier, lambda separate: "separate" if separate else "shared"),
    "precondition": ("preconditioned", Fields.flag, _yes_or_no),
}
"""Keys of a device, each with the attribute of `DeviceSpec`, how it is read (None: not given) and written."""


def device_spec(fields: Fields) -> DeviceSpec:
    """Specification from the keys of a device. Raises UserError naming the key."""
    given = {attribute: read(fields, key) for key, (attribute, read, _) in _KEYS.items()}
    spec = DeviceSpec(**{attribute: value for attribute, value in given.items() if value is not None})
    fields.finish()
    return spec


def device_pairs(device: DeviceSpec) -> dict[str, str]:
    """The inverse of `device_spec`."""
    values = {key: getattr(device, attribute) for key, (attribute, *_) in _KEYS.items()}
    if device.preconditioned:
        del values["precondition"]
    return {key: _KEYS[key][2](value) for key, value in values.items() if value is not None}


def divide(device_bytes: int, requests: Sequence[tuple[str, int | None]], noun: str = "VM") -> list[int]:
    """Sizes of namespaces; those without one get equal parts of the remaining space.

    `requests`: name for messages, and size or None. Raises UserError when no space remains.
    """
    unsized = [where for where, size in requests if size is None]
    left = device_bytes - sum(size or 0 for _, size in requests)
    if unsized and left < len(unsized):
        raise UserError(
            f"{unsized[0]}: the other {noun}s' sizes leave no space on the device",
            f"lower size= of the other {noun}s or raise size= of the device",
        )
    return [left // len(unsized) if size is None else size for _, size in requests]


def check_namespaces(device: DeviceSpec, namespaces: Sequence[tuple[str, int]], noun: str = "VM") -> None:
    """Raise UserError if these namespaces (name, size) do not fit on the device."""
    for name, times in Counter(name for name, _ in namespaces).items():
        if times > 1:
            raise UserError(
                f"{noun} name {name} is used {times} times", f"give every {noun} a different name"
            )
    least = device.page_bytes or _LEAST_NAMESPACE_BYTES
    for name, size_bytes in namespaces:
        if size_bytes < least:
            raise UserError(
                f"{noun} {name}: {_size_text(size_bytes)} is less than a page",
                f"raise size= of the {noun} or of the device",
            )
    total = sum(size_bytes for _, size_bytes in namespaces)
    if total > device.size_bytes:
        size = _size_text(device.size_bytes)
        raise UserError(
            f"the {noun}s' sizes add up to {_size_text(total)}, the device has {size}",
            f"lower size= of the {noun}s or raise size= of the device",
        )


def _size_text(size_bytes: int) -> str:
    """An exact size, also of one that is not a whole number of KiB."""
    text = format_bytes_exact(size_bytes)
    return f"{text} bytes" if text.isdecimal() else text


_FREE_FLOOR_BLOCKS = 1
_LEAST_BLOCKS_PER_DIE = 4
_MOST_PAGES = (2**22 - 1 - 2**12) * 2**10
"""Pages have 32-bit numbers, in segments of 1,024, of which each tenant may leave one partly unused."""
_US_PER_NS = 1e-3

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DrivePlan:
    """A drive and its namespaces, before they are created."""

    config: Config
    timing: FlashTiming
    preset: str
    logical_pages: tuple[int, ...]
    """Logical pages of each namespace."""
    ops_blocks: tuple[int, ...]
    """Initial usable OPS of each namespace, in proportion to its size."""
    logical_blocks: int
    """Logical blocks of all namespaces, each namespace rounded up."""

    @property
    def total_pages(self) -> int:
        """Logical pages of all namespaces, the amount of one drive write."""
        return sum(self.logical_pages)

    def create(self, *, isolated: bool) -> tuple[Device, list[int]]:
        """Create an empty drive; returns it and the tenant numbers of its namespaces in order."""
        device = Device(self.config)
        tenants = []
        for index, (pages, ops) in enumerate(zip(self.logical_pages, self.ops_blocks, strict=True)):
            # Namespaces that share a pool need the blocks that GC keeps free only once.
            held = self.config.held_blocks if isolated or index == 0 else 0
            tenants.append(device.create_tenant(pages, isolated, ops + held))
        return device, tenants


def plan_drive(
    spec: DeviceSpec,
    namespaces: Sequence[tuple[str, int]],
    *,
    noun: str = "VM",
    timing: TimingModel = TimingModel.FULL,
    scheduler: str = "fifo",
    seed: int = 1,
) -> DrivePlan:
    """Plan a drive from a specification; `namespaces` are names and sizes in bytes.

    Raises UserError, in which namespaces are called `noun`, if they do not fit.
    """
    check_namespaces(spec, namespaces, noun)
    preset = next(preset for preset in presets() if preset.name == spec.preset)
    page_bytes = _value_or(spec.page_bytes, preset.page_bytes)
    pages_per_block = (
        preset.pages_per_block if spec.block_bytes is None else max(1, spec.block_bytes // page_bytes)
    )
    channels, dies_per_channel = _dies(spec, preset)
    dies = channels * dies_per_channel
    mapping = spec.mapping or "page"
    cluster = _cluster(spec, dies)
    block_pages = pages_per_block * cluster
    logical_pages = tuple(max(1, size_bytes // page_bytes) for _, size_bytes in namespaces)
    logical_blocks = [-(-pages // block_pages) for pages in logical_pages]
    ops_blocks = _divide_ops(spec, logical_pages, page_bytes, block_pages, dies, noun)
    held_blocks = _FREE_FLOOR_BLOCKS * (1 if mapping in LEAST_LOG_BLOCKS else dies)
    blocks = sum(logical_blocks) + sum(ops_blocks) + held_blocks * len(namespaces)
    if blocks * block_pages > _MOST_PAGES:
        raise UserError(
            f"the drive would have {_tib(blocks * block_pages * page_bytes)} of flash, OPS included",
            f"at most {_tib(_MOST_PAGES * page_bytes)} of pages of {page_bytes} bytes can be emulated: "
            "lower size=, or raise page=",
        )
    config = Config(
        page_bytes=page_bytes,
        pages_per_block=pages_per_block,
        blocks_per_die=max(_LEAST_BLOCKS_PER_DIE, -(-blocks * cluster // dies)),
        channels=channels,
        dies_per_channel=dies_per_channel,
        planes=_value_or(spec.planes, preset.planes),
        read_ns=_ns(spec.read_us, preset.read_ns),
        program_ns=_ns(spec.program_us, preset.program_ns),
        erase_ns=_ns(spec.erase_us, preset.erase_ns),
        transfer_ns=_ns(spec.transfer_us, preset.transfer_ns),
        suspend_ns=_ns(spec.suspend_us, 0),
        paper_timing=timing is TimingModel.PAPER,
        copyback=_value_or(spec.copyback, True),
        mapping=mapping,
        cluster_dies=cluster,
        cached_entries=spec.cached_entries,
        victim=spec.victim or "greedy",
        separate_gc_frontier=bool(spec.separate_gc_frontier),
        free_floor=_FREE_FLOOR_BLOCKS,
        scheduler=scheduler,
        seed=seed,
    )
    _check_buildable(config)
    return DrivePlan(
        config=config,
        timing=flash_timing(config, timing),
        preset=spec.preset,
        logical_pages=logical_pages,
        ops_blocks=ops_blocks,
        logical_blocks=sum(logical_blocks),
    )


def _cluster(spec: DeviceSpec, dies: int) -> int:
    """Number of dies that a block spans. Raises UserError."""
    cluster = _value_or(spec.cluster, 1)
    if cluster < 1 or dies % cluster:
        divisors = ", ".join(str(number) for number in range(1, dies + 1) if dies % number == 0)
        raise UserError(
            f"device: cluster={cluster} does not divide the {dies} dies",
            f"valid values: {divisors}",
        )
    return cluster


def _tib(size_bytes: int) -> str:
    return f"{size_bytes / 2**40:.1f} TiB"


def _divide_ops(
    spec: DeviceSpec, logical_pages: tuple[int, ...], page_bytes: int, block_pages: int, dies: int, noun: str
) -> tuple[int, ...]:
    total = round(spec.op * sum(logical_pages) / block_pages)
    # Each die needs an open block (two with a separate GC frontier) and one more.
    minimum = LEAST_LOG_BLOCKS.get(spec.mapping or "page", dies * (3 if spec.separate_gc_frontier else 2))
    sizes = {str(index): float(pages) for index, pages in enumerate(logical_pages)}
    if total < minimum * len(sizes):
        required, pages = minimum * len(sizes), sum(logical_pages)
        op = math.ceil(1000 * required * block_pages / pages) / 10
        size = math.ceil(required * block_pages * page_bytes / spec.op / _MIB) * _MIB
        leave_space = pages + len(sizes) < spec.size_bytes // page_bytes
        what = f"the {noun}s together" if leave_space else "the device"
        larger = f"make {what} at least {format_bytes_exact(size)} large"
        raise UserError(
            f"device: op={100 * spec.op:.4g}% gives {total} over-provisioning blocks; {len(sizes)} {noun}"
            f"{'s' if len(sizes) > 1 else ''} on {dies} dies need at least {required}",
            f"write op={op:g}%, or {larger}" if op <= 100 else larger,
        )
    wanted = {vm: total * size / sum(sizes.values()) for vm, size in sizes.items()}
    return tuple(allocate(total, wanted, dict.fromkeys(sizes, minimum)).values())


def _check_buildable(config: Config) -> None:
    try:
        Device(config)
    except (DriveError, ValueError) as error:
        key = str(error).partition(":")[0]
        hint = _HINTS.get(key, "see `slo-ctl replay --help` and docs/replay.md")
        raise UserError(f"device: {error}", hint) from error


_HINTS = {
    "page_bytes": "such as page=4KiB",
    "pages_per_block": "such as block=512KiB, at least four times page=",
    "cached_entries": "omit cmt=, or write mapping=dftl",
    "victim, separate_gc_frontier": "omit victim= and frontier=, or write mapping=page",
}
"""Hints by the name of the parameter that the core refuses."""


def _dies(spec: DeviceSpec, preset: Preset) -> tuple[int, int]:
    """Number of channels, and of dies per channel."""
    if spec.dies is None:
        return _value_or(spec.channels, preset.channels), preset.dies_per_channel
    channels = _value_or(spec.channels, preset.channels)
    if spec.channels is None and spec.dies % channels:
        # Without a number of channels that divides the dies, each die gets a channel.
        channels = spec.dies
    return channels, spec.dies // channels


def flash_timing(config: Config, model: TimingModel) -> FlashTiming:
    """Latencies of a drive for the calculations of policies."""
    return FlashTiming(
        pages_per_block=config.block_pages,
        read_us=config.read_ns * _US_PER_NS,
        program_us=config.program_ns // config.planes * _US_PER_NS,
        erase_us=config.erase_ns * _US_PER_NS,
        transfer_us=config.transfer_ns * _US_PER_NS,
        model=model,
        copyback=config.copyback,
    )


def _ns(value_us: float | None, preset_ns: int) -> int:
    return preset_ns if value_us is None else round(value_us * 1000)


def _value_or(value: T | None, default: T) -> T:
    return default if value is None else value
