"""The course of `slo-ctl try`: measure without slo-ctl, start the daemon, measure with it, compare."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from slo_ctl.base import numbers
from slo_ctl.base.errors import ObserveGone, UnreachableError, UserError
from slo_ctl.base.text import printable
from slo_ctl.cli.try_host import DEVICE, TryHost
from slo_ctl.model import DEGRADED, HostStatus, Verdict
from slo_ctl.observe.ssd import ServedDevice
from slo_ctl.show.status import verdict_text
from slo_ctl.show.terminal import Column, console_for, drive_writes_on_stderr, table_of

_NOTICEABLE = 0.05
"""Changes of less, relative to what a VM is entitled to, are not called a gain or a loss."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one VM while it was measured. None: not known."""

    share: float | None = None
    """Share of the pages that all of them read and wrote."""
    iops: float | None = None
    p99_us: float | None = None


@dataclass(frozen=True, slots=True)
class ComparedVm:
    """One VM, as it went without slo-ctl and with it."""

    vm: str
    weight: float
    entitled_share: float
    """Share by the weights, among VMs that all want more."""
    queue_depth: int
    """Requests that it keeps outstanding."""
    before: Figures = Figures()
    after: Figures = Figures()
    verdict: Verdict | None = None
    """The daemon's last verdict."""
    reason: str = ""
    trace: str = ""
    """File whose requests it repeats; empty: it writes 4 KiB at random."""


def comparison_table(vms: Sequence[ComparedVm], width: int | None) -> Table:
    """A row for each VM; what is not measured yet is a dash."""

    def change(of: Callable[[Figures], str]) -> Callable[[ComparedVm], str]:
        return lambda vm: f"{of(vm.before)} → {of(vm.after):>{widest(of)}}"

    def widest(of: Callable[[Figures], str]) -> int:
        return max(len(of(vm.after)) for vm in vms)

    columns: list[Column[ComparedVm]] = [
        Column("VM", lambda vm: printable(vm.vm), 0, right=False),
        Column("WEIGHT", lambda vm: numbers.weight(vm.weight), 3),
        Column("ENTITLED", lambda vm: numbers.percent(vm.entitled_share), 0),
        Column("SHARE", change(lambda each: numbers.percent(each.share)), 0),
        Column("IOPS", change(lambda each: numbers.count(each.iops)), 1),
        Column("P99", change(lambda each: numbers.latency(each.p99_us)), 2),
        Column(
            "VERDICT", lambda vm: verdict_text(vm.verdict) if vm.verdict else numbers.UNKNOWN, 0, right=False
        ),
    ]
    return table_of(columns, vms, width)


def gains(vms: Sequence[ComparedVm]) -> list[str]:
    """Differences in sentences: the VM that was worst off, those that have less, and the throughput."""
    worst_before = min(vms, key=lambda vm: _kept(vm, vm.before))
    worst_after = min(vms, key=lambda vm: _kept(vm, vm.after))
    before, after = _kept(worst_before, worst_before.before), _kept(worst_after, worst_after.after)
    return [_gain(worst_before, worst_after, after - before), *_losses(vms), _throughput(vms)]


def _kept(vm: ComparedVm, figures: Figures) -> float:
    """Delivered part of its entitlement."""
    return (figures.share or 0.0) / vm.entitled_share


def _gain(worst_before: ComparedVm, worst_after: ComparedVm, change: float) -> str:
    name, before = worst_before.vm, _kept(worst_before, worst_before.before)
    if change >= _NOTICEABLE:
        return (
            f"Gained: {name} had {numbers.percent(before, 0)} of its entitlement without slo-ctl and has "
            f"{numbers.percent(_kept(worst_before, worst_before.after), 0)} with it; no VM has less than "
            f"{numbers.percent(_kept(worst_after, worst_after.after), 0)}."
        )
    if change <= -_NOTICEABLE:
        return (
            f"Lost: with slo-ctl {worst_after.vm} has "
            f"{numbers.percent(_kept(worst_after, worst_after.after), 0)} of its entitlement; without it "
            f"no VM had less than {numbers.percent(before, 0)}."
        )
    return (
        f"Nothing gained: without slo-ctl no VM had less than {numbers.percent(before, 0)} of its "
        f"entitlement, with it {numbers.percent(_kept(worst_after, worst_after.after), 0)}."
    )


