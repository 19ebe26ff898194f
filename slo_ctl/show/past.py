"""Statuses of the past, from the histories of VMs: what `slo-ctl top` goes back to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from slo_ctl.base.numbers import sum_known
from slo_ctl.model import HostStatus, Slo, Verdict, VmStatus

if TYPE_CHECKING:
    from slo_ctl.model import DeviceStatus
    from slo_ctl.record.history_reader import Point, VmHistory

_SINCE_THEN = "a mean of the history; SLO and backend are those of now"


def past_statuses(histories: Iterable[VmHistory], latest: HostStatus) -> list[HostStatus]:
    """A status for each bucket of the histories, the earliest first.

    The history keeps what VMs got and were entitled to, and their verdicts. SLOs and what is known about
    devices are those of `latest`.
    """
    rows: defaultdict[float, list[VmStatus]] = defaultdict(list)
    bucket_s = 0.0
    now = {(vm.vm, vm.device): vm for vm in latest.vms}
    for history in histories:
        bucket_s = max(bucket_s, history.bucket_s)
        for point, verdict, reason in _judged(history):
            row = now.get((history.vm, point.device)) or _without_slo(history.vm, point.device)
            rows[point.at].append(_row(row, point, verdict, reason))
    return [
        replace(
            latest,
            at=at,
            epoch_s=bucket_s,
            window_s=bucket_s,
            devices=tuple(_device(device, rows[at]) for device in latest.devices),
            vms=tuple(sorted(rows[at], key=lambda row: (row.vm, row.device))),
            groups=(),
            notes=(),
        )
        for at in sorted(rows)
    ]


def _judged(history: VmHistory) -> Iterator[tuple[Point, Verdict, str]]:
    """Points with the verdict at the end of each. Before the first verdict there is nothing to judge."""
    for point in history.points:
        changes = [
            change
            for change in history.verdicts
            if change.device == point.device and change.at < point.at + history.bucket_s
        ]
        if changes:
            yield point, Verdict(changes[-1].verdict), changes[-1].reason


def _row(row: VmStatus, point: Point, verdict: Verdict, reason: str) -> VmStatus:
    grown = point.ops_blocks / row.ops_blocks if point.ops_blocks is not None and row.ops_blocks else None
    return replace(
        row,
        verdict=verdict,
        reason=reason,
        target_iops=point.target_iops,
        target_share=point.target_share,
        share=point.share,
        iops=point.iops,
        bandwidth_bytes_s=point.bandwidth_bytes_s,
        p99_read_us=point.p99_read_us,
        p99_write_us=point.p99_write_us,
        throttle_wait_us=point.throttle_wait_us,
        ops_blocks=None if point.ops_blocks is None else round(point.ops_blocks),
        ops_bytes=None if grown is None or row.ops_bytes is None else round(row.ops_bytes * grown),
        ops_share=None if grown is None or row.ops_share is None else row.ops_share * grown,
        u=point.u,
        waf=point.waf,
        unapplied=(),
    )


def _device(device: DeviceStatus, rows: Iterable[VmStatus]) -> DeviceStatus:
    iops = sum_known(row.iops for row in rows if row.device == device.name)
    return replace(device, iops=iops, problem="", reasons=(_SINCE_THEN,), waf=None, moves=())


def _without_slo(vm: str, device: str) -> VmStatus:
    """A VM that was on a device which it is not on now."""
    return VmStatus(vm, device, (), Slo(), "default", "", "none", Verdict.IDLE, "")
