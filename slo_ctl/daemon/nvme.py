"""NVMe drives of managed block devices: their placement, WAF and OPS, and decisions about that OPS.

A drive may take seconds to answer, or hang; no epoch waits for it: a thread per endurance group reads it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slo_ctl.act.journal import Journal, JournalError
from slo_ctl.act.nvme_ops import ops_split
from slo_ctl.base.errors import UserError
from slo_ctl.base.text import printable
from slo_ctl.daemon.occupants import Occupant
from slo_ctl.decide.device_waf import choose, waf_over
from slo_ctl.decide.drive_pool import strongest
from slo_ctl.decide.policies import Policy, make_policy
from slo_ctl.host.calls import WatchThread
from slo_ctl.host.nvme import drive
from slo_ctl.host.nvme.command import NvmeCommandError, NvmeError, NvmeTool
from slo_ctl.host.nvme.drive import MediaReader, controller_of, discover
from slo_ctl.host.nvme.ops import DriveOpsLog
from slo_ctl.model.decision import Decision
from slo_ctl.model.host import DeviceNumber
from slo_ctl.model.nvme import DriveOps, Isolation, NamespaceOps, NvmeController
from slo_ctl.model.sample import (
    DeviceSample,
    DeviceWaf,
    FlashTiming,
    MediaCounters,
    TimingModel,
    VmSample,
    WafSource,
)
from slo_ctl.observe.block import SlidingWindow

log = logging.getLogger("slo_ctl.daemon")

READ_INTERVAL_S = 10.0
"""Interval of readings, which take about four short commands."""
RETRY_INTERVAL_S = 60.0
"""Interval of discoveries after one that failed."""
DISCOVERY_INTERVAL_S = 3600.0
"""Interval of discoveries, because FDP, groups and namespaces may change while the daemon runs."""
MAX_WINDOW_S = 3600.0
"""Longest window of a WAF: a coarse counter needs a certain amount of writes."""
STALE_S = 60.0
"""Age from which a WAF is no longer reported, because the drive hangs."""
_CLOSE_TIMEOUT_S = 1.0
"""While the thread waits for the drive, it ends when the command ends."""

_NOT_QUERIED = DeviceWaf(reason="the drive has not been queried yet")


@dataclass(frozen=True, slots=True)
class OpsRequest:
    """Blocks to move between two NSIDs; None is the spare of the drive."""

    source: int | None
    target: int | None
    blocks: int


@dataclass(frozen=True, slots=True)
class NvmeState:
    """Latest data of a drive."""

    placement: str = ""
    """The strongest isolation that it offers, such as `separation by FDP`; empty until it is known."""
    waf: DeviceWaf | None = _NOT_QUERIED
    """None: it is not an NVMe drive."""
    ops: DriveOps | None = None
    """OPS of its namespaces; None: it does not report OPS, or did not answer."""
    ops_refusal: str = ""
    """Why it refused to move OPS; empty before a request."""


class NvmeWatch(WatchThread):
    """Reads the drive of one block device in a thread, from `start` to `close`."""

    def __init__(
        self,
        block: str,
        sys: Path,
        window_s: float,
        *,
        make_tool: Callable[[], NvmeTool] = NvmeTool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`block`: name of the block device of a namespace, such as `nvme0n1`."""
        super().__init__(f"nvme-{block}", _CLOSE_TIMEOUT_S)
        self.block = block
        self._sys = sys
        self._window_s = window_s
        self._make_tool = make_tool
        self._clock = clock
        self._state = NvmeState()
        self._published_at_s = clock()
        self._reader: MediaReader | None = None
        self._discovered_at_s = 0.0
        self._emulated = False
        self._groups: dict[str, int | None] | None = None
        """Endurance group of each namespace, by name of its block device; None: unknown."""
        self._readings: dict[WafSource, deque[MediaCounters]] = {}
        self._ops_log: DriveOpsLog | None = None
        self._requests: deque[OpsRequest] = deque()
        self._requested = False
        """Whether moves were requested during the present pause."""

    @property
    def state(self) -> NvmeState:
        """The latest data. Never blocks."""
        state, age_s = self._state, self._clock() - self._published_at_s
        if age_s <= STALE_S or self._reader is None:
            return state
        source = state.waf.source if state.waf is not None else WafSource.NONE
        waf = DeviceWaf(source, reason=f"the drive last answered {age_s:.0f} s ago")
        return replace(state, waf=waf, ops=None)

    def move_ops(self, requests: Iterable[OpsRequest]) -> None:
        """Have the thread request these moves from the drive. Never blocks."""
        with self._changed:
            self._requests.extend(requests)
            self._requested = bool(self._requests)
            self._changed.notify()

    def covers(self, block: str) -> bool | None:
        """Whether the data apply to another namespace, because it is in the same endurance group.

        None: unknown, because the drive has not been queried yet or did not answer.
        """
        groups = self._groups
        if block == self.block or groups is None:
            return True if block == self.block else None
        return block in groups and groups[block] == groups.get(self.block)

    def _run(self) -> None:
        while not self._stopping:
            try:
                self.read()
            except Exception as error:
                # The thread must not end with the last WAF still published.
                log.exception("NVMe drive behind %s", self.block)
                self._publish(NvmeState(waf=DeviceWaf(reason=f"unexpected {type(error).__name__}: {error}")))
            interval_s = READ_INTERVAL_S if self._reader is not None else RETRY_INTERVAL_S
            self._pause(interval_s, lambda: self._requested)
            self._requested = False

    def read(self) -> None:
        """Discover the drive unless this was done recently, request moves, and read its counters."""
        if self._reader is None or self._clock() - self._discovered_at_s > DISCOVERY_INTERVAL_S:
            try:
                self._discover()
            except UserError as error:
                self._reader = self._groups = self._ops_log = None
                # They were decided by what the drive had; it may return as another one, or much later.
                self._requests.clear()
                self._publish(NvmeState(waf=DeviceWaf(reason=str(error))))
                return
        self._request_moves()
        self._read_counters()

    def _discover(self) -> None:
        tool = self._make_tool()
        device = discover(tool, controller_of(self.block, self._sys), self._sys)
        offered = strongest(device)
        placement = str(offered.isolation)
        if offered.isolation is not Isolation.NONE:
            placement += f" by {offered.by}"
        self._emulated = device.controller.emulated
        self._publish(replace(self._state, placement=placement, ops_refusal=""))
        self._discovered_at_s = self._clock()
        groups = {ns.name: ns.endurance_group for ns in device.namespaces if ns.name is not None}
        self._groups = groups
        self._reader = MediaReader(tool, device, groups.get(self.block), self._clock)
        self._ops_log = self._find_ops_log(tool, device.controller)

    def _find_ops_log(self, tool: NvmeTool, controller: NvmeController) -> DriveOpsLog | None:
        try:
            return DriveOpsLog.find(tool, controller, self._clock)
        except NvmeError as error:
            log.info("drive behind %s: whether it reports OPS is not known: %s", self.block, error)
            return None

    def _request_moves(self) -> None:
        while self._requests and self._ops_log is not None:
            request = self._requests.popleft()
            try:
                self._ops_log.move(request.source, request.target, request.blocks)
            except NvmeCommandError as error:
                if "opcode" in error.stderr.lower():
                    # Until the next discovery, because an operator may allow the command later.
                    self._requests.clear()
                    self._publish(replace(self._state, ops_refusal=str(error)))
                else:
                    log.warning("drive behind %s: %s", self.block, error)
            except NvmeError as error:
                log.warning("drive behind %s: %s", self.block, error)

    def _read_ops(self) -> DriveOps | None:
        if self._ops_log is None:
            return None
        try:
            return self._ops_log.read()
        except NvmeError as error:
            log.info("drive behind %s: %s", self.block, error)
            return None

    def _read_counters(self) -> None:
        assert self._reader is not None  # noqa: S101 - set by `_discover`
        counters, problems = self._reader.read()
        for reading in counters:
            readings = self._readings.setdefault(reading.source, deque())
            readings.append(reading)
            while readings[0].at_s < reading.at_s - MAX_WINDOW_S:
                readings.popleft()
        wafs = [waf_over(list(self._readings[reading.source]), self._window_s) for reading in counters]
        wafs += [DeviceWaf(source, reason=reason) for source, reason in problems.items()]
        waf = choose(wafs)
        scope = self._reader.scope.get(waf.source, "")
        waf = replace(waf, scope=scope, emulated=self._emulated)
        self._publish(replace(self._state, waf=waf, ops=self._read_ops()))

    def _publish(self, state: NvmeState) -> None:
        self._state, self._published_at_s = state, self._clock()


