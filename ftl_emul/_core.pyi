"""
The compiled part of `ftl_emul`.
"""

from _typeshed import SupportsGetItem
from collections.abc import Callable
from ftl_emul.config import Config
from numpy import int64, uint16, uint64, uint8
from numpy.typing import NDArray
from os import PathLike
from typing import Literal, SupportsFloat, SupportsIndex, final

__all__ = ["Device", "DiskPreset", "Disks", "LatencyUs", "MoveRecord", "Moved", "Preconditioning", "Preset", "QueueRecord", "SpaceRecord", "TenantRecord", "disk_presets", "mappings", "presets", "schedulers", "toml_lines", "victim_policies"]

@final
class Device:
    """
    An emulated SSD. Every refusal raises `DriveError` and changes nothing.
    """
    def __new__(cls, /, config: Config) -> Device: ...
    def advance_moves(self, /, max_gc_passes: SupportsIndex) -> Moved: ...
    def apply(self, /, tenant: NDArray[uint16], op: NDArray[uint8], offset_bytes: NDArray[uint64], length_bytes: NDArray[uint64]) -> None:
        """
        Applies requests in order, without a clock. Columns of equal length.
        """
    @property
    def block_pages(self, /) -> int:
        """
        Pages of such a block.
        """
    @property
    def blocks(self, /) -> int:
        """
        Blocks of the whole drive, as tenants own them: clustered ones count as one.
        """
    def cancel_moves(self, /) -> None:
        """
        Cancels the blocks that were not moved yet.
        """
    def check(self, /) -> None:
        """
        Verifies every invariant of the mapping; raises `DriveError` naming the first that is broken.
        """
    def clear_latencies(self, /) -> None: ...
    def counters(self, /, tenant: SupportsIndex) -> TenantRecord: ...
    def create_tenant(self, /, pages: SupportsIndex, isolated: bool, ops_blocks: SupportsIndex) -> int: ...
    def delete_tenant(self, /, tenant: SupportsIndex) -> None: ...
    def end_input(self, /, tenant: SupportsIndex) -> None: ...
    def feed(self, /, tenant: SupportsIndex, time_ns: NDArray[int64], op: NDArray[uint8], offset_bytes: NDArray[uint64], length_bytes: NDArray[uint64]) -> None:
        """
        Appends requests to a tenant's input. Columns of equal length; all are checked before one is added.
        """
    @property
    def host_page_writes(self, /) -> int: ...
    def latency_us(self, /, tenant: SupportsIndex, percentiles: SupportsGetItem[int, SupportsFloat | SupportsIndex]) -> LatencyUs:
        """
        Percentiles (0..100) of read and write latency in microseconds since the last clear.
        """
    def moves(self, /) -> MoveRecord:
        """
        State of the moves in the background.
        """
    @property
    def now_ns(self, /) -> int: ...
    def open_queue(self, /, tenant: SupportsIndex, queue_depth: SupportsIndex | None) -> None:
        """
        Creates an empty queue for a tenant: closed loop at a depth, or open loop by timestamps when depth is None.
        """
    def outstanding(self, /, tenant: SupportsIndex) -> int: ...
    def pause(self, /, tenant: SupportsIndex, paused: bool) -> None: ...
    def precondition(self, /, seed: SupportsIndex, progress: Callable[[float], object] | None = None) -> Preconditioning:
        """
        Brings the drive to a steady state. `progress`, if given, is called with the capacities written so far;
        its exception ends the preconditioning.
        """
    def queue_counters(self, /, tenant: SupportsIndex) -> QueueRecord: ...
    def request_move(self, /, source: SupportsIndex | None, target: SupportsIndex | None, blocks: SupportsIndex) -> None: ...
    def resize_tenant(self, /, tenant: SupportsIndex, pages: SupportsIndex) -> None: ...
    @staticmethod
    def restore(path: str | PathLike[str], config: Config) -> tuple[Device, str]:
        """
        Restores a drive that `save()` wrote; returns it and its label. Shape and GC policy come from the file, latencies
        and scheduler from the configuration.
        """
    def run(self, /, until_ns: SupportsIndex | None = None, until_host_page_writes: SupportsIndex | None = None) -> tuple[Literal["time", "writes", "starved", "idle"], list[int]]:
        """
        Lets virtual time pass until a time, a count of host page writes, or a tenant without input.

        Returns "time", "writes", "starved" or "idle", and the tenants without input.
        """
    def save(self, /, path: str | PathLike[str], label: str) -> None:
        """
        Writes the placement of every page, every counter and the caller's label.
        """
    def set_limit(self, /, tenant: SupportsIndex, iops: SupportsFloat | SupportsIndex | None = None, bytes_s: SupportsFloat | SupportsIndex | None = None) -> None: ...
    def set_move_budget(self, /, share: SupportsFloat | SupportsIndex) -> None:
        """
        Share of the device's time that moves may take while requests are outstanding.
        """
    def set_weight(self, /, tenant: SupportsIndex, weight: SupportsFloat | SupportsIndex) -> None: ...
    def space(self, /, tenant: SupportsIndex) -> SpaceRecord: ...
    @property
    def spare_blocks(self, /) -> int: ...
    def take_recent_latency_us(self, /, tenant: SupportsIndex, percentiles: SupportsGetItem[int, SupportsFloat | SupportsIndex]) -> LatencyUs:
        """
        The same percentiles since the previous call for the tenant; empty at the first call.
        """
    def tenants(self, /) -> list[int]: ...

