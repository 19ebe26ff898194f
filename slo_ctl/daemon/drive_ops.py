"""OPS of the namespaces of an NVMe drive that can report and move it.

Such a drive is recognised by its UUID List (`host.nvme.ops`). Its timing is unknown, so policies use counts
of page writes; limits keep the shares, as on every NVMe drive.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slo_ctl.act.journal import Journal, JournalError
from slo_ctl.act.nvme_ops import ops_split
from slo_ctl.daemon.nvme import NvmeState, OpsRequest
from slo_ctl.daemon.occupants import Occupant
from slo_ctl.decide.policies import Policy, make_policy
from slo_ctl.model.decision import Decision
from slo_ctl.model.nvme import DriveOps, NamespaceOps
from slo_ctl.model.sample import DeviceSample, FlashTiming, StreamWindow, TimingModel, VmSample, waf_of
from slo_ctl.model.slo import Slo
from slo_ctl.observe.block import SlidingWindow

log = logging.getLogger("slo_ctl.daemon")


class DriveOpsControl:
    """Decides about the OPS of one drive, from one reading of its log to the next."""

    def __init__(self, drive: str, window_s: float) -> None:
        """`drive`: NQN of its subsystem; `window_s`: the status window."""
        self.drive = drive
        self.reasons: tuple[str, ...] = ()
        """Reasons of the decisions in force, and why blocks cannot be moved."""
        self._window: SlidingWindow[DriveOps] = SlidingWindow(window_s)
        self._policy: Policy[Any] | None = None
        self._state: Any = None
        self._vms: dict[int, str] = {}
        """Keys of streams of VMs, by NSID."""
        self._keys: dict[int, str] = {}
        """Keys of all streams, by NSID."""
        self._decision = Decision()
        self._refusal = ""

    def observe(self, nvme: NvmeState, occupants: Mapping[int, Occupant], policy: str) -> None:
        """Add the latest reading, and decide; `occupants` by NSID."""
        ops = nvme.ops
        if ops is None:
            self._reset()
            self.reasons, self._decision = (), Decision()
            return
        last = self._window.last
        if last is not None and ops.at_s <= last.at_s:
            self._decision = replace(self._decision, moves=())  # They were requested.
            return
        if last is not None and not _are_comparable(last, ops):
            self._reset()
            last = None
        self._window.add(ops.at_s, ops)
        self._vms = {nsid: occupant.key for nsid, occupant in occupants.items()}
        self._keys = {ns.nsid: self._vms.get(ns.nsid, f"namespace {ns.nsid}") for ns in ops.namespaces}
        self._refusal = nvme.ops_refusal
        if last is not None:
            slos = {occupant.key: occupant.slo for occupant in occupants.values()}
            self._decide(_sample(last, ops, self._keys).with_slos(slos), policy)

    def _reset(self) -> None:
        """Forget the readings and the state of the policy."""
        self._window.clear()
        self._policy = self._state = None

    def _decide(self, sample: DeviceSample, policy: str) -> None:
        try:
            if self._policy is None or self._policy.name != policy:
                self._policy = make_policy(policy)
                self._state, self._decision = self._policy.resume(sample)
            else:
                self._state, self._decision = self._policy.step(self._state, sample)
        except ValueError as error:
            self._decision = Decision(reasons=(f"{policy} cannot decide: {error}",))
        refusal = (f"the drive does not move OPS: {self._refusal}",) if self._refusal else ()
        reasons = (*self._decision.reasons, *refusal)
        for reason in reasons:
            if reason not in self.reasons:
                log.info("drive %s: %s", self.drive, reason)
        self.reasons = reasons

    def requests(self, journal: Journal) -> list[OpsRequest]:
        """Requests for the decided moves; adds the original split of OPS to the journal.

        None while the drive moves blocks, because the sample does not include their result.
        """
        ops = self._window.last
        if ops is None or not self._decision.moves or ops.pending_blocks or self._refusal:
            return []
        nsids = {key: nsid for nsid, key in self._keys.items()}
        try:
            journal.add(ops_split(self.drive, ops, self._vms))
        except JournalError as error:
            self.reasons = (*self.reasons, f"no OPS is moved: {error}")
            return []
        requests = [
            OpsRequest(
                None if move.source is None else nsids[move.source],
                None if move.target is None else nsids[move.target],
                move.blocks,
            )
            for move in self._decision.moves
        ]
        self._decision = replace(self._decision, moves=())
        return requests

    def with_ops(self, nsid: int, window: StreamWindow) -> StreamWindow:
        """The window of the only VM on a namespace, with the drive's counters of that namespace."""
        first, last = self._window.first, self._window.last
        before = first.namespace(nsid) if first is not None else None
        totals = last.namespace(nsid) if last is not None else None
        if last is None or totals is None:
            return window
        increase = _increase(before, totals)
        victim_pages = increase.victims * last.pages_per_block
        return window._replace(
            totals=window.totals._replace(
                host_page_writes=totals.host_page_writes, gc_page_writes=totals.gc_page_writes
            ),
            host_page_writes=increase.host_page_writes,
            gc_page_writes=increase.gc_page_writes,
            u=increase.victim_valid_pages / victim_pages if victim_pages else None,
            waf=waf_of(increase.host_page_writes, increase.gc_page_writes),
            size_bytes=totals.logical_blocks * last.block_bytes,
            ops_blocks=totals.ops_blocks,
            ops_bytes=totals.ops_blocks * last.block_bytes,
        )


def _are_comparable(earlier: DriveOps, later: DriveOps) -> bool:
    """Whether the namespaces are the same and no counter was reset."""
    if {ns.nsid for ns in earlier.namespaces} != {ns.nsid for ns in later.namespaces}:
        return False
    return all(
        before.victims <= ns.victims
        and before.host_page_writes <= ns.host_page_writes
        and before.gc_page_writes <= ns.gc_page_writes
        and before.victim_valid_pages <= ns.victim_valid_pages
        for ns in later.namespaces
        if (before := earlier.namespace(ns.nsid)) is not None
    )


def _increase(earlier: NamespaceOps | None, later: NamespaceOps) -> NamespaceOps:
    """The increase of the counters, with the blocks of the later reading."""
    before = earlier or later
    return replace(
        later,
        host_page_writes=later.host_page_writes - before.host_page_writes,
        gc_page_writes=later.gc_page_writes - before.gc_page_writes,
        victims=later.victims - before.victims,
        victim_valid_pages=later.victim_valid_pages - before.victim_valid_pages,
    )


def _sample(earlier: DriveOps, later: DriveOps, keys: Mapping[int, str]) -> DeviceSample:
    vms = []
    for ns in later.namespaces:
        increase = _increase(earlier.namespace(ns.nsid), ns)
        vms.append(
            VmSample(
                vm=keys[ns.nsid],
                slo=Slo(),
                active=increase.host_page_writes > 0,
                window_s=later.at_s - earlier.at_s,
                requests=increase.host_page_writes,
                host_page_writes=increase.host_page_writes,
                gc_page_writes=increase.gc_page_writes,
                victim_pages=increase.victims * later.pages_per_block,
                victim_valid_pages=increase.victim_valid_pages,
                logical_blocks=ns.logical_blocks,
                ops_blocks=ns.ops_blocks,
                min_ops_blocks=ns.min_ops_blocks,
            )
        )
    # With timing model `none` policies use only the size of a block.
    timing = FlashTiming(later.pages_per_block, 0.0, 0.0, 0.0, 0.0, model=TimingModel.NONE)
    return DeviceSample(timing=timing, vms=tuple(vms), spare_blocks=later.spare_blocks)
