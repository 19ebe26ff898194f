"""Replies of the daemon besides the status: the SLO of a VM, planned changes, health."""

from __future__ import annotations

from dataclasses import dataclass, field

from slo_ctl.model.setting import Outcome
from slo_ctl.model.slo import ResolvedSlo, SloFields


@dataclass(frozen=True, slots=True, kw_only=True)
class VmSlo(ResolvedSlo):
    """The SLO of a VM and its sources."""

    vm: str
    vm_set: SloFields = field(default_factory=dict)
    """Fields set by `slo-ctl vm set` or the API."""
    vm_set_class: str | None = None
    """Class set by `slo-ctl vm set` or the API; None: none."""
    vm_set_group: str | None = None
    """Group set by `slo-ctl vm set` or the API; None: none."""
    notes: tuple[str, ...] = ()
    """Warnings, such as minimums that exceed what a device can do."""


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """Present decision for one device."""

    device: str
    policy: str
    decided: tuple[str, ...]
    """One sentence for each move of OPS, limit or weight that the policy would change."""
    reasons: tuple[str, ...]
    has_ops: bool = True
    """Whether it has OPS that its policy could move."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Changes that the next epoch would make."""

    outcomes: tuple[Outcome, ...] = ()
    """Outcomes of all settings; those that would change are `planned`."""
    devices: tuple[DevicePlan, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Health:
    """Health of the daemon."""

    pid: int
    program_version: str
    started_at: float
    epochs: int
    """Completed epochs since the start."""
    missed_epochs: int
    """Epochs skipped because earlier ones took too long."""
    last_epoch_at: float | None
    """Seconds since 1970; None before the first epoch."""
    config_problem: str