class NvmeWatches:
    """The watches of all drives: one for each endurance group with managed namespaces."""

    def __init__(
        self,
        sys: Path,
        window_s: float,
        make: Callable[[str, Path, float], NvmeWatch] = NvmeWatch,
    ) -> None:
        self._sys = sys
        self._window_s = window_s
        self._make = make
        self._controllers: dict[str, str] = {}
        """Controller of each block device in use."""
        self._users: Counter[str] = Counter()
        """Uses of each device, as it may be listed by several paths."""
        self._watches: dict[str, list[NvmeWatch]] = {}
        """Watches of each controller."""

    def join(self, number: DeviceNumber) -> str | None:
        """Watch the drive of a block device.

        Returns the name of the block device, which other methods take, or None if it is no NVMe namespace.
        """
        block = (self._sys / "dev" / "block" / str(number)).resolve().name
        controllers = drive.controllers_of(self._sys, block)
        if not controllers:
            return None
        self._controllers[block] = controllers[0]
        self._users[block] += 1
        self._watch_of(block)
        return block

    def state(self, block: str) -> NvmeState:
        """Latest data of the drive for this namespace. Never blocks."""
        return self._watch_of(block).state

    def move_ops(self, block: str, requests: Iterable[OpsRequest]) -> None:
        """Request moves of OPS from the drive of this namespace. Never blocks."""
        self._watch_of(block).move_ops(requests)

    def leave(self, block: str) -> None:
        """Stop reading `block`; other namespaces of its group are then read through one of them."""
        self._users[block] -= 1
        if self._users[block]:
            return
        controller = self._controllers.pop(block)
        was_last = controller not in self._controllers.values()
        for watch in list(self._watches[controller]):
            if was_last or watch.block == block:
                self._watches[controller].remove(watch)
                watch.close()

    def _watch_of(self, block: str) -> NvmeWatch:
        watches = self._watches.setdefault(self._controllers[block], [])
        # Until a drive has reported its groups, its first watch is used for all namespaces.
        for watch in sorted(watches, key=lambda watch: watch.block != block):
            if watch.covers(block) is not False:
                return watch
        watch = self._make(block, self._sys, self._window_s)
        watches.append(watch)
        watch.start()
        return watch


