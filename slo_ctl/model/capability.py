"""What a host's kernel can do for the I/O of cgroups, device by device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slo_ctl.model.host import DeviceNumber


@dataclass(frozen=True, slots=True)
class WeightScale:
    """The weights a mechanism takes: whole numbers, shares in proportion to them."""

    mechanism: str
    """`bfq`, `io.cost` or `cfq`."""
    knob: str
    """Name of the Knob: `weight`, or `cost_weight` for io.cost's."""
    low: int
    high: int


BFQ = WeightScale("bfq", "weight", 1, 1000)
CFQ = WeightScale("cfq", "weight", 10, 1000)
IO_COST = WeightScale("io.cost", "cost_weight", 1, 10_000)


@dataclass(frozen=True, slots=True)
class BlockCapability:
    """What can be done on one block device."""

    device: DeviceNumber
    name: str
    """The kernel's, such as `sda`; empty when it is not there."""
    weights: WeightScale | None
    """By what the device is shared in proportion to weights; None: by nothing."""
    limits: bool
    """IOPS and bytes can be limited."""
    problem: str = ""
    """Why there are no weights, and what would give them; empty otherwise."""
    latency: bool = False
    """A cgroup can have a latency target there, for which its neighbours are slowed down."""
    cautions: tuple[str, ...] = ()
    """What makes shares inexact there, one sentence each with what to do."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Of one host."""

    cgroup_version: int | None
    """None: no cgroup tree with block I/O."""
    devices: dict[DeviceNumber, BlockCapability] = field(default_factory=dict)
    systemd: bool = False
    """systemd runs and sets what cgroups of its units have: what is written past it, it may overwrite."""
