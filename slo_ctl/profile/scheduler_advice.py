"""Advice on the scheduler of a block device, from its facts, its stored profile and the SLOs."""

from __future__ import annotations

from dataclasses import dataclass

from slo_ctl.decide.scheduler import DeviceFacts, Needs, SchedulerChoice, choose, settings_of
from slo_ctl.model.setting import Setting
from slo_ctl.profile.store import Found


@dataclass(frozen=True, slots=True)
class SchedulerAdvice:
    """A scheduler and the facts from which it was chosen."""

    facts: DeviceFacts
    needs: Needs
    found: Found | None
    """The stored profile, not used if it is stale; None without one."""
    choice: SchedulerChoice

    @property
    def profiled(self) -> bool:
        """Whether a valid profile was used."""
        return self.found is not None and not self.found.stale

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Settings that apply the choice."""
        return settings_of(self.choice, self.facts)


def advise_scheduler(
    facts: DeviceFacts, needs: Needs, found: Found | None, given: str | None = None
) -> SchedulerAdvice:
    """Choose a scheduler for a device; `given`: a scheduler that the operator chose."""
    valid = found.record if found is not None and not found.stale else None
    choice = (
        choose(facts, needs, None, given=given)
        if valid is None
        else choose(facts, needs, valid.analysis(), valid.queue_depth, given)
    )
    return SchedulerAdvice(facts, needs, found, choice)
