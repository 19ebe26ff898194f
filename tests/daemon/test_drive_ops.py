"""OPS of an NVMe drive that reports and moves it: counters of its log page are read, moves sent. Emulated."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ftl_emul import Config, Device
from slo_ctl.act.journal import Journal
from slo_ctl.act.nvme_ops import ops_knob
from slo_ctl.daemon.nvme import DriveOpsControl, NvmeState, OpsRequest
from slo_ctl.daemon.occupants import Occupant
from slo_ctl.decide.policies import DEFAULT_POLICY
from slo_ctl.model.nvme import DriveOps, NamespaceOps
from slo_ctl.model.sample import VmSample
from slo_ctl.model.slo import Slo

_NQN = "nqn.2014-08.org.nvmexpress:uuid:test"
_PAGE_BYTES, _BLOCK_PAGES, _PAGES = 4096, 32, 2048
_CONFIG = Config(
    page_bytes=_PAGE_BYTES,
    pages_per_block=_BLOCK_PAGES,
    blocks_per_die=184,
    channels=1,
    dies_per_channel=1,
    planes=1,
    read_ns=0,
    program_ns=0,
    erase_ns=0,
    transfer_ns=0,
)


@dataclass
class Drive:
    """Two namespaces of the same size, overwritten at random until garbage collection is steady."""

    device: Device = field(default_factory=lambda: Device(_CONFIG))
    now_s: float = 0.0
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def __post_init__(self) -> None:
        spare = self.device.blocks - 2 * _PAGES // _BLOCK_PAGES
        self.tenants = {nsid: self.device.create_tenant(_PAGES, True, spare // 2) for nsid in (1, 2)}
        for nsid in (1, 2):
            self.write(nsid, np.arange(_PAGES))
            self.write(nsid, self.random.integers(_PAGES, size=5 * _PAGES))

    def write(self, nsid: int, pages: np.ndarray) -> None:
        count = len(pages)
        self.device.apply(
            np.full(count, self.tenants[nsid], np.uint16),
            np.ones(count, np.uint8),
            pages.astype(np.uint64) * np.uint64(_PAGE_BYTES),
            np.full(count, _PAGE_BYTES, np.uint64),
        )

    def second(self, pages_of: dict[int, int]) -> None:
        for nsid, pages in pages_of.items():
            self.write(nsid, self.random.integers(_PAGES, size=pages))
        self.now_s += 1.0

    def log(self, pending_blocks: int = 0) -> DriveOps:
        namespaces = []
        for nsid, tenant in self.tenants.items():
            space, flash = self.device.space(tenant), self.device.counters(tenant)
            namespaces.append(
                NamespaceOps(
                    nsid,
                    space.ops_blocks,
                    space.min_ops_blocks,
                    space.logical_blocks,
                    flash.host_page_writes,
                    flash.gc_page_writes,
                    flash.victims,
                    flash.victim_valid_pages,
                )
            )
        block_bytes = _BLOCK_PAGES * _PAGE_BYTES
        spare = self.device.spare_blocks
        return DriveOps(self.now_s, block_bytes, _PAGE_BYTES, spare, pending_blocks, tuple(namespaces))

    def move(self, requests: list[OpsRequest]) -> None:
        for each in requests:
            source, target = (
                None if end is None else self.tenants[end] for end in (each.source, each.target)
            )
            self.device.request_move(source, target, each.blocks)
        while self.device.advance_moves(1024).pending_blocks:
            pass


_ON = {1: Occupant("a", "a", Slo(weight=1)), 2: Occupant("b", "b", Slo(weight=9))}


def run(drive: Drive, control: DriveOpsControl, journal: Journal, seconds: int, refusal: str = "") -> int:
    """Number of blocks requested while `b` writes nine times as much as `a`."""
    asked = 0
    for _ in range(seconds):
        control.observe(NvmeState(ops=drive.log(), ops_refusal=refusal), _ON, DEFAULT_POLICY)
        requests = control.requests(journal)
        asked += sum(each.blocks for each in requests)
        drive.move(requests)
        drive.second({1: 100, 2: 900})
    return asked


def test_ops_move_to_the_heaviest_writer_and_original_split_is_kept(tmp_path: Path) -> None:
    drive, journal = Drive(), Journal(tmp_path / "journal")
    before = {each.nsid: each.ops_blocks for each in drive.log().namespaces}
    control = DriveOpsControl(_NQN, window_s=10.0)
    assert run(drive, control, journal, 40) > 0
    after = {each.nsid: each.ops_blocks for each in drive.log().namespaces}
    assert after[2] - before[2] == before[1] - after[1] > 3
    originals = {knob: each.value for knob, each in journal.originals().items()}
    assert originals == {ops_knob(_NQN, nsid): float(blocks) for nsid, blocks in before.items()}
    # The row of the VM in `status`: the last window, from the drive's own counters.
    last = drive.log().namespace(2)
    control.observe(NvmeState(ops=drive.log()), _ON, DEFAULT_POLICY)
    shown = control.with_ops(2, VmSample("b", 10.0))
    assert last is not None
    assert (shown.ops_blocks, shown.totals.gc_page_writes) == (after[2], last.gc_page_writes)
    assert shown.host_page_writes == 10 * 900
    assert shown.u is not None
    assert 0.3 < shown.u < 0.9
    assert shown.waf is not None
    assert 1.0 < shown.waf < 1.0 / (1.0 - shown.u) + 0.3


def test_no_move_is_requested_while_blocks_move_or_after_refusal(tmp_path: Path) -> None:
    drive, journal = Drive(), Journal(tmp_path / "journal")
    control = DriveOpsControl(_NQN, window_s=10.0)
    assert run(drive, control, journal, 40, refusal="Invalid Command Opcode") == 0
    assert control.reasons[-1] == "the drive does not move OPS: Invalid Command Opcode"
    drive.second({1: 100, 2: 900})
    control.observe(NvmeState(ops=drive.log(pending_blocks=3)), _ON, DEFAULT_POLICY)
    assert control.requests(journal) == []
    assert len(journal) == 0
    drive.second({1: 100, 2: 900})
    control.observe(NvmeState(ops=drive.log()), _ON, DEFAULT_POLICY)
    assert control.requests(journal) != []
    # The same reading does not lead to a second decision.
    control.observe(NvmeState(ops=drive.log()), _ON, DEFAULT_POLICY)
    assert control.requests(journal) == []


def test_unreachable_or_replaced_drive_starts_over(tmp_path: Path) -> None:
    drive, journal = Drive(), Journal(tmp_path / "journal")
    control = DriveOpsControl(_NQN, window_s=10.0)
    run(drive, control, journal, 20)
    window = VmSample("b", 10.0)
    control.observe(NvmeState(), _ON, DEFAULT_POLICY)
    assert control.with_ops(2, window) == window
    run(drive, control, journal, 3)
    other = Drive(now_s=drive.now_s)
    control.observe(NvmeState(ops=other.log()), _ON, DEFAULT_POLICY)
    assert control.requests(journal) == []
    assert control.with_ops(2, window).host_page_writes == 0
