"""Replies of the daemon besides its status: the SLO of a VM, and the changes planned next."""

from __future__ import annotations

from dataclasses import dataclass

from slo_ctl.model.decision import Outcome
from slo_ctl.model.sample import Slo
from slo_ctl.model.slo import SloFields


@dataclass(frozen=True, slots=True)
class VmSlo:
    """The SLO of a VM, and who set it."""

    vm: str
    slo: Slo
    """The value in force."""
    slo_source: str
    vm_set: SloFields
    """Given by `slo-ctl vm set`, or by this API."""
    class_name: str | None = None
    """The value in force."""
    vm_set_class: str | None = None
    """Given as `vm_set`."""
    group_name: str | None = None
    """In force."""
    vm_set_group: str | None = None
    """Given as `vm_set`."""
    conflicts: tuple[str, ...] = ()
    """Where a stronger source overrides a weaker one."""
    notes: tuple[str, ...] = ()
    """Warnings, such as minimums that exceed what a device can do."""


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """Decision for one device as of now."""

    device: str
    policy: str
    decided: tuple[str, ...]
    """One sentence for each move of OPS, limit or weight that the policy would change."""
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Changes that the next epoch would make."""

    outcomes: tuple[Outcome, ...] = ()
    """Outcomes of all settings; those that would change are `planned`."""
    devices: tuple[DevicePlan, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Health:
    """Daemon health with its work."""

    pid: int
    program_version: str
    started_at: float
    epochs: int
    """Completed since the start."""
    missed_epochs: int
    """Left out because earlier ones took too long."""
    last_epoch_at: float | None
    """Seconds since 1970; None before the first."""
    config_problem: str
