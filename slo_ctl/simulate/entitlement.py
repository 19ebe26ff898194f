"""What every VM was due, and what it got: from the drive's own counters, not from what the daemon says.

A VM that wants more is due its share by weight of the pages that those who want more got together: minimums
first, maximums clipped. Device time or requests can be compared instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from slo_ctl.decide.entitlement import shares_of
from slo_ctl.model import Slo
from slo_ctl.simulate.result import Result, SloChange
from slo_ctl.simulate.scenario import DISTURBANCES

BLOCK_S = 10
"""What is judged is looked at in pieces of so many seconds."""
WANTS_FROM = 0.95
"""A VM with requests waiting for this share of the time wants more."""
_RESTS_UP_TO = 0.80
"""One with less does not; in between it may or may not."""
MINIMUMS_UP_TO = 0.95
"""Of all: the rest is divided by weight, whatever the minimums are."""
_S_PER_NS = 1e-9


class Measure(StrEnum):
    """What shares are of."""

    PAGES = "pages"
    """Host pages read and written."""
    DEVICE_TIME = "device_ns"
    """Time of dies and channels, GC included."""
    REQUESTS = "requests"
    """IOPS."""


@dataclass(frozen=True, slots=True)
class Due:
    """Over some seconds, by VM that wants more."""

    shares: dict[str, float]
    """What it is due of `of`."""
    got: dict[str, float]
    """The same as it was."""
    iops: dict[str, float]
    """Of all VMs."""
    wanting: dict[str, float]
    """Of all VMs: share of the time with requests waiting."""
    total: float
    """What the shares are of."""
    errors_of_all: dict[str, float]
    """As `error`, where everybody counts: whoever wants no more is due what it used, as long as that is not
    above its own share."""

    def error(self, vm: str) -> float:
        """What was missed, relative: -0.1 is a tenth less than due; 0 of a VM that wants no more."""
        due = self.shares.get(vm, 0.0)
        return self.got[vm] / due - 1 if due > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Calm:
    """Seconds in which the same VMs want more, and neither SLOs nor VMs change."""

    start_s: int
    end_s: int


class Ledger:
    """Answers for one run."""

    def __init__(self, run: Result, measure: Measure = Measure.PAGES) -> None:
        self.run = run
        self.measure = measure
        self._row = {vm: row for row, vm in enumerate(run.vms)}
        self._dues: dict[tuple[int, int], Due] = {}
        self._slo_changes: dict[str, list[SloChange]] = {}
        for change in run.slo_changes:
            self._slo_changes.setdefault(change.vm, []).append(change)
        dies = run.scenario.drive.record().geometry.dies
        self._saturates = {
            vm.name: vm.load.rate_iops is not None or vm.load.queue_depth >= dies for vm in run.scenario.vms
        }
        self._sums = {
            name: np.concatenate([np.zeros((len(run.vms), 1)), np.cumsum(run.of(name), axis=1)], axis=1)
            for name in ("requests", "pages", "device_ns", "queued_ns")
        }

    def sum(self, name: str, vm: str, start_s: int, end_s: int) -> float:
        """Of a counter over some seconds."""
        sums = self._sums[name][self._row[vm]]
        return float(sums[end_s] - sums[start_s])

    def total(self, name: str, start_s: int, end_s: int) -> float:
        """The same of all VMs."""
        return float((self._sums[name][:, end_s] - self._sums[name][:, start_s]).sum())

    def slo(self, vm: str, at_s: float) -> Slo:
        """In force at a moment."""
        found = Slo()
        for change in self._slo_changes.get(vm, ()):
            if change.at_s <= at_s:
                found = change.slo
        return found

    def wanting(self, vm: str, start_s: int, end_s: int) -> float:
        """Share of the time with requests of it waiting."""
        return self.sum("queued_ns", vm, start_s, end_s) * _S_PER_NS / (end_s - start_s)

    def wants_more(self, vm: str, start_s: int, end_s: int) -> bool | None:
        """Whether it would have taken more; None where that cannot be determined.

        With fewer requests at a time than there are dies a VM may be waiting for nobody but itself.
        """
        wanting = self.wanting(vm, start_s, end_s)
        if wanting >= WANTS_FROM:
            return True if self._saturates[vm] else None
        return False if wanting <= _RESTS_UP_TO else None

    def due(self, start_s: int, end_s: int) -> Due:
        """Over some seconds."""
        if (start_s, end_s) not in self._dues:
            self._dues[start_s, end_s] = self._due(start_s, end_s)
        return self._dues[start_s, end_s]

    def _due(self, start_s: int, end_s: int) -> Due:
        length_s = end_s - start_s
        iops = {vm: self.sum("requests", vm, start_s, end_s) / length_s for vm in self.run.vms}
        used = {vm: self.sum(self.measure, vm, start_s, end_s) for vm in self.run.vms}
        asking = [vm for vm in self.run.vms if self.wants_more(vm, start_s, end_s)]
        total = sum(used[vm] for vm in asking)
        slos = {vm: self._in_measure(self.slo(vm, start_s), used[vm] / length_s, iops[vm]) for vm in asking}
        return Due(
            shares=shares_of(slos, total / length_s),
            got={vm: used[vm] / total if total else 0.0 for vm in asking},
            iops=iops,
            wanting={vm: self.wanting(vm, start_s, end_s) for vm in self.run.vms},
            total=total,
            errors_of_all=self._errors_of_all(start_s, used, iops, length_s, asking),
        )

    def _errors_of_all(
        self,
        start_s: int,
        used: dict[str, float],
        iops: dict[str, float],
        length_s: int,
        asking: Collection[str],
    ) -> dict[str, float]:
        rates = {vm: each / length_s for vm, each in used.items() if each > 0}
        total = sum(rates.values())
        slos = {vm: self._in_measure(self.slo(vm, start_s), rate, iops[vm]) for vm, rate in rates.items()}
        for vm, rate in rates.items():
            if vm not in asking:
                most = min(rate, slos[vm].max_iops or rate)
                slos[vm] = replace(slos[vm], max_iops=most, min_iops=min(most, slos[vm].min_iops or 0.0))
        minimums = sum(slo.min_iops or 0.0 for slo in slos.values())
        if minimums > MINIMUMS_UP_TO * total:
            part = MINIMUMS_UP_TO * total / minimums
            slos = {vm: replace(slo, min_iops=part * (slo.min_iops or 0.0)) for vm, slo in slos.items()}
        shares = shares_of(slos, total)
        return {vm: rates[vm] / (share * total) - 1 for vm, share in shares.items() if share > 0}

    @staticmethod
    def _in_measure(slo: Slo, used: float, iops: float) -> Slo:
        """The SLO with its bounds as what they come to, by what a request of this VM takes."""
        each = used / iops if iops else 0.0
        return Slo(
            weight=slo.weight,
            min_iops=None if slo.min_iops is None or not each else slo.min_iops * each,
            max_iops=None if slo.max_iops is None or not each else slo.max_iops * each,
        )

    def calms(self) -> Iterator[Calm]:
        """Longest stretches without a change, in whole blocks."""
        changes = self.changes()
        start_s, before = 0, None
        end_s = 0
        for begin_s in range(0, self.run.seconds - BLOCK_S + 1, BLOCK_S):
            end_s = begin_s + BLOCK_S
            now = frozenset(vm for vm in self.run.vms if self.wants_more(vm, begin_s, end_s))
            eventful = any(begin_s <= at_s < end_s for at_s in changes)
            if now != before or eventful:
                if before is not None and begin_s > start_s:
                    yield Calm(start_s, begin_s)
                start_s = end_s if eventful else begin_s
            before = now
        if end_s > start_s:
            yield Calm(start_s, end_s)

    def changes(self) -> list[float]:
        """When anything happened, and when a disturbance was over."""
        found: list[float] = []
        for at_s, event in self.run.happened:
            found.append(at_s)
            if event.what in DISTURBANCES:
                found.append(at_s + event.lasts_s)
        return found

    def disturbed(self, start_s: float, end_s: float, after_s: float = 10.0) -> bool:
        """Whether the daemon could not do its work in some of these seconds, or shortly before."""
        return any(
            event.what in DISTURBANCES and at_s <= end_s and start_s <= at_s + event.lasts_s + after_s
            for at_s, event in self.run.happened
        )
