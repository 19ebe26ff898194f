"""Interface between API and daemon. Every method may be called by any thread, and none waits for an epoch
longer than a moment unless it says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Protocol

from slo_ctl.base.errors import UserError
from slo_ctl.model import HostStatus
from slo_ctl.model.plan import Health, Plan, VmSlo
from slo_ctl.model.slo import SloUpdate
from slo_ctl.record.history_reader import VmHistory


class RefusalError(UserError):
    """A request that is not granted, with the HTTP status that says of what kind it is."""

    def __init__(self, message: str, hint: str = "", status: int = HTTPStatus.UNPROCESSABLE_ENTITY) -> None:
        super().__init__(message, hint)
        self.status = status


class Controller(Protocol):
    """The daemon, as far as the API sees it. Refusals are UserErrors, best a `RefusalError`."""

    def status(self) -> HostStatus | None:
        """Status of the last epoch; None before the first."""

    def health(self) -> Health:
        """Whether it gets on."""

    def slo(self, vm: str) -> VmSlo:
        """The SLO in force."""

    def change_slos(
        self,
        vms: Sequence[str],
        change: SloUpdate,
        *,
        user: str = "",
        force: bool = False,
        dry_run: bool = False,
    ) -> tuple[VmSlo, ...]:
        """Change the SLOs of all these VMs or, when any is refused, of none; in force from the next epoch on.

        Without `force` a VM that is not on the host, and minimums that a device cannot keep, are refused.
        `dry_run` only checks. `user` asked for it. The SLOs afterwards, in the order of `vms`.
        """

    def plan(self) -> Plan:
        """Changes that the next epoch would make. Waits for the present one."""

    def history(self, vm: str, since: float | None, until: float | None, limit: int) -> VmHistory:
        """The past of a VM. Raises HistoryError as well."""

    def reload(self) -> str:
        """Reload the configuration; why it stays as it was, or nothing. Waits for the present epoch."""

    def announce(self, xml: str) -> tuple[str, bool]:
        """A domain that libvirt is about to start: its name, and whether its SLO is in force by now, as far
        as that can be before it runs. Waits for less than a second.
        """

    def metrics(self) -> bytes:
        """Metrics in Prometheus's text format."""