@final
class DiskPreset:
    """
    A preset of a disk.
    """
    @property
    def capacity_bytes(self, /) -> int: ...
    @property
    def command_ns(self, /) -> int: ...
    @property
    def description(self, /) -> str: ...
    @property
    def heads(self, /) -> int: ...
    @property
    def inner_bytes_s(self, /) -> int: ...
    @property
    def interface_bytes_s(self, /) -> int: ...
    @property
    def name(self, /) -> str: ...
    @property
    def outer_bytes_s(self, /) -> int: ...
    @property
    def queue_depth(self, /) -> int: ...
    @property
    def rotation_ns(self, /) -> int: ...
    @property
    def seek_average_ns(self, /) -> int: ...
    @property
    def seek_max_ns(self, /) -> int: ...
    @property
    def seek_min_ns(self, /) -> int: ...
    @property
    def segment_bytes(self, /) -> int: ...
    @property
    def segments(self, /) -> int: ...
    @property
    def write_cache_bytes(self, /) -> int: ...
    @property
    def write_cache_places(self, /) -> int: ...
    @property
    def write_settle_ns(self, /) -> int: ...
    @property
    def zones(self, /) -> int: ...

@final
class Disks:
    """
    Disks of one kind, all of them used by one client.
    """
    def __new__(cls, /, preset: str, disks: SupportsIndex, stripe_bytes: SupportsIndex) -> Disks:
        """
        Raises `ValueError` for an unknown preset, `DriveError` for an invalid array.
        """
    @property
    def capacity_bytes(self, /) -> int: ...
    def flush(self, /) -> None:
        """
        Waits until every write is on the media.
        """
    @property
    def now_ns(self, /) -> int: ...
    def play(self, /, op: SupportsIndex, offsets_bytes: NDArray[uint64], length_bytes: SupportsIndex, queue_depth: SupportsIndex = 1, limit_ns: SupportsIndex | None = None) -> tuple[int, int]:
        """
        Plays requests of one kind (0 read, 1 write) and size, `queue_depth` at a time, until all have ended or
        `limit_ns` has passed. Returns the number of ended requests and the time they took.
        """

@final
class LatencyUs:
    """
    Latency percentiles in microseconds, in the requested order; empty if nothing was recorded.
    """
    @property
    def read(self, /) -> list[float]: ...
    @property
    def reads(self, /) -> int: ...
    @property
    def write(self, /) -> list[float]: ...
    @property
    def writes(self, /) -> int: ...

@final
class MoveRecord:
    """
    State of the moves of OPS blocks in the background.
    """
    @property
    def budget(self, /) -> float: ...
    @property
    def done_ns(self, /) -> int: ...
    @property
    def moved_blocks(self, /) -> int: ...
    @property
    def owed_ns(self, /) -> int: ...
    @property
    def pending(self, /) -> list[tuple[int | None, int | None, int]]:
        """
        From, to (None: spare blocks), blocks still to be moved.
        """

@final
class Moved:
    """
    Result of moves of OPS blocks.
    """
    @property
    def gc_passes(self, /) -> int: ...
    @property
    def moved_blocks(self, /) -> int: ...
    @property
    def pending_blocks(self, /) -> int: ...

@final
class Preconditioning:
    """
    Result of preconditioning.
    """
    @property
    def host_page_writes(self, /) -> int: ...
    @property
    def settled(self, /) -> bool: ...
    @property
    def waf(self, /) -> list[float]: ...

