"""Placement, WAF and OPS of an NVMe drive behind managed block devices, read in a thread.

A drive may take seconds to answer, or hang: no epoch ever waits for one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from slo_ctl.base.errors import UserError
from slo_ctl.decide.device_waf import choose, waf_over
from slo_ctl.decide.drive_pool import strongest
from slo_ctl.host.nvme import drive
from slo_ctl.host.nvme.command import NvmeCommandError, NvmeError, NvmeTool
from slo_ctl.host.nvme.drive import MediaReader, controller_of, discover
from slo_ctl.host.nvme.ops import DriveOpsLog
from slo_ctl.model import DeviceNumber
from slo_ctl.model.device_waf import DeviceWaf, MediaCounters, WafSource
from slo_ctl.model.nvme import DriveOps, Isolation, NvmeController

log = logging.getLogger("slo_ctl.daemon")

READ_EVERY_S = 10.0
"""Some four short commands each time."""
LOOK_AGAIN_S = 60.0
"""After a look at the drive that failed."""
FIND_EVERY_S = 3600.0
"""FDP may be enabled, groups and namespaces made, while the daemon runs."""
KEEP_S = 3600.0
"""The longest window: what a coarse counter needs of writes has to come in it."""
STALE_S = 60.0
"""A WAF that old is not reported any more: the drive hangs."""
_STOP_TIMEOUT_S = 1.0


_NOT_ASKED = DeviceWaf(reason="the drive has not been queried yet")


@dataclass(frozen=True, slots=True)
class OpsRequest:
    """Blocks that the drive is to move between two NSIDs; None is its spare."""

    source: int | None
    target: int | None
    blocks: int


@dataclass(frozen=True, slots=True)
class NvmeSeen:
    """Latest data of a drive."""

    placement: str = ""
    """The strongest it offers, such as `separation by FDP`; empty before that is known."""
    waf: DeviceWaf | None = _NOT_ASKED
    """None: it is not a drive that could report it."""
    ops: DriveOps | None = None
    """OPS of its namespaces; None: it does not report that, or did not answer."""
    ops_refusal: str = ""
    """Why it does not move OPS; empty before it was asked to."""


class NvmeWatch:
    """Watches the drive behind one block device from the first `start` on until `close`."""

    def __init__(
        self,
        block: str,
        sys: Path,
        window_s: float,
        *,
        make_tool: Callable[[], NvmeTool] = NvmeTool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`block` is the name of a namespace's block device, such as `nvme0n1`."""
        self.block = block
        self._sys = sys
        self._window_s = window_s
        self._make_tool = make_tool
        self._clock = clock
        self._seen = NvmeSeen()
        self._seen_s = clock()
        self._reader: MediaReader | None = None
        self._found_s = 0.0
        self._emulated = False
        self._groups: dict[str, int | None] | None = None
        self._readings: dict[WafSource, deque[MediaCounters]] = {}
        self._ops_log: DriveOpsLog | None = None
        self._requests: deque[OpsRequest] = deque()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"nvme-{block}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def seen(self) -> NvmeSeen:
        """The latest; never waits."""
        seen, age_s = self._seen, self._clock() - self._seen_s
        if age_s <= STALE_S or self._reader is None:
            return seen
        source = seen.waf.source if seen.waf is not None else WafSource.NONE
        waf = DeviceWaf(source, reason=f"the drive last answered {age_s:.0f} s ago")
        return replace(seen, waf=waf, ops=None)

    def move_ops(self, requests: Iterable[OpsRequest]) -> None:
        """Have the thread ask the drive for these moves; never waits."""
        self._requests.extend(requests)
        if self._requests:
            self._wake.set()

    def covers(self, block: str) -> bool | None:
        """Whether what is seen goes for another namespace too, being of the same endurance group.

        None: not known, as the drive has not been queried yet or did not answer.
        """
        groups = self._groups
        if block == self.block or groups is None:
            return True if block == self.block else None
        return block in groups and groups[block] == groups.get(self.block)

    def close(self) -> None:
        """Stop watching. A thread that waits for a drive ends when the command does."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.read()
            except Exception as error:
                # A thread that ends in silence would leave the last WAF standing.
                log.exception("NVMe drive behind %s", self.block)
                self._publish(NvmeSeen(waf=DeviceWaf(reason=f"unexpected {type(error).__name__}: {error}")))
            self._wake.wait(READ_EVERY_S if self._reader is not None else LOOK_AGAIN_S)
            self._wake.clear()

    def read(self) -> None:
        """Find out about the drive unless that was done recently, then read its counters once."""
        if self._reader is None or self._clock() - self._found_s > FIND_EVERY_S:
            try:
                self._find()
            except UserError as error:
                self._reader = self._groups = self._ops_log = None
                self._publish(NvmeSeen(waf=DeviceWaf(reason=str(error))))
                return
        self._move_ops()
        self._read()

    def _find(self) -> None:
        tool = self._make_tool()
        device = discover(tool, controller_of(self.block, self._sys), self._sys)
        offered = strongest(device)
        placement = str(offered.isolation)
        if offered.isolation is not Isolation.NONE:
            placement += f" by {offered.by}"
        self._emulated = device.controller.emulated
        self._publish(replace(self._seen, placement=placement, ops_refusal=""))
        self._found_s = self._clock()
        groups = {each.name: each.endurance_group for each in device.namespaces if each.name is not None}
        self._groups = groups
        self._reader = MediaReader(tool, device, groups.get(self.block), self._clock)
        self._ops_log = self._find_ops_log(tool, device.controller)

    def _find_ops_log(self, tool: NvmeTool, controller: NvmeController) -> DriveOpsLog | None:
        try:
            return DriveOpsLog.find(tool, controller, self._clock)
        except NvmeError as error:
            log.info("drive behind %s: whether it reports OPS is not known: %s", self.block, error)
            return None

    def _move_ops(self) -> None:
        while self._requests and self._ops_log is not None:
            asked = self._requests.popleft()
            try:
                self._ops_log.move(asked.source, asked.target, asked.blocks)
            except NvmeCommandError as error:
                if "opcode" in error.stderr.lower():
                    # Asked again after the next look at the drive: an operator may allow it meanwhile.
                    self._requests.clear()
                    self._publish(replace(self._seen, ops_refusal=str(error)))
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

    def _read(self) -> None:
        assert self._reader is not None  # noqa: S101 - `read` made it
        counters, problems = self._reader.read()
        for each in counters:
            kept = self._readings.setdefault(each.source, deque())
            kept.append(each)
            while kept[0].at_s < each.at_s - KEEP_S:
                kept.popleft()
        found = [waf_over(list(self._readings[each.source]), self._window_s) for each in counters]
        found += [DeviceWaf(source, reason=reason) for source, reason in problems.items()]
        waf = choose(found)
        scope = self._reader.scope.get(waf.source, "")
        waf = replace(waf, scope=scope, emulated=self._emulated)
        self._publish(replace(self._seen, waf=waf, ops=self._read_ops()))

    def _publish(self, seen: NvmeSeen) -> None:
        self._seen, self._seen_s = seen, self._clock()


# The NVMe drives behind managed block devices: each endurance group is asked once, for all in it.


class NvmeWatches:
    """Watches begin when the first namespace of a group is asked about, and end with the last."""

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
        """Watch the drive of a whole device; returns its key, or None if it is not an NVMe namespace."""
        block = (self._sys / "dev" / "block" / str(number)).resolve().name
        controllers = drive.controllers_of(self._sys, block)
        if not controllers:
            return None
        self._controllers[block] = controllers[0]
        self._users[block] += 1
        self._watch_of(block)
        return block

    def seen(self, block: str) -> NvmeSeen:
        """Latest data of the drive as it applies to this namespace; never waits."""
        return self._watch_of(block).seen

    def move_ops(self, block: str, requests: Iterable[OpsRequest]) -> None:
        """Ask the drive of this namespace for moves; never waits."""
        self._watch_of(block).move_ops(requests)

    def leave(self, block: str) -> None:
        """Stop reading `block`; drive-wide readings made through it move to a namespace that is left."""
        self._users[block] -= 1
        if self._users[block]:
            return
        controller = self._controllers.pop(block)
        alone = controller not in self._controllers.values()
        for watch in list(self._watches[controller]):
            if alone or watch.block == block:
                self._watches[controller].remove(watch)
                watch.close()

    def _watch_of(self, block: str) -> NvmeWatch:
        watches = self._watches.setdefault(self._controllers[block], [])
        # Until a drive has reported its groups, the only answer counts for all.
        for watch in sorted(watches, key=lambda each: each.block != block):
            if watch.covers(block) is not False:
                return watch
        made = self._make(block, self._sys, self._window_s)
        watches.append(made)
        made.start()
        return made
