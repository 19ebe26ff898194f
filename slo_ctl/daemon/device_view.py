"""What all kinds of managed devices have: a view for the status, and problems."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace

from slo_ctl.base.errors import ObserveGone
from slo_ctl.base.numbers import sum_known
from slo_ctl.decide.verdict import Delivered
from slo_ctl.model.sample import VmSample
from slo_ctl.model.status import DeviceStatus

log = logging.getLogger("slo_ctl.daemon")


_MAX_LOGGED = 200
"""Unexpected errors that are not logged again; their texts may have names and numbers in them."""


class Problems:
    """Problems of devices in one epoch. A problem of one device does not affect others."""

    def __init__(self) -> None:
        self.by_device: dict[str, str] = {}
        self._logged: deque[str] = deque(maxlen=_MAX_LOGGED)

    def clear(self) -> None:
        """Begin a new epoch."""
        self.by_device = {}

    def guard(self, device: str, action: Callable[[], None]) -> None:
        """Run an action for a device. An exception becomes its problem; a traceback is logged once."""
        try:
            action()
        except ObserveGone as gone:
            self.by_device[device] = gone.reason
        except Exception as error:
            problem = f"unexpected {type(error).__name__}: {error}"
            if problem not in self._logged:
                self._logged.append(problem)
                log.exception("device %s", device)
            self.by_device[device] = problem


@dataclass(frozen=True, slots=True)
class DeviceView(DeviceStatus):
    """Status of a device, with the work delivered to each VM and counters for metrics."""

    moved_s: float | None = None
    """Die time of moves of OPS since the device was served; None: there are none."""
    time_scale: float = 1.0
    """Real seconds per second of the rates."""
    moved_blocks: int | None = None
    """OPS blocks moved since the device was served; None: unknown."""
    vms: dict[str, Delivered] = field(default_factory=dict)

    def status(self, window_s: float) -> DeviceStatus:
        """The published part."""
        capacity = self.estimated_iops if self.capacity_iops is None else self.capacity_iops
        values = {attribute.name: getattr(self, attribute.name) for attribute in fields(DeviceStatus)}
        values |= {
            "window_s": window_s,
            "overcommitted": capacity is not None and self.sum_min_iops > capacity,
        }
        return DeviceStatus(**values)


def total_iops(windows: Iterable[VmSample]) -> float | None:
    """IOPS of all streams of a device; None if all are unknown."""
    return sum_known(window.iops for window in windows)


def view_or_problem(name: str, kind: str, make: Callable[[], DeviceView], problems: Problems) -> DeviceView:
    """The view that `make` returns, with the device's problem; an empty view if it fails."""
    views: list[DeviceView] = []
    problems.guard(name, lambda: views.append(make()))
    view = views[0] if views else DeviceView(name, kind, "", "", 0.0)
    return replace(view, problem=problems.by_device.get(name, ""))
