"""Calculation of the results of a window from the readings at its ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slo_ctl.decide.entitlement import BUSY_FROM, MOSTLY_FROM, Claim, claim_of, entitle
from slo_ctl.model.sample import DeviceSample, ShareBy, waf_of
from slo_ctl.model.slo import Slo
from slo_ctl.observe.ssd import VmReading
from slo_ctl.replay.player import PlayedVm
from slo_ctl.replay.result import (
    CURVE_PERCENTILES,
    GcPagesMoved,
    Latency,
    Merges,
    Percentiles,
    Series,
    VmResult,
    VmSeries,
    WindowResult,
    share_error,
)
from slo_ctl.replay.scenario import Mode

if TYPE_CHECKING:
    from ftl_emul import Device

_NAMED_PERCENTILES = {"p50": 50.0, "p99": 99.0, "p999": 99.9}
_S_PER_NS = 1e-9
DEMAND_MET_TO = 0.03
"""Share of the requests of an open loop that may wait at the end of a window if its demand is met."""


@dataclass(frozen=True, slots=True)
class Edge:
    """One end of the measured window."""

    drive_writes: float
    virtual_s: float | None
    readings: Mapping[str, VmReading]
    outstanding: Mapping[str, int]
    """Outstanding requests by VM; empty without a clock."""


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """Results of the window."""

    window: WindowResult
    vms: list[VmResult]
    moved: GcPagesMoved
    iops: float | None
    waf: float | None


def latencies(device: Device, tenant: int) -> Latency:
    """Percentiles of one tenant since latencies were last cleared."""
    record = device.latency_us(tenant, [*_NAMED_PERCENTILES.values(), *CURVE_PERCENTILES])

    def of(values: list[float]) -> Percentiles:
        named = dict(zip(_NAMED_PERCENTILES, values, strict=False))
        return Percentiles(**named, curve=values[len(_NAMED_PERCENTILES) :])

    return Latency(read=of(record.read), write=of(record.write))


@dataclass(frozen=True, slots=True)
class MeasuredVm:
    """A VM with what was in force for it at the end of the window."""

    played: PlayedVm
    slo: Slo
    latency: Latency
    ops_blocks: int | None
    limit_iops: float | None
    remark: str

    @property
    def name(self) -> str:
        return self.played.spec.name

    @property
    def is_open(self) -> bool:
        return self.played.spec.mode is Mode.OPEN


def measure(
    start: Edge,
    stop: Edge,
    vms: Sequence[MeasuredVm],
    pages_per_block: int,
    *,
    share_by: ShareBy,
    strict: bool,
    merging: bool,
) -> WindowFigures:
    """Rates, shares and ratios between two edges.

    `strict`: shares must be exact, so a VM with requests outstanding all the time counts as wanting more even
    if its queue depth limits it. `merging`: the mapping has log blocks, whose merges are part of the result.
    """
    deltas = {vm.name: stop.readings[vm.name].since(start.readings[vm.name]) for vm in vms}
    clocked = start.virtual_s is not None
    length_s = (stop.virtual_s or 0.0) - (start.virtual_s or 0.0)
    done = {name: d.amount(share_by) for name, d in deltas.items()}
    total = sum(done.values())
    has_rates = clocked and length_s > 0
    claims = _claims(deltas, done, vms, stop.outstanding, length_s, strict=strict)
    wants_more = {claim.vm: claim.wants_more for claim in claims}
    entitled = entitle(claims).shares
    results = []
    for vm in vms:
        name, delta, slo = vm.name, deltas[vm.name], vm.slo
        share = done[name] / total if total else None
        target_share = entitled.get(name, 0.0)
        arrived = delta.requests + stop.outstanding[name] - start.outstanding[name] if clocked else 0
        results.append(
            VmResult(
                name=name,
                weight=slo.weight,
                workload=vm.played.spec.workload_label,
                target_share=target_share,
                share=share,
                share_error=share_error(share, target_share),
                iops=delta.requests / length_s if has_rates else None,
                demand_iops=arrived / length_s if vm.is_open and has_rates else None,
                bandwidth_bytes_s=(delta.read_bytes + delta.write_bytes) / length_s if has_rates else None,
                host_page_writes=delta.host_page_writes,
                gc_page_writes=delta.gc_page_writes,
                waf=waf_of(delta.host_page_writes, delta.gc_page_writes),
                gc_write_ratio=_ratio(delta.gc_page_writes, delta.host_page_writes),
                victim_u=_ratio(delta.victim_valid_pages, delta.victims * pages_per_block),
                merges=_merges(delta, clocked) if merging else None,
                ops_blocks=vm.ops_blocks,
                min_iops=slo.min_iops,
                max_iops=slo.max_iops,
                p99_target_us=slo.p99_latency_us,
                limit_iops=vm.limit_iops,
                wants_more=wants_more.get(name, False),
                busy=_busy(vm, delta, length_s, wants_more=wants_more.get(name, False)),
                remark=vm.remark,
                latency_us=vm.latency,
            )
        )
    host = sum(d.host_page_writes for d in deltas.values())
    return WindowFigures(
        window=WindowResult(
            from_drive_writes=start.drive_writes,
            to_drive_writes=stop.drive_writes,
            from_virtual_s=start.virtual_s,
            to_virtual_s=stop.virtual_s,
        ),
        vms=results,
        moved=GcPagesMoved(
            vms=[vm.name for vm in vms],
            pages=[[deltas[vm.name].moved_pages_of[other.played.tenant] for other in vms] for vm in vms],
        ),
        iops=sum(d.requests for d in deltas.values()) / length_s if has_rates else None,
        waf=waf_of(host, sum(d.gc_page_writes for d in deltas.values())),
    )


def _busy(vm: MeasuredVm, delta: VmReading, length_s: float, *, wants_more: bool) -> bool:
    """Whether the device limits the VM; not an open loop that is served completely."""
    if not length_s or vm.is_open:
        return wants_more
    return delta.backlog_ns * _S_PER_NS >= BUSY_FROM * length_s


def _claims(
    deltas: Mapping[str, VmReading],
    done: Mapping[str, float],
    vms: Sequence[MeasuredVm],
    outstanding: Mapping[str, int],
    length_s: float,
    *,
    strict: bool,
) -> list[Claim]:
    """Claims of running VMs; without a clock (`length_s` 0) all want more."""
    claims = []
    for vm in vms:
        name, delta = vm.name, deltas[vm.name]
        if not vm.played.running or vm.played.finished:
            continue
        waited_ns, share = (delta.backlog_ns, BUSY_FROM) if strict else (delta.queued_ns, MOSTLY_FROM)
        if length_s and vm.is_open:
            # Requests of an open loop wait in the queue even if all of them are served.
            wants_more = outstanding[name] > 1 + DEMAND_MET_TO * delta.requests
        else:
            wants_more = not length_s or waited_ns * _S_PER_NS >= share * length_s
        per_request = done[name] / delta.requests if delta.requests else 1.0
        rate = done[name] / length_s if length_s else done[name]
        claims.append(claim_of(name, vm.slo, rate, per_request, wants_more=wants_more))
    return claims


def _merges(delta: VmReading, clocked: bool) -> Merges:
    def seconds(duration_ns: int) -> float | None:
        return duration_ns * _S_PER_NS if clocked else None

    return Merges(
        switch=delta.switch_merges,
        partial=delta.partial_merges,
        full=delta.full_merges,
        merged_blocks=delta.merged_blocks,
        switch_s=seconds(delta.switch_merge_ns),
        partial_s=seconds(delta.partial_merge_ns),
        full_s=seconds(delta.full_merge_ns),
    )


@dataclass(slots=True)
class SeriesRecorder:
    """Collects the samples of all epochs."""

    names: list[str]
    isolated: bool
    share_by: ShareBy
    drive_writes: list[float] = field(default_factory=list)
    virtual_s: list[float | None] = field(default_factory=list)
    samples: list[DeviceSample] = field(default_factory=list)

    def add(self, drive_writes: float, virtual_s: float | None, sample: DeviceSample) -> None:
        self.drive_writes.append(drive_writes)
        self.virtual_s.append(virtual_s)
        self.samples.append(sample)

    def series(self) -> Series:
        clocked = bool(self.virtual_s) and self.virtual_s[0] is not None
        vms = []
        for index, name in enumerate(self.names):
            own = [sample.vms[index] for sample in self.samples]
            done = [[v.amount(self.share_by) for v in sample.vms] for sample in self.samples]
            vms.append(
                VmSeries(
                    name=name,
                    iops=[v.iops or 0.0 for v in own] if clocked else [],
                    u=[v.u for v in own],
                    waf=[v.waf for v in own],
                    ops_blocks=[v.ops_blocks for v in own] if self.isolated else [],
                    share=[_ratio(counts[index], sum(counts)) for counts in done],
                )
            )
        return Series(drive_writes=self.drive_writes, virtual_s=self.virtual_s if clocked else [], vms=vms)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
