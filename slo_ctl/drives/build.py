"""From `preset=fast15,size=8GiB,op=15%` to a drive: presets filled in, blocks counted, namespaces created."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

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
from slo_ctl.model import FlashTiming, TimingModel

PRESET_NAMES = tuple(preset.name for preset in presets())
SCHEDULER_NAMES = tuple(name for name, _ in schedulers())
MAPPING_NAMES = tuple(name for name, _ in mappings())
VICTIM_NAMES = tuple(name for name, _ in victim_policies())
"""`d-choices:N` chooses among N blocks."""
_DEFAULT_DEVICE_BYTES = 8 * 2**30
_LEAST_OP = 0.01
"""Below 1 % no block size leaves every namespace the blocks that its GC needs."""
_LEAST_NAMESPACE_BYTES = 4096
"""The smallest page of any preset."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """An emulated SSD as it was asked for. What is None comes from the preset. Raises UserError."""

    size_bytes: int
    """Logical size: what all namespaces have together."""
    preset: str = "fast15"
    op: float = 0.15
    """Over-provisioning: physical / logical - 1, over usable blocks."""
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
    """Suspending a program or an erase for a read, and resuming it; 0 or None: reads wait."""
    copyback: bool | None = None
    """GC copies stay inside the die."""
    mapping: str | None = None
    """One of MAPPING_NAMES; page mapping unless given."""
    cluster: int | None = None
    """bast, fast: dies that a block spans."""
    cached_entries: int | None = None
    """dftl: map entries held in memory."""
    victim: str | None = None
    """Victim policy, one of VICTIM_NAMES, or d-choices:N."""
    separate_gc_frontier: bool | None = None
    """GC writes into blocks of its own rather than into the host's open block."""
    preconditioned: bool = True
    """Overwritten at random until WAF settles before a replay measures anything; else every block is free."""

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
                f"device: a block of {format_bytes_exact(block)} is not a whole number of pages "
                f"of {format_bytes_exact(page)}",
                "make block= a multiple of page=",
            )


def parse_device(text: str) -> DeviceSpec:
    """The drive that `slo-ctl replay --device TEXT` has. Raises UserError naming the key."""
    return device_spec(Fields("device", split_pairs("device", text)))


def device_spec(fields: Fields) -> DeviceSpec:
    """Spec from the keys of a device. Raises UserError naming the key."""
    op, written = fields.fraction("op", above=0), fields.text("op")
    if op is not None and op >= 1 and not str(written).endswith("%"):
        fields.fail("op", f"would be {op:.0%}", f"write op={written}%, or op={op:.0%} if that is meant")
    frontier = fields.choice("frontier", ("shared", "separate"))
    spec = DeviceSpec(
        size_bytes=fields.size("size") or _DEFAULT_DEVICE_BYTES,
        preset=fields.choice("preset", PRESET_NAMES) or "fast15",
        op=0.15 if op is None else op,
        page_bytes=fields.size("page"),
        block_bytes=fields.size("block"),
        channels=fields.count("channels"),
        dies=fields.count("dies"),
        planes=fields.count("planes"),
        read_us=fields.number("read_us", above=0),
        program_us=fields.number("program_us", above=0),
        erase_us=fields.number("erase_us", above=0),
        transfer_us=fields.number("transfer_us", least=0),
        suspend_us=fields.number("suspend_us", least=0),
        copyback=fields.flag("copyback"),
        mapping=fields.choice("mapping", MAPPING_NAMES),
        cluster=fields.count("cluster"),
        cached_entries=fields.count("cmt"),
        victim=_victim(fields),
        separate_gc_frontier=None if frontier is None else frontier == "separate",
        preconditioned=fields.flag("precondition") is not False,
    )
    fields.finish()
    return spec


def _victim(fields: Fields) -> str | None:
    name, colon, choices = (fields.text("victim") or "").partition(":")
    if colon and name == "d-choices" and choices.isdecimal() and int(choices) > 0:
        return f"{name}:{int(choices)}"
    return fields.choice("victim", VICTIM_NAMES)


