"""Result of a replay: the JSON that `--json` prints, typed.

Units are in the names. Unknown numbers (no clock, no GC yet, nothing written) are null; no number is NaN or
infinite. Two runs of a scenario with the same seed have the same `result_hash()`.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from slo_ctl import tool_version
from slo_ctl.base.json_store import StrictModel
from slo_ctl.base.numbers import max_known
from slo_ctl.decide.objectives import at_limit
from slo_ctl.decide.verdict import Delivered, Judgement, judge
from slo_ctl.model.sample import VmSample
from slo_ctl.model.slo import Slo

FORMAT_VERSION: Literal[1] = 1

TOLERANCE = 0.03
"""Relative deviation from a target, minimum, maximum or p99 that counts as met."""
_WALL_CLOCK = frozenset({"wall_s"})
"""Fields that differ between equal runs."""


def _finite(value: object) -> object:
    """A numpy scalar as a Python number; None for NaN and infinite numbers."""
    item = getattr(value, "item", None)
    plain = item() if callable(item) else value
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain


Number = Annotated[float | None, BeforeValidator(_finite)]
Count = Annotated[int, BeforeValidator(_finite)]
OptionalCount = Annotated[int | None, BeforeValidator(_finite)]


CURVE_PERCENTILES = (1.0, 5.0, *map(float, range(10, 100, 10)), 95.0, 98.0, 99.0, 99.5, 99.9)


class Percentiles(StrictModel):
    """Latency percentiles in microseconds, from issue to completion."""

    p50: Number = None
    p99: Number = None
    p999: Number = None
    curve: list[float] = Field(default_factory=list)
    """Values at `CURVE_PERCENTILES`; empty without requests."""


class Latency(StrictModel):
    """Latency of reads and of writes."""

    read: Percentiles = Percentiles()
    write: Percentiles = Percentiles()


class Merges(StrictModel):
    """Merges caused by a VM's writes, on a mapping with log blocks (docs/device.md).

    Times are die and channel times in seconds; null without a clock.
    """

    switch: Count = 0
    partial: Count = 0
    full: Count = 0
    merged_blocks: Count = 0
    """Logical blocks that full merges wrote."""
    switch_s: Number = None
    partial_s: Number = None
    full_s: Number = None


class VmResult(StrictModel):
    """One VM in the measured window."""

    name: str
    weight: float
    """Weight at the end of the window."""
    workload: str
    """Name of the workload, marked if it is synthetic."""
    target_share: Number = None
    """Entitlement: share of the device's total in the unit of shares, 0..1; 0 for an idle VM."""
    share: Number = None
    """Share of the total in the unit of shares, 0..1."""
    share_error: Number = None
    """share / target_share - 1; see `share_error`."""
    iops: Number = None
    demand_iops: Number = None
    """Arriving requests per second of an open loop; null for a closed loop."""
    bandwidth_bytes_s: Number = None
    host_page_writes: Count = 0
    gc_page_writes: Count = 0
    """Pages, of any owner, that GC copied for this VM's writes."""
    waf: Number = None
    """(host + GC) / host page writes."""
    gc_write_ratio: Number = None
    """GC / host page writes, the paper's WAF(u)."""
    victim_u: Number = None
    """Valid share of the victim blocks, 0..1."""
    merges: Merges | None = None
    """Null if the mapping has no log blocks."""
    ops_blocks: OptionalCount = None
    """OPS at the end of the window; null if VMs do not own OPS."""
    alone_iops: Number = None
    """IOPS of the same workload alone on the preconditioned device."""
    alone_victim_u: Number = None
    min_iops: Number = None
    """Minimum of the SLO."""
    max_iops: Number = None
    """Maximum of the SLO."""
    p99_target_us: Number = None
    """p99 of the SLO."""
    limit_iops: Number = None
    """Rate limit in force at the end of the window."""
    wants_more: bool = True
    """Whether it had more demand than it got."""
    busy: bool = True
    """Whether it had requests outstanding nearly all the time."""
    remark: str = ""
    """Measures of the policy for it, and bounds without a lever, at the end of the window."""
    latency_us: Latency = Latency()

    @property
    def p99_us(self) -> float:
        """p99 of reads or of writes, whichever is longer; 0 without requests."""
        return max_known((self.latency_us.read.p99, self.latency_us.write.p99)) or 0.0

    @property
    def limited(self) -> bool:
        """Whether it was at a rate limit of the policy at the end of the window."""
        return self.limit_iops != self.max_iops and at_limit(self.iops or 0.0, self.limit_iops)

    def judged(self, unit: str = "pages") -> Judgement:
        """Verdict by the daemon's rules, with a tolerance of 3 %; `unit` is that of shares."""
        worked = bool(self.iops or self.share)
        slo = Slo(
            weight=self.weight,
            min_iops=self.min_iops,
            max_iops=self.max_iops,
            p99_latency_us=self.p99_target_us,
        )
        window = VmSample(
            *(self.name, 0.0),
            iops=self.iops,
            p99_read_us=self.latency_us.read.p99,
            p99_write_us=self.latency_us.write.p99,
        )
        delivered = Delivered(
            window,
            asked=worked or bool(self.target_share),
            wants_more=self.wants_more,
            busy=self.busy,
            unit=unit,
            share=self.share if worked else 0.0,
            target_share=self.target_share,
            share_tolerance=TOLERANCE,
            remark=self.remark,
        )
        return judge(delivered, slo, at_bound=TOLERANCE)


