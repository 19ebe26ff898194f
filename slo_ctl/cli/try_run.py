"""The steps of `slo-ctl try`: measure without slo-ctl, start the daemon, measure with it, compare."""

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
from slo_ctl.base.progress import drive_writes_on
from slo_ctl.base.text import counted, printable, root_option
from slo_ctl.cli.try_clients import Guests
from slo_ctl.cli.try_host import DEVICE, TryHost
from slo_ctl.model.status import DEGRADED, HostStatus, Verdict
from slo_ctl.observe.ssd import ServedDevice
from slo_ctl.show.history_summary import MET
from slo_ctl.show.status import verdict_text
from slo_ctl.show.terminal import Column, console_for, progress_on_stderr, table_of

_NOTICEABLE = 0.05
"""Smaller changes, relative to the entitlement of a VM, are neither a gain nor a loss."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one VM in one measurement. None: unknown."""

    share: float | None = None
    """Share of the pages that all VMs read and wrote."""
    iops: float | None = None
    p99_us: float | None = None


@dataclass(frozen=True, slots=True)
class ComparedVm:
    """One VM without slo-ctl and with it."""

    vm: str
    weight: float
    entitled_share: float
    """Share by weight among VMs that all want more."""
    queue_depth: int
    """Requests in flight."""
    before: Figures = Figures()
    after: Figures = Figures()
    verdict: Verdict | None = None
    """The daemon's last verdict."""
    reason: str = ""
    trace: str = ""
    """File whose requests it repeats; empty: random writes of 4 KiB."""
    client: str = "fio"
    """What reads and writes: `fio`, or a QEMU guest with `kvm` or `tcg`."""