def device_pairs(device: DeviceSpec) -> dict[str, str]:
    """The inverse of `device_spec`."""
    pairs = {
        "preset": device.preset,
        "size": format_bytes_exact(device.size_bytes),
        "op": _percent(device.op),
    }
    sizes = {"page": device.page_bytes, "block": device.block_bytes}
    counts = {
        "channels": device.channels,
        "dies": device.dies,
        "planes": device.planes,
        "cluster": device.cluster,
        "cmt": device.cached_entries,
    }
    latencies = ("read_us", "program_us", "erase_us", "transfer_us", "suspend_us")
    times = {key: getattr(device, key) for key in latencies}
    pairs |= {key: format_bytes_exact(value) for key, value in sizes.items() if value is not None}
    pairs |= {key: str(value) for key, value in counts.items() if value is not None}
    pairs |= {key: format_number(value) for key, value in times.items() if value is not None}
    if device.copyback is not None:
        pairs["copyback"] = "yes" if device.copyback else "no"
    if device.mapping is not None:
        pairs["mapping"] = device.mapping
    if device.victim is not None:
        pairs["victim"] = device.victim
    if device.separate_gc_frontier is not None:
        pairs["frontier"] = "separate" if device.separate_gc_frontier else "shared"
    if not device.preconditioned:
        pairs["precondition"] = "no"
    return pairs


def _percent(share: float) -> str:
    """As a percentage where that reads back exactly, else as a number."""
    percent = round(share * 100, 9)
    return f"{format_number(percent)}%" if percent / 100 == share else format_number(share)


def divide(device_bytes: int, asked: Sequence[tuple[str, int | None]], noun: str = "VM") -> list[int]:
    """The sizes of namespaces; those without one share what the others leave.

    `asked`: where each was asked for, and its size. Raises UserError when nothing is left.
    """
    unsized = [where for where, size in asked if size is None]
    left = device_bytes - sum(size or 0 for _, size in asked)
    if unsized and left < len(unsized):
        raise UserError(
            f"{unsized[0]}: the other {noun}s' sizes leave no space on the device",
            f"lower size= of the other {noun}s or raise size= of the device",
        )
    return [left // len(unsized) if size is None else size for _, size in asked]


def check_namespaces(device: DeviceSpec, namespaces: Sequence[tuple[str, int]], noun: str = "VM") -> None:
    """Raise UserError where namespaces of these names and sizes do not fit on the device."""
    for name, times in Counter(name for name, _ in namespaces).items():
        if times > 1:
            raise UserError(
                f"{noun} name {name} is used {times} times", f"give every {noun} a name of its own"
            )
    least = device.page_bytes or _LEAST_NAMESPACE_BYTES
    for name, size_bytes in namespaces:
        if size_bytes < least:
            raise UserError(
                f"{noun} {name}: {format_bytes_exact(size_bytes)} is less than a page",
                f"raise size= of the {noun} or of the device",
            )
    total = sum(size_bytes for _, size_bytes in namespaces)
    if total > device.size_bytes:
        raise UserError(
            f"the {noun}s' sizes add up to {format_bytes_exact(total)}, "
            f"the device has {format_bytes_exact(device.size_bytes)}",
            f"lower size= of the {noun}s or raise size= of the device",
        )


_FREE_FLOOR_BLOCKS = 1
_LEAST_BLOCKS_PER_DIE = 4
_MOST_PAGES = (2**22 - 1 - 2**12) * 2**10
"""The core numbers pages with 32 bits, in segments of 1,024, one of which each tenant may waste."""
_US_PER_NS = 1e-3

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DrivePlan:
    """A drive and how it is divided, before any of it exists."""

    config: Config
    timing: FlashTiming
    preset: str
    logical_pages: tuple[int, ...]
    """Logical pages of each namespace."""
    ops_blocks: tuple[int, ...]
    """Usable OPS of each namespace in isolation, to begin with: in proportion to size."""
    logical_blocks: int
    """Logical blocks of all namespaces, each rounded up."""

    @property
    def total_pages(self) -> int:
        """Logical pages of all namespaces: one drive write."""
        return sum(self.logical_pages)

    def create(self, *, isolated: bool) -> tuple[Device, list[int]]:
        """An empty drive with its namespaces; returns it and their tenant numbers, in order."""
        device = Device(self.config)
        tenants = []
        for index, (pages, ops) in enumerate(zip(self.logical_pages, self.ops_blocks, strict=True)):
            # Sharing namespaces need the held blocks once, as they have one set of pools.
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
    """Fill in the preset and count the blocks; `namespaces` are names and sizes in bytes.

    Raises UserError, calling namespaces `noun`, if they do not fit.
    """
    check_namespaces(spec, namespaces, noun)
    preset = _preset(spec.preset)
    page_bytes = _or(spec.page_bytes, preset.page_bytes)
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
        planes=_or(spec.planes, preset.planes),
        read_ns=_ns(spec.read_us, preset.read_ns),
        program_ns=_ns(spec.program_us, preset.program_ns),
        erase_ns=_ns(spec.erase_us, preset.erase_ns),
        transfer_ns=_ns(spec.transfer_us, preset.transfer_ns),
        suspend_ns=_ns(spec.suspend_us, 0),
        paper_timing=timing is TimingModel.PAPER,
        copyback=_or(spec.copyback, True),
        mapping=mapping,
        cluster_dies=cluster,
        cached_entries=spec.cached_entries,
        victim=spec.victim or "greedy",
        separate_gc_frontier=bool(spec.separate_gc_frontier),
        free_floor=_FREE_FLOOR_BLOCKS,
        scheduler=scheduler,
        seed=seed,
    )
    _try_out(config)
    return DrivePlan(
        config=config,
        timing=flash_timing(config, timing),
        preset=spec.preset,
        logical_pages=logical_pages,
        ops_blocks=ops_blocks,
        logical_blocks=sum(logical_blocks),
    )