@final
class Preset:
    """
    A preset of a drive.
    """
    @property
    def channels(self, /) -> int: ...
    @property
    def description(self, /) -> str: ...
    @property
    def dies_per_channel(self, /) -> int: ...
    @property
    def erase_ns(self, /) -> int: ...
    @property
    def name(self, /) -> str: ...
    @property
    def over_provisioning(self, /) -> float: ...
    @property
    def page_bytes(self, /) -> int: ...
    @property
    def pages_per_block(self, /) -> int: ...
    @property
    def planes(self, /) -> int: ...
    @property
    def program_ns(self, /) -> int: ...
    @property
    def read_ns(self, /) -> int: ...
    @property
    def transfer_ns(self, /) -> int: ...

@final
class QueueRecord:
    """
    Queue-side counters of a tenant since its queue was opened.
    """
    @property
    def backlog_ns(self, /) -> int: ...
    @property
    def device_ns(self, /) -> int: ...
    @property
    def flushes(self, /) -> int: ...
    @property
    def gc_ns(self, /) -> int: ...
    @property
    def latency_ns(self, /) -> int: ...
    @property
    def queued_ns(self, /) -> int: ...
    @property
    def read_bytes(self, /) -> int: ...
    @property
    def reads(self, /) -> int: ...
    @property
    def throttled_ns(self, /) -> int: ...
    @property
    def trims(self, /) -> int: ...
    @property
    def write_bytes(self, /) -> int: ...
    @property
    def write_zeroes(self, /) -> int: ...
    @property
    def writes(self, /) -> int: ...

@final
class SpaceRecord:
    """
    Present space of a tenant.
    """
    @property
    def free_blocks(self, /) -> int: ...
    @property
    def isolated(self, /) -> bool: ...
    @property
    def logical_blocks(self, /) -> int: ...
    @property
    def logical_pages(self, /) -> int: ...
    @property
    def mapped_pages(self, /) -> int: ...
    @property
    def max_erases(self, /) -> int: ...
    @property
    def min_erases(self, /) -> int: ...
    @property
    def min_ops_blocks(self, /) -> int: ...
    @property
    def ops_blocks(self, /) -> int: ...
    @property
    def pending_out_blocks(self, /) -> int: ...

@final
class TenantRecord:
    """
    Flash-side counters of a tenant since its creation; pages unless the name says otherwise.
    """
    @property
    def erases(self, /) -> int: ...
    @property
    def full_merge_ns(self, /) -> int: ...
    @property
    def full_merges(self, /) -> int: ...
    @property
    def gc_page_writes(self, /) -> int: ...
    @property
    def host_page_reads(self, /) -> int: ...
    @property
    def host_page_writes(self, /) -> int: ...
    @property
    def map_ns(self, /) -> int: ...
    @property
    def map_reads(self, /) -> int: ...
    @property
    def map_writes(self, /) -> int: ...
    @property
    def merged_blocks(self, /) -> int: ...
    @property
    def moved_pages_of(self, /) -> list[int]: ...
    @property
    def partial_merge_ns(self, /) -> int: ...
    @property
    def partial_merges(self, /) -> int: ...
    @property
    def reclaim_page_writes(self, /) -> int: ...
    @property
    def rmw_page_reads(self, /) -> int: ...
    @property
    def switch_merge_ns(self, /) -> int: ...
    @property
    def switch_merges(self, /) -> int: ...
    @property
    def trimmed_pages(self, /) -> int: ...
    @property
    def unmapped_page_reads(self, /) -> int: ...
    @property
    def victim_histogram(self, /) -> list[int]: ...
    @property
    def victim_valid_pages(self, /) -> int: ...
    @property
    def victims(self, /) -> int: ...

def disk_presets() -> list[DiskPreset]:
    """
    The presets of disks.
    """

def mappings() -> list[tuple[str, str]]:
    """
    Mappings: (name, description).
    """

def presets() -> list[Preset]:
    """
    The presets of drives.
    """

def schedulers() -> list[tuple[str, str]]:
    """
    Schedulers: (name, description).
    """

def toml_lines(text: str) -> list[tuple[list[str | int], int]]:
    """
    The line, from 1, of each key, table and element of an array of a TOML file, with its path.
    """

def victim_policies() -> list[tuple[str, str]]:
    """
    Victim policies: (name, description).
    """
