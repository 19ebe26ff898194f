"""Statuses of the past for `slo-ctl top`: those it received, and before them those of the history."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING

from slo_ctl.base.numbers import sum_known
from slo_ctl.model.slo import Slo
from slo_ctl.model.status import HostStatus, Verdict, VmStatus
from slo_ctl.record.history_schema import RECORDED_FIELDS

if TYPE_CHECKING:
    from slo_ctl.model.status import DeviceStatus
    from slo_ctl.record.history_reader import Point, VmHistory

_HISTORY_REASON = "a mean of the history; SLO and backend are those of now"
MAX_ROWS = 100_000
"""VMs in all received statuses: 500 for three minutes. The history has the rest of the last hour."""
_MAX_RECEIVED = 3600
_MAX_BUCKETS = 360
"""Buckets of the history of the last hour: 10 s each."""


class Timeline:
    """Statuses of the last hour, the position of the one that is shown, and reads of the history.

    A status at a position is `offset` statuses before the latest one.
    """

    def __init__(self) -> None:
        self._received: deque[HostStatus] = deque(maxlen=_MAX_RECEIVED)
        self._recorded: list[HostStatus] = []
        """Statuses before the received ones, from the history."""
        self._offset = 0
        self._history_requested = False

    @property
    def latest(self) -> HostStatus | None:
        """The status received last."""
        return self._received[-1] if self._received else None

    @property
    def current(self) -> HostStatus | None:
        if self._offset < len(self._received):
            return self._received[-1 - self._offset]
        return self._recorded[len(self._received) - 1 - self._offset] if self._received else None

    def up_to_current(self, count: int) -> list[HostStatus]:
        """The current status and those before it, the earliest first, at most `count`."""
        end = self._length() - self._offset
        return list(islice(chain(self._recorded, self._received), max(0, end - count), end))

    @property
    def is_past(self) -> bool:
        """Whether the position is not at the latest status."""
        return self._offset > 0

    @property
    def age_s(self) -> float:
        """How long before the latest status the current one was."""
        latest, current = self.latest, self.current
        return latest.at - current.at if latest is not None and current is not None else 0.0

    def add(self, status: HostStatus) -> None:
        """Append a status; a position in the past stays at its time."""
        before = len(self._received)
        in_history = self._offset >= before
        self._received.append(status)
        while len(self._received) > 1 and len(self._received) * max(len(status.vms), 1) > MAX_ROWS:
            self._received.popleft()
        if self._offset:
            self._move_to(self._offset + (len(self._received) - before if in_history else 1))

    def move(self, step: int) -> HostStatus | None:
        """Go back by `step` statuses, or forward with a negative step.

        Returns the first received status when the history before it has to be read.
        """
        if not self._received:
            return None
        target = self._offset + step
        if self._offset < len(self._received) <= target and self._has_gap():
            # The statuses that were dropped meanwhile are in the history now.
            self._recorded, self._history_requested = [], False
        is_missing = target >= self._length() and not self._history_requested
        self._move_to(target)
        if not is_missing:
            return None
        self._history_requested = True
        return self._received[0]

    def add_recorded(self, statuses: list[HostStatus]) -> None:
        """Put statuses of the history before the received ones, and continue there from the first of these.

        An empty history is requested again by the next `move`.
        """
        self._recorded, self._history_requested = statuses, bool(statuses)
        if statuses and self._offset == len(self._received) - 1:
            self._offset += 1

    def return_to_latest(self) -> None:
        """Move to the latest status."""
        self._offset = 0

    def _length(self) -> int:
        return len(self._recorded) + len(self._received)

    def _move_to(self, offset: int) -> None:
        self._offset = max(0, min(offset, self._length() - 1))

    def _has_gap(self) -> bool:
        """Whether statuses are missing between the history and the received ones."""
        if not self._recorded:
            return False
        last = self._recorded[-1]
        return self._received[0].at - last.at > 2 * last.epoch_s


def read_past(read_history: Callable[[str, int], VmHistory], first: HostStatus) -> list[HostStatus]:
    """The statuses before `first`. `read_history` reads the history of a VM with at most so many points."""
    names = sorted({vm.vm for vm in first.vms if vm.device})
    points = min(_MAX_BUCKETS, MAX_ROWS // max(len(names), 1))
    statuses = past_statuses([read_history(name, points) for name in names], first)
    return [status for status in statuses if status.at + status.epoch_s <= first.at]


def past_statuses(histories: Iterable[VmHistory], latest: HostStatus) -> list[HostStatus]:
    """A status for each bucket of the histories, the earliest first.

    The history keeps what VMs got and were entitled to, and their verdicts. SLOs and what is known about
    devices are those of `latest`.
    """
    rows: defaultdict[float, list[VmStatus]] = defaultdict(list)
    bucket_s = 0.0
    now = {(vm.vm, vm.device): vm for vm in latest.vms}
    for history in histories:
        bucket_s = max(bucket_s, history.bucket_s)
        for point, verdict, reason in _points_with_verdict(history):
            row = now.get((history.vm, point.device)) or _row_without_slo(history.vm, point.device)
            rows[point.at].append(_past_row(row, point, verdict, reason))
    return [
        replace(
            latest,
            at=at,
            epoch_s=bucket_s,
            window_s=bucket_s,
            devices=tuple(_past_device(device, rows[at], bucket_s) for device in latest.devices),
            vms=tuple(sorted(rows[at], key=lambda row: (row.vm, row.device))),
            groups=(),
            notes=(),
        )
        for at in sorted(rows)
    ]


def _points_with_verdict(history: VmHistory) -> Iterator[tuple[Point, Verdict, str]]:
    """Points with the verdict at the end of each, and its reason; none before the first verdict."""
    for point in history.points:
        changes = [
            change
            for change in history.verdicts
            if change.device == point.device and change.at < point.at + history.bucket_s
        ]
        if changes:
            yield point, Verdict(changes[-1].verdict), changes[-1].reason


def _past_row(row: VmStatus, point: Point, verdict: Verdict, reason: str) -> VmStatus:
    growth = point.ops_blocks / row.ops_blocks if point.ops_blocks is not None and row.ops_blocks else None
    recorded = {name: getattr(point, name) for name in RECORDED_FIELDS}
    ops = {
        "ops_blocks": None if point.ops_blocks is None else round(point.ops_blocks),
        "ops_bytes": None if growth is None or row.ops_bytes is None else round(row.ops_bytes * growth),
        "ops_share": None if growth is None or row.ops_share is None else row.ops_share * growth,
    }
    return replace(row, verdict=verdict, reason=reason, unapplied=(), **recorded | ops)


def _past_device(device: DeviceStatus, rows: Iterable[VmStatus], bucket_s: float) -> DeviceStatus:
    iops = sum_known(row.iops for row in rows if row.device == device.name)
    reasons = (_HISTORY_REASON,)
    return replace(device, window_s=bucket_s, iops=iops, problem="", reasons=reasons, waf=None, moves=())


def _row_without_slo(vm: str, device: str) -> VmStatus:
    """A VM on a device that it no longer uses."""
    return VmStatus(vm, device, (), Slo(), "default", "", "none", Verdict.IDLE, "")
