"""What every actuator can do: read a knob, write it, and say what a value becomes there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from slo_ctl.model import Knob, Lever


class ActError(Exception):
    """A knob cannot be read or written: why, and what to do about it.

    `gone` means that the object which had the knob is no more (a cgroup, a VM, a disk), so that nothing
    is left to give back. A daemon that does not answer is not gone: its objects keep their values.
    """

    def __init__(self, reason: str, hint: str = "", *, gone: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.gone = gone

    def __str__(self) -> str:
        return f"{self.reason} ({self.hint})" if self.hint else self.reason


Value = TypeVar("Value")


class Actuator(Protocol[Value]):
    """A means of setting knobs, whose values are of one type; with `SettingValue`, of any.

    Every method raises ActError, and touches nothing but its knob.
    """

    @property
    def levers(self) -> frozenset[Lever]:
        """The levers whose knobs it may own."""
        ...

    def owns(self, knob: Knob) -> bool:
        """Whether this is the actuator for that knob; asked only for knobs of its levers."""
        ...

    def read(self, knob: Knob) -> Value:
        """The value in force. None: no limit, or no weight of its own."""
        ...

    def write(self, knob: Knob, value: Value) -> None:
        """Set a value that `normalise` returned, or one that `read` did."""
        ...

    def normalise(self, knob: Knob, value: Value) -> Value:
        """What will be read after a value was written: rounded and clipped as the mechanism does."""
        ...
