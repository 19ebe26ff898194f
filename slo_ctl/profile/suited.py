"""What suits a block device: its facts and its stored profile put together with what the SLOs need."""

from __future__ import annotations

from dataclasses import dataclass

from slo_ctl.decide.scheduler import DeviceFacts, Needs, SchedulerChoice, choose, settings_of
from slo_ctl.model import Setting
from slo_ctl.profile.store import Found


@dataclass(frozen=True, slots=True)
class Suited:
    """A choice and what it was made from."""

    facts: DeviceFacts
    needs: Needs
    found: Found | None
    """The stored profile; one that is stale did not decide anything."""
    choice: SchedulerChoice
    settings: tuple[Setting, ...]
    """Those that carry the choice out."""

    @property
    def profiled(self) -> bool:
        """A valid profile decided."""
        return self.found is not None and not self.found.stale


def suited(facts: DeviceFacts, needs: Needs, found: Found | None, given: str | None = None) -> Suited:
    """The choice for a device; `given` is a scheduler that the operator wants."""
    valid = found.record if found is not None and not found.stale else None
    choice = (
        choose(facts, needs, None, given=given)
        if valid is None
        else choose(facts, needs, valid.analysis(), valid.queue_depth, given)
    )
    return Suited(facts, needs, found, choice, settings_of(choice, facts))
