"""Which verdicts have changed since the epoch before."""

from __future__ import annotations

from dataclasses import dataclass

from slo_ctl.model import DEGRADED, HostStatus, Verdict


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """A VM's verdict on a device is another one now."""

    vm: str
    device: str
    previous: Verdict | None
    """None for a VM that was not there in the epoch before."""
    verdict: Verdict
    reason: str

    @property
    def is_degraded(self) -> bool:
        """The SLO is not kept any more."""
        return self.verdict in DEGRADED

    @property
    def was_degraded(self) -> bool:
        """Whether the SLO was not kept before."""
        return self.previous in DEGRADED


class VerdictChanges:
    """Remembers the verdicts of the epoch before."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], Verdict] = {}

    def of(self, status: HostStatus) -> list[VerdictChange]:
        """Changes of verdicts. The first verdict of a VM is a change only if its SLO is not kept."""
        before = self._before
        self._before = {(row.vm, row.device): row.verdict for row in status.vms}
        return [
            VerdictChange(row.vm, row.device, previous, row.verdict, row.reason)
            for row in status.vms
            if (previous := before.get((row.vm, row.device))) != row.verdict
            and (previous is not None or row.verdict in DEGRADED)
        ]