class GcPagesMoved(StrictModel):
    """Pages that GC copied in the window, by cause and owner."""

    vms: list[str]
    pages: list[list[Count]]
    """pages[i][j]: pages of VM j copied for writes of VM i."""

    @model_validator(mode="after")
    def _square(self) -> Self:
        if len(self.pages) != len(self.vms) or any(len(row) != len(self.vms) for row in self.pages):
            raise ValueError("the matrix of moved pages is not square")
        return self


class VmSeries(StrictModel):
    """One VM over time, one number per epoch."""

    name: str
    iops: list[Number] = Field(default_factory=list)
    u: list[Number] = Field(default_factory=list)
    waf: list[Number] = Field(default_factory=list)
    ops_blocks: list[Number] = Field(default_factory=list)
    share: list[Number] = Field(default_factory=list)


class Series(StrictModel):
    """Time series of a run. Every list is empty or as long as `drive_writes`."""

    drive_writes: list[float] = Field(default_factory=list)
    """Host page writes / logical pages at the end of each epoch."""
    virtual_s: list[Number] = Field(default_factory=list)
    vms: list[VmSeries] = Field(default_factory=list)

    @model_validator(mode="after")
    def _even(self) -> Self:
        lists = [self.virtual_s]
        for vm in self.vms:
            lists += [vm.iops, vm.u, vm.waf, vm.ops_blocks, vm.share]
        if any(len(numbers) not in (0, len(self.drive_writes)) for numbers in lists):
            raise ValueError("the columns of the time series differ in length")
        return self


class EventResult(StrictModel):
    """An event of a VM during a run."""

    drive_writes: float
    virtual_s: Number = None
    vm: str
    action: str
    weight: Number = None


class WindowResult(StrictModel):
    """The measured part of a run."""

    from_drive_writes: float
    to_drive_writes: float
    from_virtual_s: Number = None
    to_virtual_s: Number = None


class RunResult(StrictModel):
    """One policy on the preconditioned device."""

    policy: str
    isolated: bool
    """Whether every VM has its own blocks and OPS."""
    share_by: str = "requests"
    """The unit of shares: pages, requests or device-time."""
    complete: bool = True
    """False if the run was interrupted, so that results cover less time."""
    wall_s: float
    host_page_writes: Count
    """Host page writes of the whole run, not the window."""
    virtual_s: Number = None
    window: WindowResult
    iops: Number = None
    """IOPS of all VMs in the window."""
    waf: Number = None
    """WAF of all VMs in the window."""
    vms: list[VmResult]
    gc_pages_moved: GcPagesMoved | None = None
    series: Series = Series()
    events: list[EventResult] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    """Sentences about this run, such as refused moves."""


class DeviceTiming(StrictModel):
    """Latencies of one die and its channel."""

    model: str
    """paper, full or none."""
    read_us: Number = None
    program_us: Number = None
    erase_us: Number = None
    transfer_us: Number = None
    suspend_us: Number = None
    """Time to suspend and resume; None: reads wait for programs and erases."""
    copyback: bool | None = None


class DeviceResult(StrictModel):
    """The emulated device, with values of presets and defaults."""

    preset: str
    logical_bytes: Count
    physical_bytes: Count
    """Usable blocks only."""
    op: float
    """physical / logical - 1, as built."""
    page_bytes: Count
    pages_per_block: Count
    """Pages of a block over all dies that it spans."""
    blocks: Count
    """Usable blocks."""
    ops_blocks: Count
    """OPS of all VMs."""
    channels: Count
    dies: Count
    planes: Count
    mapping: str = "page"
    cluster_dies: Count = 1
    """Dies that a block spans."""
    victim_policy: str
    timing: DeviceTiming
    preconditioning_drive_writes: Number = None
    """Drive writes of preconditioning, until WAF was steady."""

    @property
    def block_bytes(self) -> int:
        return self.page_bytes * self.pages_per_block


class Result(StrictModel):
    """Result of a replay."""

    format_version: Literal[1] = FORMAT_VERSION
    tool_version: str = Field(default_factory=tool_version)
    label: Literal["emulated"] = "emulated"
    scenario: dict[str, JsonValue]
    """`Scenario.echo()`."""
    command: str
    """Command that repeats the run; see `scenario_text.command_line`."""
    seed: Count
    device: DeviceResult
    runs: list[RunResult] = Field(default_factory=list)
    complete: bool = True
    """Whether all runs are complete."""
    notes: list[str] = Field(default_factory=list)

    def result_hash(self) -> str:
        """SHA-256 (hex) of the JSON without wall-clock times; equal for equal scenario and seed."""
        canonical = json.dumps(
            _without_wall_clock(self.model_dump(mode="json")),
            sort_keys=True,
            separators=(",", ":"),
            allow_nan=False,
        )
        return hashlib.sha256(canonical.encode()).hexdigest()


def share_error(share: float | None, target_share: float | None) -> float | None:
    """Relative deviation of a share from its target; -0.1: 10 % below it.

    None if the share is unknown, or the VM has no target because it was idle.
    """
    if share is None or not target_share:
        return None
    return share / target_share - 1


def _without_wall_clock(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_wall_clock(item) for key, item in value.items() if key not in _WALL_CLOCK}
    if isinstance(value, list):
        return [_without_wall_clock(item) for item in value]
    return value
