"""Knobs in memory that can fail like real ones."""

from __future__ import annotations

from dataclasses import replace

from slo_ctl.act.keeper import Actuator
from slo_ctl.model.setting import ActError, Knob, Lever


class Crash(BaseException):
    """Simulates SIGKILL for the code under test."""


class MemoryActuator(Actuator[float | None]):
    """Weights are integers of 1..1000, limits are integers; counts the writes."""

    levers = frozenset({Lever.CGROUP_WEIGHT, Lever.CGROUP_LIMIT})

    def __init__(self, values: dict[Knob, float | None]) -> None:
        self.values = values
        self.identities: dict[str, str] = {}
        """The value of each knob."""
        self.written: list[Knob] = []
        self.reads = 0
        self.crash_in: int | None = None
        """Writes until a crash; an odd number crashes after the write, an even one before it."""
        self.deaf: set[Knob] = set()
        self.broken: dict[Knob, ActError] = {}
        self.broken_writes: dict[Knob, ActError] = {}

    def identity(self, knob: Knob) -> str:
        return self.identities.get(knob.place, "")

    def renamed(self, knob: Knob, identity: str) -> Knob | None:
        place = next((place for place, found in self.identities.items() if found == identity), None)
        return None if place is None else replace(knob, place=place)

    def owns(self, knob: Knob) -> bool:
        return knob.lever in self.levers and not knob.place.startswith("/elsewhere")

    def read(self, knob: Knob) -> float | None:
        self.reads += 1
        if knob in self.broken:
            raise self.broken[knob]
        if knob not in self.values:
            raise ActError(f"{knob.place} no longer exists", target_removed=True)
        return self.values[knob]

    def write(self, knob: Knob, value: float | None) -> None:
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in < 0:
                if self.crash_in % 2:
                    self.values[knob] = value
                raise Crash
        self.written.append(knob)
        for broken in (self.broken, self.broken_writes):
            if knob in broken:
                raise broken[knob]
        if knob not in self.deaf:
            self.values[knob] = value

    def normalise(self, knob: Knob, value: float | None) -> float | None:
        if knob.lever is Lever.CGROUP_WEIGHT:
            return 100.0 if value is None else float(min(1000, max(1, round(value))))
        return None if value is None else float(max(1, int(value)))