def comparison_table(vms: Sequence[ComparedVm], width: int | None) -> Table:
    """A row for each VM; values that are not measured yet are dashes."""

    def change(of: Callable[[Figures], str]) -> Callable[[ComparedVm], str]:
        return lambda vm: f"{of(vm.before)} → {of(vm.after):>{widest(of)}}"

    def widest(of: Callable[[Figures], str]) -> int:
        return max(len(of(vm.after)) for vm in vms)

    columns: list[Column[ComparedVm]] = [
        Column("VM", lambda vm: vm.vm, 0, right=False),
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
    """Differences in sentences: the VM that got least of its entitlement, VMs that lost, and throughput."""
    worst_before = min(vms, key=lambda vm: _entitled_part(vm, vm.before))
    least_before = _entitled_part(worst_before, worst_before.before)
    worst_after = min(vms, key=lambda vm: _entitled_part(vm, vm.after))
    least_after = _entitled_part(worst_after, worst_after.after)
    before, after = numbers.percent(least_before, 0), numbers.percent(least_after, 0)
    if least_after - least_before >= _NOTICEABLE:
        now = numbers.percent(_entitled_part(worst_before, worst_before.after), 0)
        sentence = (
            f"Gained: {worst_before.vm} had {before} of its entitlement without slo-ctl and has {now} with "
            f"it; no VM has less than {after}."
        )
    elif least_after - least_before <= -_NOTICEABLE:
        sentence = (
            f"Lost: with slo-ctl {worst_after.vm} has {after} of its entitlement; without it no VM had less "
            f"than {before}."
        )
    else:
        sentence = (
            f"Nothing gained: without slo-ctl no VM had less than {before} of its entitlement, with it "
            f"{after}."
        )
    return [sentence, *_losses(vms), _throughput(vms)]


def _entitled_part(vm: ComparedVm, figures: Figures) -> float:
    """The part of its entitlement that a VM got."""
    return (figures.share or 0.0) / vm.entitled_share


def _losses(vms: Sequence[ComparedVm]) -> list[str]:
    """VMs with noticeably less than without slo-ctl."""
    return [
        f"{vm.vm} has {numbers.percent(vm.after.share)} of the drive instead of "
        f"{numbers.percent(vm.before.share)}, its p99 is {numbers.latency(vm.after.p99_us)} instead of "
        f"{numbers.latency(vm.before.p99_us)}."
        for vm in vms
        if _entitled_part(vm, vm.before) - _entitled_part(vm, vm.after) >= _NOTICEABLE
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
"""Requests are served in the order of arrival, as by a drive that does not distinguish VMs."""
QUEUE_DEPTH, NOISY_QUEUE_DEPTH = 16, 64
WINDOW_S = 5.0
"""Window of the daemon."""
_MEASURED_PART, _SETTLING_PART = 1 / 4, 1 / 3
"""Parts of the whole time: each of two measurements, and the longest wait for stable shares."""
_WARM_UP_S = 2.0
_STEP_S = 1.0
_LINE_EVERY_S = 5.0
_STABLE_STEPS = 3
"""Shares are stable when every VM was within its SLO in so many steps in a row."""


@dataclass(frozen=True, slots=True)
class TryResult:
    """Result of one run."""

    vms: tuple[ComparedVm, ...]
    measured_s: float

    @property
    def degraded(self) -> bool:
        """Whether some VM was not within its SLO at the end."""
        return any(vm.verdict is None or vm.verdict in DEGRADED for vm in self.vms)

    def to_json(self) -> dict[str, Any]:
        return {
            "emulated": True,
            "drive": DRIVE,
            "measured_s": self.measured_s,
            "vms": [asdict(vm) for vm in self.vms],
            "total_iops": {which: _total_iops(self.vms, which) for which in ("before", "after")},
            "gains": gains(self.vms),
        }


def run(
    host: TryHost,
    weights: Mapping[str, float],
    traces: Mapping[str, Path],
    seconds: float,
    *,
    guests: bool | None,
    live: bool,
) -> TryResult:
    """Run all steps. `traces`: files by VM; `guests` None: only with KVM. `host.close` removes everything.

    Raises UserError when a process cannot be started or ends, KeyboardInterrupt after a signal.
    """
    part_s = seconds * _MEASURED_PART
    host.choose_clients(guests, traces)
    host.create_groups()
    vms = compared_vms(weights, traces, host.guests)
    _print_line(f"an EMULATED SSD ({DRIVE}) and {len(vms)} {_clients(vms)}, all below {host.root}")
    for note in host.notes:
        _print_line(f"note: {note}")
    _create_drive(host)
    host.start_server()
    for vm in vms:
        _start_client(host, vm, traces.get(vm.vm))
    host.wait_for_guests()
    vms = _with_writing_guests(host, vms, weights, traces, emulated=guests is True)
    noisy = next(vm.vm for vm in vms if vm.queue_depth == NOISY_QUEUE_DEPTH)
    _print_line(
        f"{noisy} is the noisy neighbour: {NOISY_QUEUE_DEPTH} requests at a time, all others {QUEUE_DEPTH}"
    )
    host.pause(_WARM_UP_S)
    with _screen(live) as screen:
        meter = ActivityMeter(host, part_s)
        for left_s in _remaining_seconds(host, part_s):
            vms = tuple(replace(vm, before=figures) for vm, figures in meter.read(vms))
            screen.show(f"1 of 3: without slo-ctl, {left_s:.0f} s left", vms)
        host.start_daemon(WINDOW_S)
        page = f", or at {host.page}" if host.page else ""
        watch = f"slo-ctl top{root_option(host.root)}"
        screen.note(f"the daemon has been started; watch it with: {watch}{page}")
        meter, stable_steps = ActivityMeter(host, part_s), 0
        for left_s in _remaining_seconds(host, seconds * _SETTLING_PART):
            vms = tuple(replace(vm, after=figures) for vm, figures in meter.read(vms))
            vms = _with_current_verdicts(vms, host)
            screen.show(f"2 of 3: waiting for the shares to settle, at most {left_s:.0f} s", vms)
            stable_steps = stable_steps + 1 if all(vm.verdict in MET for vm in vms) else 0
            if stable_steps >= _STABLE_STEPS:
                break
        meter = ActivityMeter(host, part_s)
        for left_s in _remaining_seconds(host, part_s):
            vms = tuple(replace(vm, after=figures) for vm, figures in meter.read(vms))
            vms = _with_current_verdicts(vms, host)
            screen.show(f"3 of 3: with slo-ctl, {left_s:.0f} s left", vms)
    return TryResult(vms, part_s)


def compared_vms(
    weights: Mapping[str, float], traces: Mapping[str, Path], guests: Guests | None = None
) -> tuple[ComparedVm, ...]:
    """The VMs; the first one with the least weight has the most requests in flight. fio repeats traces."""
    total = sum(weights.values())
    noisy = min(weights, key=weights.__getitem__)
    return tuple(
        ComparedVm(
            vm,
            weight,
            weight / total,
            NOISY_QUEUE_DEPTH if vm == noisy else QUEUE_DEPTH,
            trace=str(traces.get(vm, "")),
            client="fio" if guests is None or vm in traces else guests.accelerator,
        )
        for vm, weight in weights.items()
    )


def _clients(vms: Sequence[ComparedVm]) -> str:
    guests = sum(vm.client != "fio" for vm in vms)
    if guests == len(vms):
        return f"QEMU guests ({vms[0].client})"
    return f"clients, {guests} of them QEMU guests" if guests else "fio clients"


def _with_writing_guests(
    host: TryHost,
    vms: tuple[ComparedVm, ...],
    weights: Mapping[str, float],
    traces: Mapping[str, Path],
    *,
    emulated: bool,
) -> tuple[ComparedVm, ...]:
    """The VMs, with others in the place of guests that stop writing. `emulated`: guests again, else fio."""
    while host.guests is not None and not host.guests_write():
        host.replace_guests(emulated=emulated)
        others = "QEMU emulates their processors" if emulated else "fio takes their place"
        _print_line(f"note: guests start on this host's KVM, but soon stop writing to their disks: {others}")
        vms = compared_vms(weights, traces, host.guests)
        for vm in vms:
            if vm.vm not in traces:
                _start_client(host, vm, None)
        host.wait_for_guests()
    return vms


def _start_client(host: TryHost, vm: ComparedVm, trace: Path | None) -> None:
    if host.guests is not None and trace is None:
        host.start_guest(vm.vm, host.guests, vm.queue_depth)
        return
    requests = host.start_fio(vm.vm, vm.queue_depth, trace)
    if trace is not None:
        _print_line(f"{vm.vm} repeats {counted(requests, 'request')} of {vm.trace}")


def with_verdicts(vms: tuple[ComparedVm, ...], status: HostStatus) -> tuple[ComparedVm, ...]:
    """The VMs with the daemon's verdicts about them on the drive."""
    rows = {row.vm: row for row in status.vms if row.device == DEVICE}
    return tuple(
        replace(vm, verdict=rows[vm.vm].verdict, reason=rows[vm.vm].reason)
        if vm.vm in rows
        else replace(vm, verdict=None, reason="")
        for vm in vms
    )


def _with_current_verdicts(vms: tuple[ComparedVm, ...], host: TryHost) -> tuple[ComparedVm, ...]:
    """The VMs with the daemon's verdicts; unchanged while the daemon is too busy to answer."""
    try:
        return with_verdicts(vms, host.status())
    except UnreachableError:
        return vms


class ActivityMeter:
    """Measures the activity of each VM since construction, by the counters of the drive's server."""

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
        self._sample()
        windows = {vm.vm: self._served.windows[f"{DEVICE}/{vm.vm}"] for vm in vms}
        pages = sum(window.pages for window in windows.values())
        for vm in vms:
            window = windows[vm.vm]
            share = window.pages / pages if pages else None
            yield vm, Figures(share, window.iops, window.p99_us)


def _create_drive(host: TryHost) -> None:
    with progress_on_stderr() as progress, drive_writes_on(progress, "preconditioning the drive") as advance:
        preconditioned = host.create_drive(DRIVE, advance)
    _print_line(f"garbage collection is in its steady state: WAF {numbers.decimal(preconditioned.waf)}")


def _remaining_seconds(host: TryHost, seconds: float) -> Iterator[float]:
    """The remaining seconds after each step."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        host.pause(min(_STEP_S, left_s))
        yield max(0.0, end_s - time.monotonic())


# Progress.


class _Lines:
    """A line every few seconds."""

    def __init__(self) -> None:
        self._printed_s = time.monotonic()

    def show(self, phase: str, vms: tuple[ComparedVm, ...]) -> None:
        now_s = time.monotonic()
        if now_s - self._printed_s >= _LINE_EVERY_S:
            self._printed_s = now_s
            figures = ((vm.vm, vm.before if vm.verdict is None else vm.after) for vm in vms)
            shares = ", ".join(f"{name} {numbers.percent(each.share)}" for name, each in figures)
            _print_line(f"{phase}: {shares}")

    def note(self, text: str) -> None:
        _print_line(text)


class _Table:
    """A table of the results so far, redrawn in place."""

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


def _print_line(text: str) -> None:
    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()
