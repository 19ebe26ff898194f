"""Description of a drive: `preset=fast15,size=8GiB,op=15%`, and how it is divided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ftl_emul import mappings, presets, schedulers, victim_policies
from slo_ctl.base.errors import UserError
from slo_ctl.base.keyvalue import Fields, split_pairs
from slo_ctl.base.quantity import format_bytes_exact, format_number

PRESET_NAMES = tuple(preset.name for preset in presets())
SCHEDULER_NAMES = tuple(name for name, _ in schedulers())
MAPPING_NAMES = tuple(name for name, _ in mappings())
VICTIM_NAMES = tuple(name for name, _ in victim_policies())
"""`d-choices:N` chooses among N blocks."""
DEFAULT_DEVICE_BYTES = 8 * 2**30
LEAST_OP = 0.01
"""Below 1 % no block size leaves every namespace the blocks that its GC needs."""
LEAST_NAMESPACE_BYTES = 4096
"""The smallest page of any preset."""


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
        if self.op < LEAST_OP:
            raise UserError(
                f"device: op={self.op * 100:g}% is too small to run",
                f"over-provisioning must be at least {LEAST_OP:.0%}; drives are sold with 7% to 28%",
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


def parse_device(text: str, where: str = "device") -> DeviceSpec:
    """The drive that `slo-ctl replay --device TEXT` has. Raises UserError naming the key."""
    return device_spec(Fields(where, split_pairs(where, text)))


def device_spec(fields: Fields) -> DeviceSpec:
    """Spec from the keys of a device. Raises UserError naming the key."""
    op, written = fields.fraction("op", above=0), fields.text("op")
    if op is not None and op >= 1 and not str(written).endswith("%"):
        fields.fail("op", f"would be {op:.0%}", f"write op={written}%, or op={op:.0%} if that is meant")
    frontier = fields.choice("frontier", ("shared", "separate"))
    spec = DeviceSpec(
        size_bytes=fields.size("size") or DEFAULT_DEVICE_BYTES,
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
        copyback=fields.flag("copyback"),
        mapping=fields.choice("mapping", MAPPING_NAMES),
        cluster=fields.count("cluster"),
        cached_entries=fields.count("cmt"),
        victim=_victim(fields),
        separate_gc_frontier=None if frontier is None else frontier == "separate",
        preconditioned=fields.flag("age") is not False,
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
    times = {key: getattr(device, key) for key in ("read_us", "program_us", "erase_us", "transfer_us")}
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
        pairs["age"] = "no"
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
            f"{unsized[0]}: the other {noun}s' sizes leave nothing of the device",
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
    least = device.page_bytes or LEAST_NAMESPACE_BYTES
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