def _losses(vms: Sequence[ComparedVm]) -> list[str]:
    """VMs with noticeably less than without slo-ctl."""
    return [
        f"{vm.vm} has {numbers.percent(vm.after.share)} of the drive instead of "
        f"{numbers.percent(vm.before.share)}, its p99 is {numbers.latency(vm.after.p99_us)} instead of "
        f"{numbers.latency(vm.before.p99_us)}."
        for vm in vms
        if _kept(vm, vm.before) - _kept(vm, vm.after) >= _NOTICEABLE
    ]


def _throughput(vms: Sequence[ComparedVm]) -> str:
    before, after = (_total_iops(vms, which) for which in ("before", "after"))
    change = f" ({numbers.signed_percent(after / before - 1)})" if before else ""
    return (
        f"All together: {numbers.count(before)} IOPS without slo-ctl, {numbers.count(after)} with it{change}."
    )


def _total_iops(vms: Sequence[ComparedVm], which: str) -> float:
    return sum(getattr(vm, which).iops or 0.0 for vm in vms)


DRIVE = "preset=fast15,size=512MiB,op=15%,scheduler=fifo"
"""Requests are served on arrival, as by a drive without knowledge of VMs."""
QUEUE_DEPTH, NOISY_QUEUE_DEPTH = 16, 64
WINDOW_S = 5.0
"""Of the daemon."""
_MEASURED, _SETTLING = 1 / 4, 1 / 3
"""Of all the time: for each of two measurements, and at most until shares hold."""
_WARM_UP_S = 2.0
_STEP_S = 1.0
_LINE_EVERY_S = 5.0
_HOLDING = frozenset({Verdict.OK, Verdict.CAPPED, Verdict.IDLE})
_HOLDS_STEPS = 3
"""Seconds in a row in which every VM is within its SLO, until shares hold."""


@dataclass(frozen=True, slots=True)
class Tried:
    """How it went."""

    vms: tuple[ComparedVm, ...]
    measured_s: float

    @property
    def degraded(self) -> bool:
        """Some VM was not within its SLO in the end."""
        return any(vm.verdict is None or vm.verdict in DEGRADED for vm in self.vms)

    def to_json(self) -> dict[str, Any]:
        """One object."""
        return {
            "emulated": True,
            "drive": DRIVE,
            "measured_s": self.measured_s,
            "vms": [asdict(vm) for vm in self.vms],
            "total_iops": {which: _total_iops(self.vms, which) for which in ("before", "after")},
            "gains": gains(self.vms),
        }


def run(
    host: TryHost, weights: Mapping[str, float], traces: Mapping[str, Path], seconds: float, *, live: bool
) -> Tried:
    """Do all of it; what was started is left for the host to remove. `traces` by VM.

    Raises UserError when something cannot be started or ends, KeyboardInterrupt at a signal.
    """
    part_s = seconds * _MEASURED
    vms = compared_vms(weights, traces)
    noisy = next(vm.vm for vm in vms if vm.queue_depth == NOISY_QUEUE_DEPTH)
    _say(f"an EMULATED SSD ({DRIVE}) and {len(vms)} clients, all below {host.root}")
    _make_drive(host)
    host.start_server()
    host.make_groups()
    for note in host.notes:
        _say(f"note: {note}")
    for vm in vms:
        requests = host.start_client(vm.vm, vm.queue_depth, traces.get(vm.vm))
        if vm.trace:
            _say(f"{vm.vm} repeats {requests:,} requests of {vm.trace}")
    _say(f"{noisy} is the noisy neighbour: {NOISY_QUEUE_DEPTH} requests at a time, all others {QUEUE_DEPTH}")
    host.pause(_WARM_UP_S)
    with _screen(live) as screen:
        meter = ActivityMeter(host, part_s)
        for left_s in _steps(host, part_s):
            vms = tuple(replace(vm, before=figures) for vm, figures in meter.read(vms))
            screen.show(f"1 of 3: without slo-ctl, {left_s:.0f} s left", vms)
        host.start_daemon(WINDOW_S)
        page = f", or at {host.page}" if host.page else ""
        screen.note(f"the daemon has been started; watch it with: slo-ctl top --root {host.root}{page}")
        meter, held = ActivityMeter(host, part_s), 0
        for left_s in _steps(host, seconds * _SETTLING):
            vms = tuple(replace(vm, after=figures) for vm, figures in meter.read(vms))
            vms = _judged_now(vms, host)
            screen.show(f"2 of 3: waiting for the shares to settle, at most {left_s:.0f} s", vms)
            held = held + 1 if all(vm.verdict in _HOLDING for vm in vms) else 0
            if held >= _HOLDS_STEPS:
                break
        meter = ActivityMeter(host, part_s)
        for left_s in _steps(host, part_s):
            vms = tuple(replace(vm, after=figures) for vm, figures in meter.read(vms))
            vms = _judged_now(vms, host)
            screen.show(f"3 of 3: with slo-ctl, {left_s:.0f} s left", vms)
    return Tried(vms, part_s)


