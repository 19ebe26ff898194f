"""What a master and its nodes tell each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from slo_ctl.serra.measurement import WHOLE, Part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slo_ctl.serra.identity import Identity
    from slo_ctl.serra.measurement import Access, Direction, Measurement
    from slo_ctl.serra.points import Interval
    from slo_ctl.serra.profile import Conditioning

Node = int
"""Nodes are numbered from 0, which has the device that the profile is of."""


@dataclass(frozen=True, slots=True)
class Work:
    """Tests of one size that one node does one after the other."""

    size_bytes: int
    repetition: int
    accesses: tuple[Access, ...]
    limits_s: tuple[float | None, ...]
    """The longest that each test may take."""
    part: Part = WHOLE
    """The same part of every test: sequential and random times stay a pair's."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A node has opened its target and waits for work."""

    node: Node
    identity: Identity
    span_bytes: int
    intervals: tuple[Interval, ...]
    sizes_bytes: tuple[int, ...]
    directions: tuple[Direction, ...]
    conditioning: Conditioning


@dataclass(frozen=True, slots=True)
class Noted:
    """A node has something to say."""

    node: Node
    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """A node has done its work, and waits for more."""

    node: Node
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """A node does not go on."""

    node: Node
    reason: str
    hint: str = ""
    """What to do about it, where the node could tell."""


Event = Ready | Noted | Done | Lost


class Transport(Protocol):
    """The way to some nodes, each of which has one Work at a time."""

    @property
    def names(self) -> Sequence[str]:
        """What the nodes are called, by number."""

    def give(self, node: Node, work: Work) -> None:
        """Have a node do something; when it cannot be reached, `next_event` says so."""

    def dismiss(self, node: Node) -> None:
        """A node gets no more work, and nothing more is heard of it."""

    def next_event(self, timeout_s: float) -> Event | None:
        """What a node says next; None when none has said anything for `timeout_s`."""

    def now_s(self) -> float:
        """The clock that work passes on, s."""
