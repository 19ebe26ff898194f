"""What is new of an epoch is logged, once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from slo_ctl.daemon.reasons import Reasons
from slo_ctl.daemon.told import outcome_line
from slo_ctl.model import OutcomeState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slo_ctl.model import Outcome

log = logging.getLogger("slo_ctl.daemon")

REMEMBERED = 200
"""Sentences, where devices or VMs may be many."""


class News:
    """Remembers what was said."""

    def __init__(self) -> None:
        self._said = Reasons(REMEMBERED)
        self._reasons: dict[str, Reasons] = {}

    def wrong(self, problems: Mapping[str, str], outcomes: Iterable[Outcome]) -> None:
        """Problems by device, and settings that did not take; and which of them are over."""
        told = [f"device {name}: {problem}" for name, problem in problems.items()]
        told += [outcome_line(each) for each in outcomes if each.state is OutcomeState.UNAPPLIED]
        for line in self._said.add(told):
            log.warning("%s", line)
        for line in self._said.ended:
            log.info("over: %s", line)

    def decided(self, device: str, reasons: Iterable[str], kept: int | None = None) -> None:
        """What was decided of a device, and why; `kept` of them are known as told of late."""
        known = self._reasons.setdefault(device, Reasons() if kept is None else Reasons(kept))
        for reason in known.add(reasons):
            log.info("device %s: %s", device, reason)

    def lately(self, device: str) -> tuple[str, ...]:
        """What was decided of a device of late."""
        reasons = self._reasons.get(device)
        return reasons.lately if reasons is not None else ()
