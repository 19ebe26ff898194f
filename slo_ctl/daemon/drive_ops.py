"""OPS of the namespaces of an NVMe drive that reports and moves it: what VMs have, and moves between them.

Such a drive is recognised by its UUID List (`host.nvme.ops`). Of its timing nothing is known, so that
policies go by pages written; shares are kept by limits, as on every NVMe drive.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slo_ctl.act.journal import Journal, JournalError
from slo_ctl.act.nvme_ops import ops_split
from slo_ctl.daemon.nvme import NvmeSeen, OpsRequest
from slo_ctl.daemon.occupants import Occupant
from slo_ctl.decide.policies import Policy, make_policy, most_moves_of
from slo_ctl.model import Decision, DeviceSample, FlashTiming, Slo, StreamWindow, TimingModel, VmSample
from slo_ctl.model.nvme import DriveOps, NamespaceOps
from slo_ctl.model.sample import waf_of
from slo_ctl.observe.block import Sliding

log = logging.getLogger("slo_ctl.daemon")


class DriveOpsControl:
    """One drive, from one look at its log to the next."""

    def __init__(self, drive: str, window_s: float) -> None:
        """`drive` is the NQN of its subsystem; `window_s`, what the status looks back."""
        self.drive = drive
        self.reasons: tuple[str, ...] = ()
        """Decisions in force, and why blocks cannot be moved."""
        self._window: Sliding[DriveOps] = Sliding(window_s)
        self._policy: Policy[Any] | None = None
        self._state: Any = None
        self._vms: dict[int, str] = {}
        """By NSID, of namespaces that one VM uses."""
        self._keys: dict[int, str] = {}
        self._decision = Decision()
        self._refusal = ""

    def observe(self, seen: NvmeSeen, occupants: Mapping[int, Occupant], policy: str) -> None:
        """Take the latest reading into account, and decide; `occupants` by NSID."""
        if seen.ops is None:
            self._window.clear()
            self._forget_policy()
            self.reasons, self._decision = (), Decision()
            return
        last = self._window.last
        if last is not None and seen.ops.at_s <= last.at_s:
            self._decision = replace(self._decision, moves=())  # they were asked for
            return
        if last is not None and not _continues(last, seen.ops):
            self._window.clear()
            self._forget_policy()
            last = None
        self._window.add(seen.ops.at_s, seen.ops)
        self._vms = {nsid: on.key for nsid, on in occupants.items()}
        self._keys = {
            each.nsid: self._vms.get(each.nsid, f"namespace {each.nsid}") for each in seen.ops.namespaces
        }
        self._refusal = seen.ops_refusal
        if last is not None:
            slos = {occupant.key: occupant.slo for occupant in occupants.values()}
            self._decide(_sample(last, seen.ops, self._keys).with_slos(slos), policy)

    def _forget_policy(self) -> None:
        self._policy = self._state = None

    def _decide(self, sample: DeviceSample, policy: str) -> None:
        sample = replace(sample, max_move_blocks=most_moves_of(policy, sample))
        try:
            if self._policy is None or self._policy.name != policy:
                self._policy = make_policy(policy)
                self._state, self._decision = self._policy.resume(sample)
            else:
                self._state, self._decision = self._policy.step(self._state, sample)
        except ValueError as error:
            self._decision = Decision(reasons=(f"{policy} cannot decide: {error}",))
        refused = (f"the drive does not move OPS: {self._refusal}",) if self._refusal else ()
        for reason in (*self._decision.reasons, *refused):
            if reason not in self.reasons:
                log.info("drive %s: %s", self.drive, reason)
        self.reasons = (*self._decision.reasons, *refused)

    def requests(self, journal: Journal) -> list[OpsRequest]:
        """Moves that the drive is to be asked for; the split before the first of them is journalled.

        Nothing while blocks are being moved: the sample did not know where they end.
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
        found = [
            OpsRequest(
                None if move.source is None else nsids[move.source],
                None if move.target is None else nsids[move.target],
                move.blocks,
            )
            for move in self._decision.moves
        ]
        self._decision = replace(self._decision, moves=())
        return found

    def with_ops(self, nsid: int, window: StreamWindow) -> StreamWindow:
        """The window of the one VM on a namespace, with what the drive reports of it."""
        first, last = self._window.first, self._window.last
        then = first.namespace(nsid) if first is not None else None
        now = last.namespace(nsid) if last is not None else None
        if last is None or now is None:
            return window
        did = _since(then, now)
        victim_pages = did.victims * last.pages_per_block
        return replace(
            window,
            totals=replace(
                window.totals, host_page_writes=now.host_page_writes, gc_page_writes=now.gc_page_writes
            ),
            host_page_writes=did.host_page_writes,
            gc_page_writes=did.gc_page_writes,
            u=did.victim_valid_pages / victim_pages if victim_pages else None,
            waf=waf_of(did.host_page_writes, did.gc_page_writes),
            size_bytes=now.logical_blocks * last.block_bytes,
            ops_blocks=now.ops_blocks,
            ops_bytes=now.ops_blocks * last.block_bytes,
        )


def _continues(last: DriveOps, now: DriveOps) -> bool:
    """Whether the counters are those of before: the same namespaces, and nothing went back."""
    if {each.nsid for each in last.namespaces} != {each.nsid for each in now.namespaces}:
        return False
    return all(
        before.victims <= each.victims
        and before.host_page_writes <= each.host_page_writes
        and before.gc_page_writes <= each.gc_page_writes
        and before.victim_valid_pages <= each.victim_valid_pages
        for each in now.namespaces
        if (before := last.namespace(each.nsid)) is not None
    )


def _since(then: NamespaceOps | None, now: NamespaceOps) -> NamespaceOps:
    """The counters of a window; blocks as they are now."""
    before = then or now
    return replace(
        now,
        host_page_writes=now.host_page_writes - before.host_page_writes,
        gc_page_writes=now.gc_page_writes - before.gc_page_writes,
        victims=now.victims - before.victims,
        victim_valid_pages=now.victim_valid_pages - before.victim_valid_pages,
    )


def _sample(last: DriveOps, now: DriveOps, keys: Mapping[int, str]) -> DeviceSample:
    vms = []
    for each in now.namespaces:
        did = _since(last.namespace(each.nsid), each)
        vms.append(
            VmSample(
                vm=keys[each.nsid],
                slo=Slo(),
                active=did.host_page_writes > 0,
                window_s=now.at_s - last.at_s,
                requests=did.host_page_writes,
                host_page_writes=did.host_page_writes,
                gc_page_writes=did.gc_page_writes,
                victim_pages=did.victims * now.pages_per_block,
                victim_valid_pages=did.victim_valid_pages,
                logical_blocks=each.logical_blocks,
                ops_blocks=each.ops_blocks,
                min_ops_blocks=each.min_ops_blocks,
            )
        )
    # Of a timing model that is `none` only the size of a block counts.
    timing = FlashTiming(now.pages_per_block, 0.0, 0.0, 0.0, 0.0, model=TimingModel.NONE)
    return DeviceSample(timing=timing, vms=tuple(vms), spare_blocks=now.spare_blocks)