def _cluster(spec: DeviceSpec, dies: int) -> int:
    """Dies that a block spans."""
    cluster = _or(spec.cluster, 1)
    if cluster < 1 or dies % cluster:
        divisors = ", ".join(str(each) for each in range(1, dies + 1) if dies % each == 0)
        raise UserError(
            f"device: cluster={cluster} does not divide the {dies} dies",
            f"known: {divisors}; such as cluster=1",
        )
    return cluster


def _tib(size_bytes: int) -> str:
    return f"{size_bytes / 2**40:.1f} TiB"


def _divide_ops(
    spec: DeviceSpec, logical_pages: tuple[int, ...], page_bytes: int, block_pages: int, dies: int, noun: str
) -> tuple[int, ...]:
    total = round(spec.op * sum(logical_pages) / block_pages)
    # On each die an open block (two with a GC frontier of its own), and one block's worth of slack.
    minimum = LEAST_LOG_BLOCKS.get(spec.mapping or "page", dies * (3 if spec.separate_gc_frontier else 2))
    sizes = {str(index): float(pages) for index, pages in enumerate(logical_pages)}
    if total < minimum * len(sizes):
        enough, pages = minimum * len(sizes), sum(logical_pages)
        op = math.ceil(1000 * enough * block_pages / pages) / 10
        size = math.ceil(enough * block_pages * page_bytes / spec.op / _MIB) * _MIB
        larger = f"make the device at least {format_bytes_exact(size)} large"
        raise UserError(
            f"device: op={100 * spec.op:.4g}% gives {total} over-provisioning blocks; {len(sizes)} {noun}"
            f"{'s' if len(sizes) > 1 else ''} on {dies} dies need at least {enough}",
            f"write op={op:g}%, or {larger}" if op <= 100 else larger,
        )
    wanted = {vm: total * size / sum(sizes.values()) for vm, size in sizes.items()}
    return tuple(allocate(total, wanted, dict.fromkeys(sizes, minimum)).values())


def _try_out(config: Config) -> None:
    try:
        Device(config)
    except (DriveError, ValueError) as refusal:
        key = str(refusal).partition(":")[0]
        hint = _EXAMPLE_OF.get(key, "see `slo-ctl replay --help` and docs/replay.md")
        raise UserError(f"device: {refusal}", hint) from refusal


