"""What suits a block device: its facts and its stored profile put together with what the SLOs need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slo_ctl.decide.device_settings import settings_of
from slo_ctl.decide.scheduler_choice import choose

if TYPE_CHECKING:
    from slo_ctl.decide.scheduler_choice import DeviceFacts, Needs, SchedulerChoice
    from slo_ctl.model import Setting
    from slo_ctl.serra.store import Found


@dataclass(frozen=True, slots=True)
class Suited:
    """A choice and what it was made from."""

    facts: DeviceFacts
    needs: Needs
    found: Found | None
    """The stored profile; one that is stale did not decide anything."""
    choice: SchedulerChoice

    @property
    def profiled(self) -> bool:
        """A valid profile decided."""
        return self.found is not None and not self.found.stale

    @property
    def settings(self) -> tuple[Setting, ...]:
        """What carries it out."""
        return settings_of(self.choice, self.facts)


def suited(facts: DeviceFacts, needs: Needs, found: Found | None, given: str | None = None) -> Suited:
    """The choice for a device; `given` is a scheduler that the operator wants."""
    valid = found.profile if found is not None and not found.stale else None
    choice = (
        choose(facts, needs, None, given=given)
        if valid is None
        else choose(facts, needs, valid.analysis(), valid.queue_depth, given)
    )
    return Suited(facts, needs, found, choice)