# OPS of the namespaces of a drive that can report and move it.
#
# Such a drive is recognised by its UUID List (`host.nvme.ops`). Its timing is unknown, so policies use counts
# of page writes; limits keep the shares, as on every NVMe drive.


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
                log.info("drive %s: %s", self.drive, printable(reason))
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

    def with_ops(self, nsid: int, window: VmSample) -> VmSample:
        """The window of the only VM on a namespace, with the drive's counters of that namespace."""
        first, last = self._window.first, self._window.last
        before = first.namespace(nsid) if first is not None else None
        totals = last.namespace(nsid) if last is not None else None
        if last is None or totals is None:
            return window
        counted = window.totals._replace(
            host_page_writes=totals.host_page_writes, gc_page_writes=totals.gc_page_writes
        )
        sample = _with_flash(window._replace(totals=counted), before or totals, totals, last)
        return sample._replace(size_bytes=totals.logical_blocks * last.block_bytes)


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


def _with_flash(sample: VmSample, earlier: NamespaceOps, later: NamespaceOps, drive: DriveOps) -> VmSample:
    """The sample with the increase of the counters of flash, and the blocks of the later reading."""
    return sample._replace(
        host_page_writes=later.host_page_writes - earlier.host_page_writes,
        gc_page_writes=later.gc_page_writes - earlier.gc_page_writes,
        victim_pages=(later.victims - earlier.victims) * drive.pages_per_block,
        victim_valid_pages=later.victim_valid_pages - earlier.victim_valid_pages,
        logical_blocks=later.logical_blocks,
        ops_blocks=later.ops_blocks,
        min_ops_blocks=later.min_ops_blocks,
        block_bytes=drive.block_bytes,
    )


def _sample(earlier: DriveOps, later: DriveOps, keys: Mapping[int, str]) -> DeviceSample:
    vms = []
    for ns in later.namespaces:
        sample = VmSample(keys[ns.nsid], later.at_s - earlier.at_s)
        sample = _with_flash(sample, earlier.namespace(ns.nsid) or ns, ns, later)
        # The drive counts pages only.
        vms.append(sample._replace(requests=sample.host_page_writes, active=sample.host_page_writes > 0))
    # With timing model `none` policies use only the size of a block.
    timing = FlashTiming(later.pages_per_block, 0.0, 0.0, 0.0, 0.0, model=TimingModel.NONE)
    return DeviceSample(timing=timing, vms=tuple(vms), spare_blocks=later.spare_blocks)