def compared_vms(weights: Mapping[str, float], traces: Mapping[str, Path]) -> tuple[ComparedVm, ...]:
    """The VMs, of which the first with the least weight has most requests outstanding."""
    total = sum(weights.values())
    noisy = min(weights, key=weights.__getitem__)
    return tuple(
        ComparedVm(
            vm,
            weight,
            weight / total,
            NOISY_QUEUE_DEPTH if vm == noisy else QUEUE_DEPTH,
            trace=str(traces.get(vm, "")),
        )
        for vm, weight in weights.items()
    )


def judged(vms: tuple[ComparedVm, ...], status: HostStatus) -> tuple[ComparedVm, ...]:
    """With what the daemon says of each on the drive."""
    rows = {row.vm: row for row in status.vms if row.device == DEVICE}
    return tuple(
        replace(vm, verdict=rows[vm.vm].verdict, reason=rows[vm.vm].reason)
        if vm.vm in rows
        else replace(vm, verdict=None, reason="")
        for vm in vms
    )


def _judged_now(vms: tuple[ComparedVm, ...], host: TryHost) -> tuple[ComparedVm, ...]:
    """As before while the daemon is too busy to answer."""
    try:
        return judged(vms, host.status())
    except UnreachableError:
        return vms


class ActivityMeter:
    """Activity of each VM since construction, by the counters of the drive's server."""

    def __init__(self, host: TryHost, window_s: float) -> None:
        run = host.store.places.run_of(DEVICE)
        self._served = ServedDevice(run.control, host.store.load(DEVICE), window_s=window_s + _STEP_S)
        self._sample()

    def _sample(self) -> None:
        try:
            self._served.sample()
        except ObserveGone as error:
            raise UserError(f"the server of the drive does not answer: {error}", "try again") from None

    def read(self, vms: tuple[ComparedVm, ...]) -> Iterator[tuple[ComparedVm, Figures]]:
        """Each with its figures so far."""
        self._sample()
        windows = {vm.vm: self._served.windows[f"{DEVICE}/{vm.vm}"] for vm in vms}
        pages = sum(window.pages for window in windows.values())
        for vm in vms:
            window = windows[vm.vm]
            share = window.pages / pages if pages else None
            yield vm, Figures(share, window.iops, window.p99_us)


def _make_drive(host: TryHost) -> None:
    with drive_writes_on_stderr("preconditioning the drive") as advance:
        preconditioned = host.make_drive(DRIVE, advance)
    _say(f"garbage collection is in its steady state: WAF {numbers.decimal(preconditioned.waf)}")


def _steps(host: TryHost, seconds: float) -> Iterator[float]:
    """After each second what is left, until none is."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        host.pause(min(_STEP_S, left_s))
        yield max(0.0, end_s - time.monotonic())


# What is shown meanwhile.


class _Lines:
    """A line now and then."""

    def __init__(self) -> None:
        self._shown_s = time.monotonic()

    def show(self, phase: str, vms: tuple[ComparedVm, ...]) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s >= _LINE_EVERY_S:
            self._shown_s = now_s
            now = ((vm.vm, vm.before if vm.verdict is None else vm.after) for vm in vms)
            _say(f"{phase}: {', '.join(f'{vm} {numbers.percent(each.share)}' for vm, each in now)}")

    def note(self, text: str) -> None:
        _say(text)


class _Table:
    """The table of the results so far, redrawn in place."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, phase: str, vms: tuple[ComparedVm, ...]) -> None:
        table = comparison_table(vms, self._live.console.width)
        self._live.update(Group(Text(phase, style="bold"), table), refresh=True)

    def note(self, text: str) -> None:
        self._live.console.print(Text(printable(text)))


@contextmanager
def _screen(live: bool) -> Iterator[_Lines | _Table]:
    if not live:
        yield _Lines()
        return
    with Live(console=console_for(sys.stderr), auto_refresh=False, transient=True) as shown:
        yield _Table(shown)


def _say(text: str) -> None:
    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()