_EXAMPLE_OF = {
    "page_bytes": "such as page=4KiB",
    "pages_per_block": "such as block=512KiB, at least four times page=",
    "cached_entries": "leave cmt= out, or write mapping=dftl",
}
"""By what the drive refuses, named as there: what to write."""


def _preset(name: str) -> Preset:
    return next(preset for preset in presets() if preset.name == name)


def _dies(spec: DeviceSpec, preset: Preset) -> tuple[int, int]:
    """Channels, and dies of each."""
    if spec.dies is None:
        return _or(spec.channels, preset.channels), preset.dies_per_channel
    channels = _or(spec.channels, preset.channels)
    if spec.channels is None and spec.dies % channels:
        # Only the number of dies was asked for: a channel for each is the simplest drive that has it.
        channels = spec.dies
    return channels, spec.dies // channels


def flash_timing(config: Config, model: TimingModel) -> FlashTiming:
    """Latencies of a drive as policies calculate with them."""
    return FlashTiming(
        pages_per_block=config.block_pages,
        read_us=config.read_ns * _US_PER_NS,
        program_us=config.program_ns // config.planes * _US_PER_NS,
        erase_us=config.erase_ns * _US_PER_NS,
        transfer_us=config.transfer_ns * _US_PER_NS,
        model=model,
        copyback=config.copyback,
    )


def _ns(given_us: float | None, preset_ns: int) -> int:
    return preset_ns if given_us is None else round(given_us * 1000)


def _or(given: T | None, otherwise: T) -> T:
    return otherwise if given is None else given


# One namespace on the whole of a drive; and the drives with log blocks that a paper measured.
#
# Of its three drives the paper gives capacity and logical block size (table I). Nothing else is known; what
# had to be chosen: block mapping with log blocks (BAST), SLC latencies, dies such that a block clustered over
# all of them is the logical block (section II), and how many log blocks there are.

_CHOSEN = "op=1%,page=4KiB,block=512KiB,read_us=25,program_us=200,erase_us=1500,transfer_us=25,mapping=bast"
PAPER_DRIVES = {
    "sandisk": f"size=32GiB,dies=8,channels=4,cluster=8,{_CHOSEN}",
    "samsung": f"size=64GiB,dies=16,channels=8,cluster=16,{_CHOSEN}",
    "mtron": f"size=64GiB,dies=4,channels=4,cluster=4,{_CHOSEN}",
}
"""By the paper's names: keys of `slo-ctl replay --device`. Logical blocks of 4, 8 and 2 MiB."""
LOG_BLOCKS = 32
"""Log blocks of a drive, whatever its size: 64 to 256 MiB. Chosen. The paper says only that writing 1 GB
uses up all log blocks of any of them (section IV.A); with OPS of 1 %, the least that `slo-ctl replay` takes,
it would be up to 640 MiB."""
_MOST_WHOLE_BYTES = 1 << 40
"""The largest drive that is written all over: a byte of memory for each block of 4 KiB, in every process."""


def log_blocks_of(plan: DrivePlan, most: int = LOG_BLOCKS) -> int:
    """How many log blocks a drive gets: as many as it has OPS for, `most` at most."""
    return min(most, plan.ops_blocks[0])


def plan_whole(
    text: str,
    occupant: str,
    *,
    where: str = "device",
    too_large: str = "is more than allocators are compared on",
) -> DrivePlan:
    """The drive that `slo-ctl replay --device TEXT` has, with one namespace, called `occupant` in errors.

    Raises UserError; that of a drive larger than _MOST_WHOLE_BYTES says `where` the drive was asked for, and
    why it is `too_large`.
    """
    spec = parse_device(text)
    if spec.size_bytes > _MOST_WHOLE_BYTES:
        raise UserError(
            f"{where}: size={format_bytes_exact(spec.size_bytes)} {too_large}",
            f"at most {_MOST_WHOLE_BYTES >> 30} GiB",
        )
    return plan_drive(spec, [(occupant, spec.size_bytes)], noun=occupant)
