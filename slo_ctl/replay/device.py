"""From a scenario's device to a drive: presets filled in, blocks counted, namespaces created, aged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ftl_emul import LEAST_LOG_BLOCKS, Config, Device, DriveError, Preset, presets
from slo_ctl.decide.allocation import allocate
from slo_ctl.errors import UserError
from slo_ctl.model import FlashTiming, TimingModel
from slo_ctl.replay.result import DeviceResult, DeviceTiming

if TYPE_CHECKING:
    from slo_ctl.replay.scenario import Scenario
    from slo_ctl.replay.scenario_parts import DeviceSpec

_FREE_FLOOR_BLOCKS = 1
_LEAST_BLOCKS_PER_DIE = 4
_MOST_PAGES = 2**32 - 2
"""The core numbers physical pages with 32 bits."""
_MERGED_FIRST = {"bast": "least recently written log block", "fast": "oldest log block"}
_US_PER_NS = 1e-3

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DrivePlan:
    """A drive and how it is divided, before any of it exists."""

    config: Config
    timing: FlashTiming
    preset: str
    logical_pages: tuple[int, ...]
    """Of each VM."""
    ops_blocks: tuple[int, ...]
    """Usable OPS of each VM in isolation, to begin with: in proportion to size."""
    held_blocks: int
    """Blocks per domain that GC or merges keep free; on top of OPS, which counts usable blocks only."""
    logical_blocks: int
    """Of all VMs, each rounded up."""

    @property
    def block_pages(self) -> int:
        """Pages of a block as VMs own and move them."""
        return self.config.pages_per_block * self.config.cluster_dies

    @property
    def merges(self) -> bool:
        """Whether the mapping has log blocks, which it merges."""
        return self.config.mapping in LEAST_LOG_BLOCKS

    @property
    def total_pages(self) -> int:
        """Logical pages of all VMs: one drive write."""
        return sum(self.logical_pages)

    def create(self, *, isolated: bool) -> tuple[Device, list[int]]:
        """An empty drive with the VMs' namespaces; returns it and their tenant numbers, in order."""
        device = Device(self.config)
        tenants = []
        for index, (pages, ops) in enumerate(zip(self.logical_pages, self.ops_blocks, strict=True)):
            # Sharing VMs need the held blocks once, as they have one set of pools.
            held = self.held_blocks if isolated or index == 0 else 0
            tenants.append(device.create_tenant(pages, isolated, ops + held))
        return device, tenants

    def describe(self, victim: str, ageing_drive_writes: float | None) -> DeviceResult:
        """The device of the result."""
        config, ops = self.config, sum(self.ops_blocks)
        usable = self.logical_blocks + ops
        block_bytes = config.page_bytes * self.block_pages
        return DeviceResult(
            preset=self.preset,
            logical_bytes=self.total_pages * config.page_bytes,
            physical_bytes=usable * block_bytes,
            op=usable * self.block_pages / self.total_pages - 1,
            page_bytes=config.page_bytes,
            pages_per_block=self.block_pages,
            blocks=usable,
            ops_blocks=ops,
            channels=config.channels,
            dies=config.channels * config.dies_per_channel,
            planes=config.planes,
            mapping=config.mapping,
            cluster_dies=config.cluster_dies,
            victim_policy=_MERGED_FIRST.get(config.mapping, victim),
            timing=DeviceTiming(
                model=self.timing.model.value,
                read_us=self.timing.read_us,
                program_us=self.timing.program_us,
                erase_us=self.timing.erase_us,
                transfer_us=self.timing.transfer_us,
                copyback=self.timing.copyback,
            ),
            ageing_drive_writes=ageing_drive_writes,
        )


def plan_drive(scenario: Scenario, noun: str = "VM") -> DrivePlan:
    """Fill in the preset and count the blocks. Raises UserError, calling VMs `noun`, where they do not do."""
    spec = scenario.device
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
    logical_pages = tuple(max(1, vm.size_bytes // page_bytes) for vm in scenario.vms)
    logical_blocks = [-(-pages // block_pages) for pages in logical_pages]
    ops_blocks = _divide_ops(scenario, logical_pages, block_pages, dies, noun)
    held_blocks = _FREE_FLOOR_BLOCKS * (1 if mapping in LEAST_LOG_BLOCKS else dies)
    blocks = sum(logical_blocks) + sum(ops_blocks) + held_blocks * len(scenario.vms)
    if blocks * block_pages > _MOST_PAGES:
        raise UserError(
            f"the drive would have {blocks * block_pages:,} pages of {page_bytes} bytes, OPS included",
            f"at most {_MOST_PAGES:,} can be emulated: ask for less, or for larger pages",
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
        paper_timing=scenario.timing is TimingModel.PAPER,
        copyback=_or(spec.copyback, True),
        mapping=mapping,
        cluster_dies=cluster,
        cached_entries=spec.cached_entries,
        victim=spec.victim or "greedy",
        separate_gc_frontier=bool(spec.separate_gc_frontier),
        free_floor=_FREE_FLOOR_BLOCKS,
        scheduler="fifo" if scenario.scheduler == "auto" else scenario.scheduler,
        seed=scenario.seed,
    )
    _try_out(config)
    return DrivePlan(
        config=config,
        timing=_timing(config, scenario.timing),
        preset=spec.preset,
        logical_pages=logical_pages,
        ops_blocks=ops_blocks,
        held_blocks=held_blocks,
        logical_blocks=sum(logical_blocks),
    )


def _cluster(spec: DeviceSpec, dies: int) -> int:
    """Dies that a block spans."""
    cluster = _or(spec.cluster, 1)
    if cluster < 1 or dies % cluster:
        raise UserError(f"device: cluster={cluster} does not divide the {dies} dies", "see docs/mappings.md")
    return cluster


def _divide_ops(
    scenario: Scenario, logical_pages: tuple[int, ...], block_pages: int, dies: int, noun: str
) -> tuple[int, ...]:
    spec = scenario.device
    total = round(spec.op * sum(logical_pages) / block_pages)
    # On each die an open block (two with a GC frontier of its own), and one block's worth of slack.
    minimum = LEAST_LOG_BLOCKS.get(spec.mapping or "page", dies * (3 if spec.separate_gc_frontier else 2))
    sizes = {str(index): float(pages) for index, pages in enumerate(logical_pages)}
    if total < minimum * len(sizes):
        raise UserError(
            f"device: op={spec.op:.4g} gives {total} over-provisioning blocks; {len(sizes)} {noun}s "
            f"on {dies} dies need at least {minimum * len(sizes)}",
            "raise op= or size=, or lower dies= or block=",
        )
    wanted = {vm: total * size / sum(sizes.values()) for vm, size in sizes.items()}
    return tuple(allocate(total, wanted, dict.fromkeys(sizes, minimum)).values())


def _try_out(config: Config) -> None:
    try:
        Device(config)
    except (DriveError, ValueError) as refusal:
        raise UserError(f"device: {refusal}", "see `slo-ctl replay --help` and docs/replay.md") from refusal


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


def _timing(config: Config, model: TimingModel) -> FlashTiming:
    return FlashTiming(
        pages_per_block=config.pages_per_block * config.cluster_dies,
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
