from collections.abc import Callable
from os import PathLike
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from ftl_emul.config import Config

class DriveError(Exception): ...

@final
class Preset:
    name: str
    description: str
    page_bytes: int
    pages_per_block: int
    channels: int
    dies_per_channel: int
    planes: int
    over_provisioning: float
    read_ns: int
    program_ns: int
    erase_ns: int
    transfer_ns: int

@final
class TenantRecord:
    host_page_writes: int
    host_page_reads: int
    unmapped_page_reads: int
    rmw_page_reads: int
    trimmed_pages: int
    gc_page_writes: int
    reclaim_page_writes: int
    wear_page_writes: int
    victims: int
    victim_valid_pages: int
    erases: int
    victim_histogram: list[int]
    moved_pages_of: list[int]
    switch_merges: int
    partial_merges: int
    full_merges: int
    merged_blocks: int
    switch_merge_ns: int
    partial_merge_ns: int
    full_merge_ns: int
    map_reads: int
    map_writes: int
    map_ns: int

@final
class QueueRecord:
    reads: int
    writes: int
    trims: int
    write_zeroes: int
    flushes: int
    read_bytes: int
    write_bytes: int
    device_ns: int
    gc_ns: int
    throttled_ns: int
    latency_ns: int
    backlog_ns: int
    queued_ns: int

@final
class SpaceRecord:
    isolated: bool
    logical_pages: int
    mapped_pages: int
    logical_blocks: int
    ops_blocks: int
    min_ops_blocks: int
    free_blocks: int
    min_erases: int
    max_erases: int
    pending_out_blocks: int

@final
class Moved:
    moved_blocks: int
    gc_passes: int
    pending_blocks: int

@final
class MoveRecord:
    budget: float
    done_ns: int
    owed_ns: int
    moved_blocks: int
    pending: list[tuple[int | None, int | None, int]]

@final
class Ageing:
    waf: list[float]
    host_page_writes: int
    settled: bool

@final
class LatencyUs:
    read: list[float]
    write: list[float]
    reads: int
    writes: int

@final
class Device:
    def __init__(self, config: Config) -> None: ...
    @staticmethod
    def restore(path: str | PathLike[str], config: Config) -> tuple[Device, str]: ...
    def save(self, path: str | PathLike[str], label: str) -> None: ...
    @property
    def blocks(self) -> int: ...
    @property
    def block_pages(self) -> int: ...
    @property
    def spare_blocks(self) -> int: ...
    @property
    def now_ns(self) -> int: ...
    @property
    def host_page_writes(self) -> int: ...
    def tenants(self) -> list[int]: ...
    def create_tenant(self, pages: int, isolated: bool, ops_blocks: int) -> int: ...
    def delete_tenant(self, tenant: int) -> None: ...
    def resize_tenant(self, tenant: int, pages: int) -> None: ...
    def request_move(self, source: int | None, target: int | None, blocks: int) -> None: ...
    def advance_moves(self, max_gc_passes: int) -> Moved: ...
    def moves(self) -> MoveRecord: ...
    def set_move_budget(self, share: float) -> None: ...
    def cancel_moves(self) -> None: ...
    def counters(self, tenant: int) -> TenantRecord: ...
    def queue_counters(self, tenant: int) -> QueueRecord: ...
    def space(self, tenant: int) -> SpaceRecord: ...
    def outstanding(self, tenant: int) -> int: ...
    def latency_us(self, tenant: int, percentiles: list[float]) -> LatencyUs: ...
    def take_recent_latency_us(self, tenant: int, percentiles: list[float]) -> LatencyUs: ...
    def clear_latencies(self) -> None: ...
    def age(self, seed: int, progress: Callable[[float], object] | None = None) -> Ageing: ...
    def apply(
        self,
        tenant: NDArray[np.uint16],
        op: NDArray[np.uint8],
        offset_bytes: NDArray[np.uint64],
        length_bytes: NDArray[np.uint64],
    ) -> None: ...
    def open_queue(self, tenant: int, queue_depth: int | None) -> None: ...
    def feed(
        self,
        tenant: int,
        time_ns: NDArray[np.int64],
        op: NDArray[np.uint8],
        offset_bytes: NDArray[np.uint64],
        length_bytes: NDArray[np.uint64],
    ) -> None: ...
    def end_input(self, tenant: int) -> None: ...
    def pause(self, tenant: int, paused: bool) -> None: ...
    def set_weight(self, tenant: int, weight: float) -> None: ...
    def set_limit(self, tenant: int, iops: float | None = None, bytes_s: float | None = None) -> None: ...
    def run(
        self, until_ns: int | None = None, until_host_page_writes: int | None = None
    ) -> tuple[Literal["time", "writes", "starved", "idle"], list[int]]: ...
    def check(self) -> None: ...

@final
class DiskPreset:
    name: str
    description: str
    capacity_bytes: int
    heads: int
    rotation_ns: int
    seek_min_ns: int
    seek_average_ns: int
    seek_max_ns: int
    write_settle_ns: int
    outer_bytes_s: int
    inner_bytes_s: int
    zones: int
    interface_bytes_s: int
    command_ns: int
    queue_depth: int
    segment_bytes: int
    segments: int
    write_cache_bytes: int
    write_cache_places: int

@final
class Disks:
    def __init__(self, preset: str, disks: int, stripe_bytes: int) -> None: ...
    @property
    def capacity_bytes(self) -> int: ...
    @property
    def now_ns(self) -> int: ...
    def play(
        self,
        op: int,
        offsets_bytes: NDArray[np.uint64],
        length_bytes: int,
        queue_depth: int = 1,
        limit_ns: int | None = None,
    ) -> tuple[int, int]: ...
    def flush(self) -> None: ...

def presets() -> list[Preset]: ...
def disk_presets() -> list[DiskPreset]: ...
def mappings() -> list[tuple[str, str]]: ...
def victim_policies() -> list[tuple[str, str]]: ...
def schedulers() -> list[tuple[str, str]]: ...
