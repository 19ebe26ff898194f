"""The course of `slo-ctl try`: make, measure without slo-ctl, start the daemon, measure with it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from slo_ctl.base import numbers
from slo_ctl.base.errors import UnreachableError, UserError
from slo_ctl.base.text import printable
from slo_ctl.cli.try_host import DEVICE, TryHost
from slo_ctl.host.libvirt import ObserveGone
from slo_ctl.model import DEGRADED, HostStatus, Verdict
from slo_ctl.observe.ssd import ServedDevice
from slo_ctl.show.comparison import ComparedVm, Figures, comparison_json, comparison_table
from slo_ctl.show.progress import progress_on_stderr
from slo_ctl.show.terminal import console_for

DRIVE = "preset=fast15,size=512MiB,op=15%,scheduler=fifo"
"""Requests are served as they come, as by a drive that knows nothing of VMs."""
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
        """One versioned object."""
        return comparison_json(DRIVE, self.measured_s, self.vms)


def run(host: TryHost, weights: Mapping[str, float], seconds: float, *, live: bool) -> Tried:
    """Do all of it; what was started is left for the host to remove.

    Raises UserError when something cannot be started or ends, KeyboardInterrupt at a signal.
    """
    part_s = seconds * _MEASURED
    vms = compared_vms(weights)
    noisy = next(vm.vm for vm in vms if vm.queue_depth == NOISY_QUEUE_DEPTH)
    _say(f"an EMULATED SSD ({DRIVE}) and {len(vms)} clients, all below {host.root}")
    _make_drive(host)
    host.start_server()
    host.make_groups()
    for note in host.notes:
        _say(f"note: {note}")
    for vm in vms:
        host.start_client(vm.vm, vm.queue_depth)
    _say(f"{noisy} is the noisy neighbour: {NOISY_QUEUE_DEPTH} requests at a time, all others {QUEUE_DEPTH}")
    host.pause(_WARM_UP_S)
    with _screen(live) as screen:
        meter = Meter(host, part_s)
        for left_s in _steps(host, part_s):
            vms = tuple(replace(vm, before=figures) for vm, figures in meter.read(vms))
            screen.show(f"1 of 3: without slo-ctl, {left_s:.0f} s left", vms)
        host.start_daemon(WINDOW_S)
        screen.note(f"the daemon has been started; watch it with: slo-ctl top --root {host.root}")
        meter, held = Meter(host, part_s), 0
        for left_s in _steps(host, seconds * _SETTLING):
            vms = tuple(replace(vm, after=figures) for vm, figures in meter.read(vms))
            vms = _judged_now(vms, host)
            screen.show(f"2 of 3: until shares hold, at most {left_s:.0f} s", vms)
            held = held + 1 if all(vm.verdict in _HOLDING for vm in vms) else 0
            if held >= _HOLDS_STEPS:
                break
        meter = Meter(host, part_s)
        for left_s in _steps(host, part_s):
            vms = tuple(replace(vm, after=figures) for vm, figures in meter.read(vms))
            vms = _judged_now(vms, host)
            screen.show(f"3 of 3: with slo-ctl, {left_s:.0f} s left", vms)
    return Tried(vms, part_s)


def compared_vms(weights: Mapping[str, float]) -> tuple[ComparedVm, ...]:
    """The VMs, of which the first with the least weight has most requests outstanding."""
    total = sum(weights.values())
    noisy = min(weights, key=weights.__getitem__)
    return tuple(
        ComparedVm(vm, weight, weight / total, NOISY_QUEUE_DEPTH if vm == noisy else QUEUE_DEPTH)
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


class Meter:
    """Activity of each VM since construction, by the counters of the drive's server."""

    def __init__(self, host: TryHost, window_s: float) -> None:
        run = host.store.places.run_of(DEVICE)
        self._served = ServedDevice(DEVICE, run.control, host.store.load(DEVICE), window_s=window_s + _STEP_S)
        self._sample()

    def _sample(self) -> None:
        try:
            self._served.sample({})
        except ObserveGone as error:
            raise UserError(f"the server of the drive does not answer: {error}", "try again") from None

    def read(self, vms: tuple[ComparedVm, ...]) -> Iterator[tuple[ComparedVm, Figures]]:
        """Each with its figures so far."""
        self._sample()
        windows = {vm.vm: self._served.windows[f"{DEVICE}/{vm.vm}"] for vm in vms}
        pages = sum(window.pages for window in windows.values())
        for vm in vms:
            window = windows[vm.vm]
            yield vm, Figures(window.pages / pages if pages else None, window.iops, window.p99_write_us)


def _make_drive(host: TryHost) -> None:
    with progress_on_stderr() as sink:
        phase, written = sink.phase("preconditioning the drive", None, "drive writes"), 0.0

        def advance(now: float) -> None:
            nonlocal written
            phase.advance(now - written)
            written = now

        aged = host.make_drive(DRIVE, advance)
        phase.done()
    _say(f"garbage collection is in its steady state: WAF {numbers.decimal(aged.waf)}")


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
    """The table of the result as far as it is known, again and again at the same place."""

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
