"""An emulated drive to which a file system writes its syncs, in virtual time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fsim.file_system import Sync
from fsim.space import BLOCK_BYTES, Extent
from lab.paper_drives import LOG_BLOCKS, log_blocks_of, plan_whole
from traces.batch import Op

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ftl_emul import Device

REQUEST_BLOCKS = 128
"""The kernel sends at most 512 KiB at once (max_sectors_kb)."""
OCCUPANT = "file system"
"""Name of the drive's only namespace in error messages."""
_QUEUE_DEPTH = 32
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class Wear:
    """Work of the drive, in pages and merges."""

    host_page_writes: int
    merge_page_writes: int
    switch_merges: int
    partial_merges: int
    full_merges: int


def shape_of(spec: str) -> tuple[int, int]:
    """Blocks of a drive, and of each of its logical blocks."""
    plan = plan_whole(spec, OCCUPANT)
    if plan.config.page_bytes != BLOCK_BYTES:
        raise ValueError(f"pages must be of {BLOCK_BYTES} bytes, as file-system blocks are")
    return plan.total_pages, plan.config.block_pages


class SyncedDrive:
    """A drive that was written completely before, to which a file system writes."""

    def __init__(self, spec: str, trim: bool, log_blocks: int = LOG_BLOCKS) -> None:
        """`spec` as for `slo-ctl replay --device`; `trim`: the file system trims blocks that it frees.

        If OPS has fewer blocks than `log_blocks`, all of them are log blocks. With `mapping=fast` one of them
        is the sequential one; mappings without log blocks keep the spec's own OPS.
        """
        plan = plan_whole(spec, OCCUPANT)
        if plan.config.merges:
            plan = replace(plan, ops_blocks=(log_blocks_of(plan, log_blocks),))
        self.blocks, self.logical_block = shape_of(spec)
        self._trim = trim
        self._device: Device
        self._device, tenants = plan.create(isolated=True)
        self._tenant = tenants[0]
        # "The SSD is filled up" (section V): every page was written once.
        step = plan.config.block_pages
        starts = np.arange(0, self.blocks, step)
        self._apply(Op.WRITE, starts, np.minimum(step, self.blocks - starts))
        self._start = self._device.counters(self._tenant)

    def fill(self, blocks: Iterable[Extent]) -> None:
        """Write these extents without a clock and, with TRIM, trim all others: the state before a run."""
        table = np.array(sorted(blocks), dtype=np.int64).reshape(-1, 2)
        if self._trim:
            self._apply(Op.TRIM, np.array([0]), np.array([self.blocks]))
        self._apply(Op.WRITE, table[:, 0], table[:, 1])
        self._start = self._device.counters(self._tenant)

    def play(self, sync: Sync) -> float:
        """Write a sync; returns the seconds it took."""
        begun = self._device.now_ns
        if self._trim and sync.freed:
            table = np.array(sync.freed, dtype=np.int64)
            self._apply_in_time(Op.TRIM, table[:, 0], table[:, 1])
        for part in (sync.data, sync.journal, sync.metadata):
            self._apply_in_time(Op.WRITE, *requests(part))
        return (self._device.now_ns - begun) / _NS_PER_S

    def wear(self) -> Wear:
        """Work since the drive was filled."""
        now, before = self._device.counters(self._tenant), self._start
        return Wear(
            host_page_writes=now.host_page_writes - before.host_page_writes,
            merge_page_writes=now.gc_page_writes - before.gc_page_writes,
            switch_merges=now.switch_merges - before.switch_merges,
            partial_merges=now.partial_merges - before.partial_merges,
            full_merges=now.full_merges - before.full_merges,
        )

    def _apply(self, op: Op, starts: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        self._device.apply(np.full(len(starts), self._tenant, dtype=np.uint16), *_columns(op, starts, counts))

    def _apply_in_time(self, op: Op, starts: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        if not len(starts):
            return
        self._device.open_queue(self._tenant, _QUEUE_DEPTH)
        self._device.feed(self._tenant, np.zeros(len(starts), dtype=np.int64), *_columns(op, starts, counts))
        self._device.end_input(self._tenant)
        self._device.run()


def requests(blocks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Starts and lengths of the requests that the block layer makes of blocks in this order."""
    if not len(blocks):
        return blocks, blocks
    breaks = np.flatnonzero(np.diff(blocks) != 1) + 1
    first = np.concatenate(([0], breaks))
    length = np.diff(np.concatenate((first, [len(blocks)])))
    pieces = -(-length // REQUEST_BLOCKS)
    piece = np.arange(pieces.sum()) - np.repeat(pieces.cumsum() - pieces, pieces)
    starts = np.repeat(blocks[first], pieces) + piece * REQUEST_BLOCKS
    counts = np.minimum(np.repeat(length, pieces) - piece * REQUEST_BLOCKS, REQUEST_BLOCKS)
    return starts, counts


def _columns(
    op: Op, starts: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.uint64], NDArray[np.uint64]]:
    return (
        np.full(len(starts), int(op), dtype=np.uint8),
        (starts * BLOCK_BYTES).astype(np.uint64),
        (counts * BLOCK_BYTES).astype(np.uint64),
    )
