"""What the status needs of a managed device, whatever its kind."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from slo_ctl.daemon.problems import Problems
    from slo_ctl.model import DeviceWaf, MoveStatus, ShareBy
    from slo_ctl.observe.window import StreamWindow


@dataclass(frozen=True, slots=True)
class VmView:
    """One VM on one device."""

    windows: tuple[StreamWindow, ...]
    """One for each of its streams there; none where nothing is known at the moment."""
    disks: tuple[str, ...] = ()
    wants_more: bool = True
    busy: bool | None = None
    """It had requests outstanding nearly all the time; None: as `wants_more`."""
    share: float | None = None
    """Of what the device delivers, in the unit of shares; None: of the IOPS."""
    settling: str = ""
    """Why shares are not yet judged; empty when they are."""
    guessed: bool = False
    """Nobody tells whether it would have taken more: by how busy the device was."""
    target_share: float | None = None
    target_iops: float | None = None
    drive_iops: float | None = None
    """On all namespaces of the drive, of a VM that uses several; a minimum and a share are of these."""
    no_mechanism: str = ""
    """Why nothing there can keep what was promised."""
    aside: str = ""
    """What else is done about it, such as holding others back."""


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One device."""

    name: str
    kind: str
    """`emulated` or `block`."""
    backend: str
    policy: str
    total_iops: float | None = None
    """Of all streams, those of nobody known included."""
    drive_iops: float | None = None
    """The same of its whole drive, where shares are of that; None: they are of the device."""
    capacity_iops: float | None = None
    sum_min_iops: float = 0.0
    problem: str = ""
    reasons: tuple[str, ...] = ()
    waf: DeviceWaf | None = None
    placement: str = ""
    """The strongest that the drive offers; empty when not known."""
    share_tolerance: float = 0.10
    """Of a target share: what may be missed there."""
    share_by: ShareBy | None = None
    """The unit of shares; None: requests, where shares are judged at all."""
    move_budget: float | None = None
    moves: tuple[MoveStatus, ...] = ()
    vms: dict[str, VmView] = field(default_factory=dict)

    @property
    def overcommitted(self) -> bool:
        """The minimums exceed what the device can do, as far as that is known."""
        return self.capacity_iops is not None and self.sum_min_iops > self.capacity_iops


def total_iops(windows: list[StreamWindow]) -> float | None:
    """Of all streams of a device; None when none is known."""
    known = [window.iops for window in windows if window.iops is not None]
    return sum(known) if known else None


def guarded_view(name: str, kind: str, make: Callable[[], DeviceView], problems: Problems) -> DeviceView:
    """What `make` says of a device, with its problem; an empty view where even that went wrong."""
    made: list[DeviceView] = []
    problems.guarded(name, lambda: made.append(make()))
    problem = problems.of.get(name, "")
    return replace(made[0], problem=problem) if made else DeviceView(name, kind, "", "", problem=problem)
