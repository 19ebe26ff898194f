"""Entitlement and service of every VM, from the drive's own counters, not from the daemon's reports.

A VM that wants more is entitled to its share by weight of the pages that all such VMs got together: minimums
first, maximums clipped. Device time or requests can be compared instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from daemon_sim.result import Result, SloChange
from daemon_sim.scenario import DISTURBANCES
from slo_ctl.decide.entitlement import claim_of, entitle, shares_of
from slo_ctl.model.slo import Slo

BLOCK_S = 10
"""Length in seconds of the blocks that are judged."""
WANTS_FROM = 0.95
"""A VM with requests waiting for at least this share of the time wants more."""
_RESTS_UP_TO = 0.80
"""A VM with less does not want more; between the two it may or may not."""
_S_PER_NS = 1e-9


class Measure(StrEnum):
    """The quantity that shares divide."""

    PAGES = "pages"
    """Host pages read and written."""
    DEVICE_TIME = "device_ns"
    """Time of dies and channels, GC included."""
    REQUESTS = "requests"
    """IOPS."""


@dataclass(frozen=True, slots=True)
class Due:
    """Entitlement and service over a period, by VM that wants more."""

    shares: dict[str, float]
    """Entitlement of each VM, as a share of the measured quantity."""
    got: dict[str, float]
    """Share that each VM got."""
    iops: dict[str, float]
    """IOPS of all VMs."""
    wanting: dict[str, float]
    """Share of the time with requests waiting, of all VMs."""
    total: float
    """The total that the shares divide."""
    errors_of_all: dict[str, tuple[float, float]]
    """As `error`, for all VMs: one that wants no more is entitled to what it used, up to its own share.

    The least and the most, as VMs with few requests outstanding may want more or not.
    """

    def error(self, vm: str) -> float:
        """Relative deviation: -0.1 is a tenth less than the entitlement; 0 for a VM that wants no more."""
        due = self.shares.get(vm, 0.0)
        return self.got[vm] / due - 1 if due > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Calm:
    """A period in which the same VMs compete, and neither SLOs nor VMs change."""

    start_s: int
    end_s: int


class Ledger:
    """Entitlement and service in one run."""

    def __init__(self, run: Result, measure: Measure = Measure.PAGES) -> None:
        self.run = run
        self.measure = measure
        self._row = {vm: row for row, vm in enumerate(run.vms)}
        self._dues: dict[tuple[int, int], Due] = {}
        self._slo_changes: dict[str, list[SloChange]] = {}
        for change in run.slo_changes:
            self._slo_changes.setdefault(change.vm, []).append(change)
        drive = run.scenario.drive.record()
        dies = drive.drive.dies
        self._dies, self._channels = dies, drive.drive.channels
        self._transfer_ns = drive.drive.transfer_ns * run.scenario.drive.slowdown
        self._saturates = {
            vm.name: vm.load.rate_iops is not None or vm.load.queue_depth >= dies for vm in run.scenario.vms
        }
        self._sums = {
            name: np.concatenate([np.zeros((len(run.vms), 1)), np.cumsum(run.of(name), axis=1)], axis=1)
            for name in ("requests", "pages", "device_ns", "queued_ns")
        }

    def sum(self, name: str, vm: str, start_s: int, end_s: int) -> float:
        """Sum of a counter of a VM over a period."""
        sums = self._sums[name][self._row[vm]]
        return float(sums[end_s] - sums[start_s])

    def total(self, name: str, start_s: int, end_s: int) -> float:
        """Sum of a counter of all VMs over a period."""
        return float((self._sums[name][:, end_s] - self._sums[name][:, start_s]).sum())

    def slo(self, vm: str, at_s: float) -> Slo:
        """SLO of a VM in force at a moment."""
        slo = Slo()
        for change in self._slo_changes.get(vm, ()):
            if change.at_s <= at_s:
                slo = change.slo
        return slo

    def page_cost_ns(self, vm: str, start_s: int, end_s: int) -> tuple[float, float]:
        """Time that a page took of the dies, GC included, and of the channels."""
        pages = self.sum("pages", vm, start_s, end_s)
        each_ns = self.sum("device_ns", vm, start_s, end_s) / pages if pages else 0.0
        channel_ns = min(self._transfer_ns, each_ns)
        return each_ns - channel_ns, channel_ns

    def capacity_ns(self, length_s: int) -> tuple[float, float]:
        """Time of all dies and of all channels."""
        return self._dies * length_s / _S_PER_NS, self._channels * length_s / _S_PER_NS

    def utilisation(self, start_s: int, end_s: int) -> float:
        """Utilisation of the dies or of the channels, whichever is higher."""
        channel_ns = min(
            self.total("pages", start_s, end_s) * self._transfer_ns, self.total("device_ns", start_s, end_s)
        )
        die_ns = self.total("device_ns", start_s, end_s) - channel_ns
        dies_ns, channels_ns = self.capacity_ns(end_s - start_s)
        return max(die_ns / dies_ns, channel_ns / channels_ns)

    def wanting(self, vm: str, start_s: int, end_s: int) -> float:
        """Share of the time with requests of the VM waiting."""
        return self.sum("queued_ns", vm, start_s, end_s) * _S_PER_NS / (end_s - start_s)

    def wants_more(self, vm: str, start_s: int, end_s: int) -> bool | None:
        """Whether the VM would have used more; None if that cannot be determined.

        With fewer requests outstanding than dies a VM may wait only for itself.
        """
        wanting = self.wanting(vm, start_s, end_s)
        if wanting >= WANTS_FROM:
            return True if self._saturates[vm] else None
        return False if wanting <= _RESTS_UP_TO else None

    def _takes_part(self, vm: str, start_s: int, end_s: int) -> bool:
        """Whether the VM wants more, or has requests at all if it has few outstanding."""
        if self._saturates[vm]:
            return bool(self.wants_more(vm, start_s, end_s))
        return self.sum("requests", vm, start_s, end_s) > 0

    def due(self, start_s: int, end_s: int) -> Due:
        """Entitlement and service over a period."""
        if (start_s, end_s) not in self._dues:
            self._dues[start_s, end_s] = self._due(start_s, end_s)
        return self._dues[start_s, end_s]

    def _due(self, start_s: int, end_s: int) -> Due:
        length_s = end_s - start_s
        iops = {vm: self.sum("requests", vm, start_s, end_s) / length_s for vm in self.run.vms}
        used = {vm: self.sum(self.measure, vm, start_s, end_s) for vm in self.run.vms}
        asking = [vm for vm in self.run.vms if self.wants_more(vm, start_s, end_s)]
        total = sum(used[vm] for vm in asking)
        rates = {vm: amount / length_s for vm, amount in used.items()}
        return Due(
            shares=self._shares(start_s, rates, iops, asking),
            got={vm: used[vm] / total if total else 0.0 for vm in asking},
            iops=iops,
            wanting={vm: self.wanting(vm, start_s, end_s) for vm in self.run.vms},
            total=total,
            errors_of_all=self._errors_of_all(start_s, end_s, used, iops, asking),
        )

    def _shares(
        self, start_s: int, rates: dict[str, float], iops: dict[str, float], asking: Collection[str]
    ) -> dict[str, float]:
        """Entitlements of the VMs that want more, as shares of what they got.

        If minimums do not fit, a fixed part of what all VMs get is divided by weight, of which a VM that
        wants no more takes up to its share, too.
        """
        slos = {vm: self.in_measure(self.slo(vm, start_s), rates[vm], iops[vm]) for vm in rates}
        claims = {vm: claim_of(vm, slos[vm], rates[vm], 1.0, wants_more=vm in asking) for vm in rates}
        if not entitle([claims[vm] for vm in asking]).overcommitted:
            return shares_of({vm: slos[vm] for vm in asking}, sum(rates[vm] for vm in asking))
        due = entitle(list(claims.values())).rates
        total = sum(due[vm] for vm in asking)
        return {vm: due[vm] / total if total else 0.0 for vm in asking}

    def due_by_block(self, calm: Calm) -> Due:
        """As `due`, with the entitlements of each block of a calm period added up.

        The share that a minimum or maximum leaves to others depends on the drive's speed, which GC changes.
        """
        whole = self.due(calm.start_s, calm.end_s)
        if not whole.total:
            return whole
        amounts = dict.fromkeys(whole.shares, 0.0)
        for start_s in range(calm.start_s, calm.end_s, BLOCK_S):
            block = self.due(start_s, min(start_s + BLOCK_S, calm.end_s))
            for vm in amounts:
                amounts[vm] += block.shares.get(vm, 0.0) * block.total
        return replace(whole, shares={vm: each / whole.total for vm, each in amounts.items()})

    def _errors_of_all(
        self,
        start_s: int,
        end_s: int,
        used: dict[str, float],
        iops: dict[str, float],
        asking: Collection[str],
    ) -> dict[str, tuple[float, float]]:
        length_s = end_s - start_s
        rates = {vm: amount / length_s for vm, amount in used.items() if amount > 0 or vm in asking}
        unknown = [
            vm for vm in rates if not self._saturates[vm] and self.wanting(vm, start_s, end_s) >= WANTS_FROM
        ]
        some = self._errors(start_s, rates, iops, asking)
        more = self._errors(start_s, rates, iops, [*asking, *unknown])
        return {vm: (min(error, more[vm]), max(error, more[vm])) for vm, error in some.items() if vm in more}

    def _errors(
        self, start_s: int, rates: dict[str, float], iops: dict[str, float], asking: Collection[str]
    ) -> dict[str, float]:
        total = sum(rates.values())
        slos = {vm: self.in_measure(self.slo(vm, start_s), rate, iops[vm]) for vm, rate in rates.items()}
        for vm, rate in rates.items():
            if vm not in asking:
                most = min(rate, slos[vm].max_iops or rate)
                slos[vm] = replace(slos[vm], max_iops=most, min_iops=min(most, slos[vm].min_iops or 0.0))
        shares = shares_of(slos, total)
        return {vm: rates[vm] / (share * total) - 1 for vm, share in shares.items() if share * total > 0}

    @staticmethod
    def in_measure(slo: Slo, used: float, iops: float) -> Slo:
        """The SLO with its bounds converted to the measure, by the cost of a request of this VM."""
        cost = used / iops if iops else 0.0
        return Slo(
            weight=slo.weight,
            min_iops=None if slo.min_iops is None or not cost else slo.min_iops * cost,
            max_iops=None if slo.max_iops is None or not cost else slo.max_iops * cost,
        )

    def calms(self) -> Iterator[Calm]:
        """Longest periods without a change, in whole blocks."""
        changes = self.changes()
        start_s, before = 0, None
        end_s = 0
        for begin_s in range(0, self.run.seconds - BLOCK_S + 1, BLOCK_S):
            end_s = begin_s + BLOCK_S
            now = frozenset(vm for vm in self.run.vms if self._takes_part(vm, begin_s, end_s))
            eventful = any(begin_s <= at_s < end_s for at_s in changes)
            if now != before or eventful:
                if before is not None and begin_s > start_s:
                    yield Calm(start_s, begin_s)
                start_s = end_s if eventful else begin_s
            before = now
        if end_s > start_s:
            yield Calm(start_s, end_s)

    def changes(self) -> list[float]:
        """Times of all events, and of the ends of disturbances."""
        times_s: list[float] = []
        for at_s, event in self.run.happened:
            times_s.append(at_s)
            if event.kind in DISTURBANCES:
                times_s.append(at_s + event.lasts_s)
        return times_s

    def disturbed(self, start_s: float, end_s: float, after_s: float = 10.0) -> bool:
        """Whether a disturbance kept the daemon from its work in this period, or shortly before."""
        return any(
            event.kind in DISTURBANCES and at_s <= end_s and start_s <= at_s + event.lasts_s + after_s
            for at_s, event in self.run.happened
        )


_ENOUGH_PAGES = 200
"""Pages from which the cost of a page can be determined."""
_HALVINGS = 24


@dataclass(frozen=True, slots=True)
class _Claim:
    weight: float
    least: float
    most: float
    """Pages in a second."""
    cost_ns: tuple[float, float]
    """Cost of a page: dies, channels."""

    def at(self, level: float, highest_minimum: float) -> float:
        return min(max(level * self.weight, min(self.least, highest_minimum)), self.most)


def ideal_pages(with_daemon: Ledger, without: Ledger, start_s: int, end_s: int, around_s: int) -> float:
    """The pages that the fluid ideal (GPS) serves in a period, if shares are of pages.

    In each second a VM that wants more has its share by weight, within its minimum and maximum; any other VM
    asks for what it had in either run. A page takes dies and channels for as long as it did without the
    daemon, before any OPS was moved; and the scarcer of them is as busy as it was then. GC comes in bursts,
    and at other moments in the other run: both are those of the worst window of this length around then.
    """
    length_s = end_s - start_s
    first_s, last_s = max(0, start_s - around_s), min(without.run.seconds, end_s + around_s)
    windows = [(at_s, at_s + length_s) for at_s in range(first_s, last_s - length_s + 1)]
    busy = min((without.utilisation(*window) for window in windows), default=0.0)
    costs_ns: dict[str, tuple[float, float]] = {}
    for vm in with_daemon.run.vms:
        known = [window for window in windows if without.sum("pages", vm, *window) >= _ENOUGH_PAGES]
        costs = [without.page_cost_ns(vm, *window) for window in known]
        costs_ns[vm] = max(costs, key=sum, default=with_daemon.page_cost_ns(vm, start_s, end_s))
    total = 0.0
    for at_s in range(start_s, end_s):
        claims = [
            _claim(with_daemon, without, vm, at_s, cost_ns)
            for vm, cost_ns in costs_ns.items()
            if with_daemon.sum("pages", vm, at_s, at_s + 1) or without.sum("pages", vm, at_s, at_s + 1)
        ]
        total += _served(claims, busy, without.capacity_ns(1))
    return total


def _claim(with_daemon: Ledger, without: Ledger, vm: str, at_s: int, cost_ns: tuple[float, float]) -> _Claim:
    pages, alone = (run.sum("pages", vm, at_s, at_s + 1) for run in (with_daemon, without))
    slo = with_daemon.slo(vm, at_s)
    slo = with_daemon.in_measure(slo, pages, with_daemon.sum("requests", vm, at_s, at_s + 1))
    most = math.inf if with_daemon.wants_more(vm, at_s, at_s + 1) else max(pages, alone)
    most = min(most, math.inf if slo.max_iops is None else slo.max_iops)
    return _Claim(slo.weight, min(most, slo.min_iops or 0.0), most, cost_ns)


def _served(claims: Sequence[_Claim], busy: float, capacity_ns: tuple[float, float]) -> float:
    """Pages served in a second if no resource is used more than `busy`."""

    def takes(level: float, highest_minimum: float) -> float:
        return max(
            sum(claim.at(level, highest_minimum) * claim.cost_ns[resource] for claim in claims) / capacity
            for resource, capacity in enumerate(capacity_ns)
        )

    # Of minimums beyond the capacity of the drive the largest are cut.
    highest = _largest(lambda pages: takes(0.0, pages) <= busy)
    level = _largest(lambda level: takes(level, highest) <= busy)
    return sum(claim.at(level, highest) for claim in claims)


def _largest(fits: Callable[[float], bool]) -> float:
    """The largest value for which it `fits`, by bisection; it must fit for all smaller ones."""
    low, high = 0.0, 1e6
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
