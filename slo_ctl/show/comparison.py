"""Comparison of VMs on one drive without slo-ctl and with it: table, sentences, JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from slo_ctl.base import numbers
from slo_ctl.base.text import printable
from slo_ctl.model import Verdict
from slo_ctl.show.status import verdict_text
from slo_ctl.show.terminal import Column, table_of

FORMAT_VERSION = 1
NOTICEABLE = 0.05
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
    if change >= NOTICEABLE:
        return (
            f"Gained: {name} had {numbers.percent(before, 0)} of its entitlement without slo-ctl and has "
            f"{numbers.percent(_kept(worst_before, worst_before.after), 0)} with it; no VM has less than "
            f"{numbers.percent(_kept(worst_after, worst_after.after), 0)}."
        )
    if change <= -NOTICEABLE:
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
        if _kept(vm, vm.before) - _kept(vm, vm.after) >= NOTICEABLE
    ]


def _throughput(vms: Sequence[ComparedVm]) -> str:
    before, after = (total_iops(vms, which) for which in ("before", "after"))
    change = f" ({numbers.signed_percent(after / before - 1)})" if before else ""
    return (
        f"All together: {numbers.count(before)} IOPS without slo-ctl, {numbers.count(after)} with it{change}."
    )


def total_iops(vms: Sequence[ComparedVm], which: str) -> float:
    """Total IOPS of all VMs, `before` or `after`."""
    return sum(getattr(vm, which).iops or 0.0 for vm in vms)


def comparison_json(drive: str, measured_s: float, vms: Sequence[ComparedVm]) -> dict[str, Any]:
    """One JSON object. `drive` is what `slo-ctl device create` takes; each side was measured so long."""
    return {
        "format_version": FORMAT_VERSION,
        "emulated": True,
        "drive": drive,
        "measured_s": measured_s,
        "vms": [asdict(vm) for vm in vms],
        "total_iops": {which: total_iops(vms, which) for which in ("before", "after")},
        "gains": gains(vms),
    }
