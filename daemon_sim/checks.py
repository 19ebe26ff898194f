"""Properties that every simulation must keep, whatever its events.

Each check is pure: results in, violations out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from daemon_sim.entitlement import BLOCK_S, WANTS_FROM, Calm, Ledger, Measure, ideal_pages
from daemon_sim.result import Epoch, Result
from daemon_sim.scenario import EventKind
from slo_ctl.config.settings import DEFAULTS
from slo_ctl.decide.verdict import SHARE_TOLERANCE
from slo_ctl.model.status import HostStatus, Verdict, VmStatus

SERVED_WINDOW_S = 10
SERVED_AROUND_S = 20
SERVED_FROM = 0.90
"""Pages served in any such window, as a share of those served without the daemon."""
AS_BUSY_FROM = 0.95
"""Busy die time, as a share of that without the daemon."""
_FEW_PAGES = 500
"""Windows with fewer pages are too short of requests to be judged."""
SETTLED_AFTER_S = 60
"""Entitlements hold from this many seconds after a change."""
ENTITLED_WINDOW_S = 60
ENTITLED_WITHIN = 0.05
COSTS_NOBODY = 0.01
LIMIT_BURST_S = 1.0
"""A limit lets a VM make up for this much time in which it asked for less: LIMIT_BURST_NS in
`ftl_emul/core/src/engine/throttle.rs`.
"""
LONG_RUN_S = 300
LONG_RUN_WITHIN = 0.02
INSUFFICIENT_FROM = 0.05
"""Tolerance: a VM that misses less of its entitlement may not be reported as insufficient."""
OK_UP_TO = 0.15
"""A VM that misses more may not be reported as ok: the verdict's tolerance, and what two ways of counting may
differ.
"""
_FALSE_FOR_EPOCHS = 3
"""A verdict may be wrong for fewer epochs: it may be of a window that began a moment earlier."""
BUDGET_WINDOW_S = 10
"""The budget of moves holds over any period of this length."""
BUSY_FROM = 0.999
"""Share of a second with requests outstanding from which the budget of moves holds in it."""
CALM_AFTER_S = 120
"""Limits, weights and moves have settled this many seconds after a change."""
LIMIT_CHANGES_PER_MINUTE = 1.0
"""Changes of a limit, and turns of a weight."""
P99_LIMIT_CHANGES_PER_MINUTE = 4.0
"""The same while others are limited for a p99: it is measured every ten seconds, and a step needs one or two
measurements, so that finding the limits takes minutes.
"""
P99_LIMITED_S = 180
"""Longest time in which a VM may miss its p99 while others are limited for it."""
SAME_LIMIT = 0.02
"""Changes of a limit up to this part of it do not count."""
SAME_WEIGHT = SHARE_TOLERANCE
"""A weight has settled if it stays this near to the middle of its swings: a share that is as near to its
target is met, in a window of a few seconds."""
_TURN = (1.0 + SAME_WEIGHT) / (1.0 - SAME_WEIGHT)
"""A smaller factor between two weights is no rise or fall."""
HOSTILE_GAIN = 0.05
STOP_WITHIN_S = 3.0
"""Longest clean stop; afterwards the drive moves OPS back by itself."""
_START_S = 60
"""The gain of hostile VMs is judged from this second on."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A property that did not hold."""

    check: str
    at_s: float
    vm: str
    """Name of the VM; empty: the whole drive."""
    text: str

    def __str__(self) -> str:
        who = f" {self.vm}" if self.vm else ""
        return f"{self.check} at {self.at_s:.0f} s:{who} {self.text}"


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of one scenario that its checks compare."""

    daemon: Ledger
    without: Ledger | None = None
    """The same run without the daemon."""
    honest: Ledger | None = None
    """The same run without hostile VMs; None if there are none."""


def work_is_conserved(runs: Runs) -> Iterator[Violation]:
    """Pages served in any 10 s are at least 90 % of those without the daemon, or of the fluid ideal.

    The ideal counts where status reports a minimum, a maximum, or that pages of a VM cost more than others.
    """
    if runs.without is None:
        return
    with_daemon, without = runs.daemon, runs.without
    worst: dict[int, float] = {}
    starts = range(with_daemon.run.seconds - SERVED_WINDOW_S + 1)
    alone = [without.total("pages", start_s, start_s + SERVED_WINDOW_S) for start_s in starts]
    for start_s in starts:
        end_s = start_s + SERVED_WINDOW_S
        # GC comes in bursts, at other moments in the other run: take the least of the windows around this
        # one.
        could = min(alone[max(0, start_s - SERVED_AROUND_S) : start_s + SERVED_AROUND_S + 1])
        served = with_daemon.total("pages", start_s, end_s)
        # Shares of pages may need more of the drive's time for fewer pages: then it is as busy as before.
        alone_ns = without.total("device_ns", start_s, end_s)
        idle = _busy_ns(with_daemon, alone_ns, start_s, end_s) < AS_BUSY_FROM * alone_ns
        if could < _FEW_PAGES or served >= SERVED_FROM * could or not idle:
            continue
        if _is_reported(with_daemon, start_s, end_s):
            continue
        if _status_says(with_daemon, start_s, end_s, _says_what_the_ideal_counts):
            could = min(could, ideal_pages(with_daemon, without, start_s, end_s, SERVED_AROUND_S))
        if served < SERVED_FROM * could:
            worst[start_s] = served / could
    for first_s, last_s, parts in _stretches(worst):
        text = f"{min(parts):.0%} of the pages that are possible, until {last_s + SERVED_WINDOW_S} s"
        yield Violation("conserved", first_s, "", text)


def _busy_ns(ledger: Ledger, alone_ns: float, start_s: int, end_s: int) -> float:
    """Device time of requests, and of moves of OPS as far as they may take it from requests.

    `alone_ns`: device time of requests without the daemon.
    """
    moves_ns = float(ledger.run.moves_ns[start_s:end_s].sum())
    return ledger.total("device_ns", start_s, end_s) + min(moves_ns, DEFAULTS.daemon.move_budget * alone_ns)


def the_drive_is_as_busy(runs: Runs) -> Iterator[Violation]:
    """While requests wait, dies and channels are at most 5 % less busy than without the daemon.

    Requests that wait for a limit, and not for the drive, do not count; moves of OPS count as work.
    """
    if runs.without is None:
        return
    with_daemon, without = runs.daemon, runs.without
    waits = with_daemon.run.of("queued_ns").max(axis=0, initial=0.0) >= 1e9 * WANTS_FROM
    calm = np.concatenate([[0], np.cumsum(~waits)])
    starts = range(with_daemon.run.seconds - SERVED_WINDOW_S + 1)
    alone = [without.total("device_ns", start_s, start_s + SERVED_WINDOW_S) for start_s in starts]
    worst: dict[int, float] = {}
    for start_s in starts:
        end_s = start_s + SERVED_WINDOW_S
        if calm[end_s] > calm[start_s]:
            continue
        could = min(alone[max(0, start_s - SERVED_AROUND_S) : start_s + SERVED_AROUND_S + 1])
        busy = _busy_ns(with_daemon, could, start_s, end_s)
        if busy < AS_BUSY_FROM * could and not _is_reported(with_daemon, start_s, end_s):
            worst[start_s] = busy / could
    for first_s, last_s, parts in _stretches(worst):
        text = f"{min(parts):.0%} of the device time without the daemon, until {last_s + SERVED_WINDOW_S} s"
        yield Violation("busy", first_s, "", text)


def _is_reported(ledger: Ledger, start_s: float, end_s: float) -> bool:
    """Whether others are limited for a p99, by the status, or the daemon is stopped.

    Status describes a window, so that it may report it a window later; while no epoch has ended, the last
    status counts. A stopped daemon has nothing in force.
    """
    stopped = (event for event in ledger.run.happened if event[1].kind is EventKind.STOP_DAEMON)
    if any(at_s < end_s and start_s <= at_s + event.lasts_s + SERVED_WINDOW_S for at_s, event in stopped):
        return True
    return _status_says(ledger, start_s, end_s, _is_limited_for_p99)


def _status_says(ledger: Ledger, start_s: float, end_s: float, says: Callable[[VmStatus], bool]) -> bool:
    epochs = ledger.run.epochs
    # Settings that an epoch ends were in force until then, and were reported by the previous one.
    first = max(0, bisect_right(epochs, start_s, key=lambda epoch: epoch.at_s) - 2)
    while first > 0 and _does_not_answer(epochs[first]):
        first -= 1  # A measure that was reported before is in force.
    last = bisect_right(epochs, end_s + ledger.run.scenario.window_s, key=lambda epoch: epoch.at_s)
    return any(says(row) for epoch in epochs[first:last] for row in epoch.status.vms)


def _does_not_answer(epoch: Epoch) -> bool:
    return all(row.verdict is Verdict.NO_MECHANISM for row in epoch.status.vms if row.device)


def _says_what_the_ideal_counts(row: VmStatus) -> bool:
    """That its pages cost more than those of others, that a maximum is in force, or a minimum."""
    if "times the device time of one of" in row.reason:
        return True
    if row.verdict is Verdict.CAPPED:
        return row.slo.max_iops is not None
    return row.slo.min_iops is not None and "minimum" in row.reason


def entitlements_are_kept(runs: Runs) -> Iterator[Violation]:
    """From a minute after a change each VM that wants more has its share within 5 %, in the long run 2 %.

    It may have more than its share if that costs none of the others 1 % of theirs.
    """
    ledger = runs.daemon
    for calm in ledger.calms():
        start_s = calm.start_s + SETTLED_AFTER_S
        for at_s in range(start_s, calm.end_s - ENTITLED_WINDOW_S + 1, ENTITLED_WINDOW_S):
            yield from _off(ledger, Calm(at_s, at_s + ENTITLED_WINDOW_S), ENTITLED_WITHIN)
        if calm.end_s - start_s >= LONG_RUN_S:
            yield from _off(ledger, Calm(start_s, calm.end_s), LONG_RUN_WITHIN)


def _off(ledger: Ledger, calm: Calm, within: float) -> Iterator[Violation]:
    due = ledger.due_by_block(calm)
    if len(due.shares) < 2:
        return
    errors = {vm: due.error(vm) for vm in due.shares}
    others_lose = min(errors.values()) < -COSTS_NOBODY
    for vm, share in due.shares.items():
        error = errors[vm]
        if error < -within or (error > within and others_lose):
            text = (
                f"{due.got[vm]:.1%} of {ledger.measure}, due {share:.1%} ({error:+.0%}, until {calm.end_s} s)"
            )
            yield Violation("entitled", calm.start_s, vm, text)


def maximums_are_kept(runs: Runs) -> Iterator[Violation]:
    """From 10 s after a change no VM has more than its maximum in any 10 s, and what a limit saves up."""
    ledger = runs.daemon
    changes = ledger.changes()
    limited = {change.vm for change in ledger.run.slo_changes if change.slo.max_iops is not None}
    for row, vm in enumerate(ledger.run.vms):
        over: dict[int, float] = {}
        for start_s in range(ledger.run.seconds - BLOCK_S + 1) if vm in limited else ():
            end_s = start_s + BLOCK_S
            maximum = ledger.slo(vm, start_s).max_iops
            calm = start_s >= BLOCK_S and not any(start_s - BLOCK_S <= at_s <= end_s for at_s in changes)
            if maximum is None or not calm or ledger.disturbed(start_s, end_s):
                continue
            part = ledger.sum("requests", vm, start_s, end_s) / (BLOCK_S + LIMIT_BURST_S) / maximum
            if part > 1 + LONG_RUN_WITHIN and ledger.run.running[row, start_s:end_s].all():
                over[start_s] = part
        for first_s, last_s, parts in _stretches(over):
            text = f"{max(parts):.0%} of what its maximum allows, until {last_s + BLOCK_S} s"
            yield Violation("maximum", first_s, vm, text)


def no_false_insufficient(runs: Runs) -> Iterator[Violation]:
    """A VM reported as insufficient does get too little."""

    def false(ledger: Ledger, row: VmStatus, start_s: int, end_s: int) -> str:
        if row.verdict is not Verdict.INSUFFICIENT or row.slo.p99_latency_us is not None:
            return ""
        due = ledger.due(start_s, end_s)
        minimum = ledger.slo(row.vm, end_s).min_iops
        if minimum is not None and due.iops[row.vm] < minimum:
            return ""
        if row.vm not in due.shares:
            asked = due.wanting[row.vm]
            return f"it had requests waiting {asked:.0%} of the time" if asked < WANTS_FROM else ""
        # Other VMs may exceed their shares in bursts, without wanting more all the time.
        least, most = due.errors_of_all.get(row.vm, (0.0, 0.0))
        return _has(ledger, most) if least >= -INSUFFICIENT_FROM else ""

    yield from _false_verdicts(runs.daemon, "insufficient", false)


def no_false_ok(runs: Runs) -> Iterator[Violation]:
    """A VM reported as ok does get its share."""

    def false(ledger: Ledger, row: VmStatus, start_s: int, end_s: int) -> str:
        if row.verdict is not Verdict.OK:
            return ""
        due = ledger.due(start_s, end_s)
        if row.vm not in due.shares:
            return ""
        minimum = ledger.slo(row.vm, start_s).min_iops
        if minimum is not None and due.iops[row.vm] < (1 - INSUFFICIENT_FROM) * minimum:
            return f"{due.iops[row.vm]:.0f} IOPS, minimum {minimum:.0f}"
        least, most = due.errors_of_all.get(row.vm, (0.0, 0.0))
        return _has(ledger, least) if most < -OK_UP_TO else ""

    yield from _false_verdicts(runs.daemon, "ok", false)


def _has(ledger: Ledger, error: float) -> str:
    return f"it has {1 + error:.0%} of the {ledger.measure} it is due"


def _false_verdicts(
    ledger: Ledger, verdict: str, false: Callable[[Ledger, VmStatus, int, int], str]
) -> Iterator[Violation]:
    """Verdicts that contradict the counters for several consecutive epochs.

    The daemon's window restarts if the server did not answer, which status reports as `no-mechanism`.
    """
    changes, window_s = ledger.changes(), round(ledger.run.scenario.window_s)
    since: dict[str, tuple[int, float, str]] = {}
    unseen_s: dict[str, float] = {}
    for epoch in ledger.run.epochs:
        end_s = int(epoch.at_s)
        start_s = end_s - window_s
        whole = start_s >= 0 and not any(start_s - 1 <= at_s <= end_s for at_s in changes)
        now: dict[str, tuple[int, float, str]] = {}
        for row in epoch.status.vms:
            if row.verdict is Verdict.NO_MECHANISM:
                unseen_s[row.vm] = epoch.at_s
            if not (whole and row.device) or unseen_s.get(row.vm, -1.0) >= start_s:
                continue
            reason = false(ledger, row, start_s, end_s)
            if reason:
                count, first_s, _ = since.get(row.vm, (0, epoch.at_s, ""))
                now[row.vm] = (count + 1, first_s, f"{reason}; the verdict is {row.verdict}: {row.reason}")
        for vm, (count, first_s, text) in since.items():
            if vm not in now and count >= _FALSE_FOR_EPOCHS:
                yield Violation(verdict, first_s, vm, f"for {count} epochs {text}")
        since = now
    for vm, (count, first_s, text) in since.items():
        if count >= _FALSE_FOR_EPOCHS:
            yield Violation(verdict, first_s, vm, f"for {count} epochs {text}")


def moves_keep_their_budget(runs: Runs) -> Iterator[Violation]:
    """Moves of OPS take at most their budget of die time in any 10 s in which requests are outstanding."""
    run = runs.daemon.run
    # Requests that a limit throttles do not wait for the drive.
    unlimited = np.where(np.isinf(run.of("limit_iops")), run.of("backlog_ns"), 0.0)
    busy = unlimited.max(axis=0, initial=0.0) >= 1e9 * BUSY_FROM
    dies = run.scenario.drive.record().drive.dies
    spent = np.concatenate([[0.0], np.cumsum(run.moves_ns)]) / (1e9 * dies)
    idle = np.concatenate([[0], np.cumsum(~busy)])
    over = {
        start_s: float(spent[start_s + BUDGET_WINDOW_S] - spent[start_s]) / BUDGET_WINDOW_S
        for start_s in range(max(0, run.seconds - BUDGET_WINDOW_S + 1))
        if idle[start_s + BUDGET_WINDOW_S] == idle[start_s]
    }
    over = {start_s: share for start_s, share in over.items() if share > DEFAULTS.daemon.move_budget}
    for first_s, _, parts in _stretches(over):
        text = (
            f"{max(parts):.1%} of die time in {BUDGET_WINDOW_S} s, budget {DEFAULTS.daemon.move_budget:.0%}"
        )
        yield Violation("moves", first_s, "", text)


def limits_settle(runs: Runs) -> Iterator[Violation]:
    """Limits stay the same once nothing else changes, and weights do not oscillate."""
    run = runs.daemon.run
    for calm in runs.daemon.calms():
        start_s = calm.start_s + CALM_AFTER_S
        minutes = (calm.end_s - start_s) / 60
        if minutes < 1:
            continue
        for_p99 = _status_says(runs.daemon, start_s, calm.end_s, _is_limited_for_p99)
        most = P99_LIMIT_CHANGES_PER_MINUTE if for_p99 else LIMIT_CHANGES_PER_MINUTE
        for name, what, count_of in (("limit_iops", "changes", _changes), ("weight", "turns", _turns)):
            for vm, values in zip(run.vms, run.of(name)[:, start_s : calm.end_s], strict=True):
                count = count_of(values)
                if count > max(1.0, most * minutes):
                    text = f"{name} {what} {count / minutes:.1f} times a minute until {calm.end_s} s"
                    yield Violation("settled", start_s, vm, text)


def _changes(limits: NDArray[np.float64]) -> int:
    """Number of changes of a limit from one second to the next; infinite: no limit."""
    before, after = limits[:-1], limits[1:]
    with np.errstate(invalid="ignore"):
        far = np.abs(after - before) > SAME_LIMIT * np.minimum(before, after)
    return int(((np.isfinite(before) != np.isfinite(after)) | (np.isfinite(before) & far)).sum())


def _turns(weights: NDArray[np.float64]) -> int:
    """Turns of a weight: a rise from its last trough after a fall from its last peak, or the reverse.

    A weight of the fair queue follows the measured cost of its VM's pages, slowly or at once. It must not
    oscillate, in small steps or large ones.
    """
    peak = trough = weights[0]
    rises: bool | None = None
    turns = 0
    for weight in weights:
        peak, trough = max(peak, weight), min(trough, weight)
        if rises is not True and weight > _TURN * trough:
            turns += rises is not None
            rises, peak = True, weight
        elif rises is not False and peak > _TURN * weight:
            turns += rises is not None
            rises, trough = False, weight
    return turns


def useless_limits_are_lifted(runs: Runs) -> Iterator[Violation]:
    """Others are limited for a VM that misses its p99 only as long as this can still help."""
    ledger = runs.daemon
    missed_from: dict[str, float] = {}
    for epoch in ledger.run.epochs:
        for row in epoch.status.vms:
            if not (row.verdict is Verdict.INSUFFICIENT and _is_limited_for_p99(row)):
                missed_from.pop(row.vm, None)
            elif epoch.at_s - missed_from.setdefault(row.vm, epoch.at_s) > P99_LIMITED_S:
                text = f"misses its p99 although others are limited for {P99_LIMITED_S} s: {row.reason}"
                yield Violation("limits", epoch.at_s, row.vm, text)
                missed_from[row.vm] = epoch.at_s


def _is_limited_for_p99(row: VmStatus) -> bool:
    return row.slo.p99_latency_us is not None and " limited for it" in row.reason


def hostility_gains_nothing(runs: Runs) -> Iterator[Violation]:
    """No VM gains by a hostile pattern at the cost of others, and no other VM loses.

    If pages of the hostile VM cost more and shares are of pages, all have less in the same proportion, the
    hostile one included: a loss is one of requests and of the share.
    """
    if runs.honest is None:
        return
    hostile, end_s = runs.daemon.run.scenario.hostile, runs.daemon.run.seconds
    if end_s <= _START_S:
        return
    others = [vm for vm in runs.daemon.run.vms if vm not in hostile]
    measure = runs.daemon.measure

    def change(name: str, vms: Iterable[str]) -> float:
        now, honest = (
            sum(ledger.sum(name, vm, _START_S, end_s) for vm in vms)
            for ledger in (runs.daemon, runs.honest or runs.daemon)
        )
        return now / honest - 1 if honest else 0.0

    at_a_cost = change("requests", others) < 0 and any(_below_due(runs.daemon, vm) for vm in others)
    for vm in sorted(hostile):
        gain = change(measure, [vm])
        if gain > HOSTILE_GAIN and at_a_cost:
            yield Violation("hostile", _START_S, vm, f"gains {gain:.0%} of {measure} by its pattern")
    of_all = 1 + change(measure, runs.daemon.run.vms)
    for vm in others:
        loss = -change("requests", [vm])
        loss_of_share = 1 - (1 + change(measure, [vm])) / of_all if of_all else 0.0
        if min(loss, loss_of_share) > HOSTILE_GAIN and _below_due(runs.daemon, vm):
            text = f"loses {loss:.0%} of its requests to {', '.join(sorted(hostile))}"
            yield Violation("hostile", _START_S, vm, text)


def _below_due(ledger: Ledger, vm: str) -> bool:
    """Whether the VM has less than it is entitled to; capacity that another VM left unused does not count."""
    got = due = 0.0
    for start_s in range(_START_S, ledger.run.seconds - BLOCK_S + 1, BLOCK_S):
        amount = ledger.sum(ledger.measure, vm, start_s, start_s + BLOCK_S)
        block = ledger.due(start_s, start_s + BLOCK_S)
        got += amount
        _, most = block.errors_of_all.get(vm, (0.0, 0.0))
        due += amount / (1.0 + most) if amount else block.shares.get(vm, 0.0) * block.total
    return got < (1.0 - LONG_RUN_WITHIN) * due


def epochs_go_well(runs: Runs) -> Iterator[Violation]:
    """No epoch fails, the device has no problem and every undisturbed setting is applied."""
    ledger = runs.daemon
    for at_s, text in ledger.run.failures:
        yield Violation("epochs", at_s, "", text)
    first_seen_s: dict[tuple[str, str], float] = {}
    for epoch in ledger.run.epochs:
        quiet = not ledger.disturbed(epoch.at_s, epoch.at_s)
        for vm, text in _problems(epoch.status, quiet=quiet):
            first_seen_s.setdefault((vm, text), epoch.at_s)
    for (vm, text), at_s in first_seen_s.items():
        yield Violation("epochs", at_s, vm, text)


def _problems(status: HostStatus, *, quiet: bool) -> Iterator[tuple[str, str]]:
    for device in status.devices:
        if device.problem.startswith("unexpected") or (device.problem and quiet):
            yield "", device.problem
    if quiet:
        for row in status.vms:
            if row.verdict is Verdict.UNAPPLIED:
                yield row.vm, row.reason
        # Requests of a VM that were outstanding when it left are served without it.
        yield from (("", note) for note in status.notes if "is used by no known VM" not in note)


def status_knows_the_vms(runs: Runs) -> Iterator[Violation]:
    """Every running VM is in the status with its own device, and no other VM is."""
    run = runs.daemon.run
    wrong: dict[tuple[str, str], float] = {}
    for epoch in run.epochs:
        second = int(epoch.at_s)
        if second < 2 or second + 2 > run.seconds:
            continue
        running = {vm for row, vm in enumerate(run.vms) if run.running[row, second - 1 : second + 1].all()}
        absent = {vm for row, vm in enumerate(run.vms) if not run.running[row, second - 2 : second + 2].any()}
        on_device = {row.vm for row in epoch.status.vms if row.device}
        for vm in running - on_device:
            wrong.setdefault((vm, "is running but not in the status"), epoch.at_s)
        for vm in absent & on_device:
            wrong.setdefault((vm, "is in the status but not running"), epoch.at_s)
    for (vm, text), at_s in wrong.items():
        yield Violation("status", at_s, vm, text)


def all_is_restored(runs: Runs) -> Iterator[Violation]:
    """A clean stop is quick, and everything is as it was before the daemon once moves have ended."""
    run = runs.daemon.run
    if run.stop_s > STOP_WITHIN_S:
        yield Violation("restored", run.scenario.length_s, "", f"a clean stop takes {run.stop_s:.0f} s")
    for text in run.not_restored:
        yield Violation("restored", run.scenario.length_s, "", text)


CHECKS: dict[str, Callable[[Runs], Iterable[Violation]]] = {
    "conserved": work_is_conserved,
    "busy": the_drive_is_as_busy,
    "entitled": entitlements_are_kept,
    "maximum": maximums_are_kept,
    "insufficient": no_false_insufficient,
    "ok": no_false_ok,
    "moves": moves_keep_their_budget,
    "settled": limits_settle,
    "limits": useless_limits_are_lifted,
    "hostile": hostility_gains_nothing,
    "epochs": epochs_go_well,
    "status": status_knows_the_vms,
    "restored": all_is_restored,
}
"""Checks by the name that `bench/simulate.py --checks` takes; the first docstring line of each says what it
requires.
"""


def check(
    daemon: Result,
    without: Result | None = None,
    honest: Result | None = None,
    *,
    names: Collection[str] = tuple(CHECKS),
    measure: Measure = Measure.PAGES,
) -> list[Violation]:
    """All violations, by time."""
    runs = Runs(
        Ledger(daemon, measure),
        None if without is None else Ledger(without, measure),
        None if honest is None else Ledger(honest, measure),
    )
    found = [violation for name in names for violation in CHECKS[name](runs)]
    return sorted(found, key=lambda violation: (violation.at_s, violation.check, violation.vm))


def by_check(violations: Iterable[Violation]) -> dict[str, list[Violation]]:
    """Violations by the name of the check."""
    found: dict[str, list[Violation]] = defaultdict(list)
    for violation in violations:
        found[violation.check].append(violation)
    return dict(found)


def _stretches(values: Mapping[int, float]) -> Iterator[tuple[int, int, list[float]]]:
    """First and last second of each run of consecutive seconds, and the values in it."""
    for _, run in groupby(enumerate(sorted(values)), key=lambda numbered: numbered[1] - numbered[0]):
        seconds = [at_s for _, at_s in run]
        yield seconds[0], seconds[-1], [values[at_s] for at_s in seconds]
