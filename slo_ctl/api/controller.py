"""What the API needs of the daemon. Every method may be called by any thread, and none waits for an epoch
longer than a moment unless it says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Collection

    from slo_ctl.model import HostStatus, Outcome, Slo
    from slo_ctl.promises import SloFields
    from slo_ctl.record.history_reader import VmHistory


class RefusalError(UserError):
    """A request that is not granted, with the HTTP status that says of what kind it is."""

    def __init__(self, message: str, hint: str = "", status: int = HTTPStatus.UNPROCESSABLE_ENTITY) -> None:
        super().__init__(message, hint)
        self.status = status


@dataclass(frozen=True, slots=True)
class Promised:
    """What a VM is promised, and by whom."""

    vm: str
    slo: Slo
    """In force."""
    slo_source: str
    vm_set: SloFields
    """Given by `slo-ctl vm set`, or by this API."""
    conflicts: tuple[str, ...] = ()
    """Where a stronger source overrides a weaker one."""
    notes: tuple[str, ...] = ()
    """What is to be minded, such as minimums that exceed what a device can do."""


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """What would be decided for one device now."""

    device: str
    policy: str
    decided: tuple[str, ...]
    """One sentence for each move of OPS, limit or weight that the policy would change."""
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next epoch would change."""

    outcomes: tuple[Outcome, ...] = ()
    """Of every setting wanted; those that would change are `planned`."""
    devices: tuple[DevicePlan, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the daemon gets on with its work."""

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


class Controller(Protocol):
    """The daemon, as far as the API sees it. Refusals are UserErrors, best a `RefusalError`."""

    def status(self) -> HostStatus | None:
        """As of the last epoch; None before the first."""

    def health(self) -> Health:
        """Whether it gets on."""

    def promised(self, vm: str) -> Promised:
        """The SLO in force."""

    def set_slo(self, vm: str, fields: SloFields, *, force: bool) -> Promised:
        """Promise these fields besides those there are; in force from the next epoch on.

        Without `force` a VM that is not on the host, and minimums that a device cannot keep, are refused.
        """

    def unset_slo(self, vm: str, names: Collection[str] | None) -> Promised:
        """Take fields back that were promised so, None all of them; in force from the next epoch on."""

    def plan(self) -> Plan:
        """What the next epoch would change. Waits for the present one."""

    def history(self, vm: str, since: float | None, until: float | None, limit: int) -> VmHistory:
        """The past of a VM. Raises HistoryError as well."""

    def reload(self) -> str:
        """Read the configuration anew; why it stays as it was, or nothing. Waits for the present epoch."""

    def metrics(self) -> bytes:
        """In Prometheus's text format."""
