"""Result of a replay: the JSON that `--json` prints, typed.

Units are in the names. A number that is not known (no clock, no GC yet, nothing written) is null; no number
is ever NaN or infinite. Two runs of one scenario with one seed give equal `result_hash()`.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, model_validator

from slo_ctl.base.version import tool_version
from slo_ctl.decide.limit_control import at_limit
from slo_ctl.decide.verdict import Delivered, Judgement, judge
from slo_ctl.model import Slo, StreamWindow

FORMAT_VERSION: Literal[1] = 1

TOLERANCE = 0.03
"""Relative deviation from a target, minimum, maximum or p99 that counts as met."""
_WALL_CLOCK = frozenset({"wall_s"})
"""Fields that differ from run to run and say nothing about the device."""


def _known(value: object) -> object:
    """A numpy scalar as Python's own; NaN and infinities as unknown."""
    item = getattr(value, "item", None)
    plain = item() if callable(item) else value
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain


Number = Annotated[float | None, BeforeValidator(_known)]
Count = Annotated[int, BeforeValidator(_known)]
OptionalCount = Annotated[int | None, BeforeValidator(_known)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


CURVE_PERCENTILES = (1.0, 5.0, *(float(each) for each in range(10, 100, 10)), 95.0, 98.0, 99.0, 99.5, 99.9)
"""Of `Percentiles.curve`."""


class Percentiles(_Model):
    """Latency percentiles in microseconds, from issue to completion."""

    p50: Number = None
    p99: Number = None
    p999: Number = None
    curve: list[float] = Field(default_factory=list)
    """At the percentiles of `CURVE_PERCENTILES`, for a distribution; empty where nothing was recorded."""


class Latency(_Model):
    """Of reads and of writes."""

    read: Percentiles = Percentiles()
    write: Percentiles = Percentiles()


class Merges(_Model):
    """Merges that a VM's writes caused, on a mapping with log blocks (docs/device.md).

    Times are of dies and channels, in seconds; null without a clock.
    """

    switch: Count = 0
    partial: Count = 0
    full: Count = 0
    merged_blocks: Count = 0
    """Logical blocks that full merges put together."""
    switch_s: Number = None
    partial_s: Number = None
    full_s: Number = None


class VmResult(_Model):
    """One VM over the measured window."""

    name: str
    weight: float
    """Weight at the end of the window."""
    workload: str
    """Its workload; says "synthetic" where it was."""
    target_share: Number = None
    """Its entitlement: share of the device's total, in the unit of shares, 0..1; 0 for an idle VM."""
    share: Number = None
    """Of the total in the unit of shares (of the host page writes without a clock), 0..1."""
    share_error: Number = None
    """share / target_share - 1; see `share_error`."""
    iops: Number = None
    demand_iops: Number = None
    """Requests that arrived a second, of an open loop; null of a closed one, which asks as it is served."""
    bandwidth_bytes_s: Number = None
    host_page_writes: Count = 0
    gc_page_writes: Count = 0
    """Pages moved by GC while serving this VM's writes, of any owner."""
    waf: Number = None
    """(host + GC) / host page writes."""
    gc_write_ratio: Number = None
    """GC / host page writes, the paper's WAF(u)."""
    victim_u: Number = None
    """Valid share of the victim blocks, 0..1."""
    merges: Merges | None = None
    """Null where the mapping has no log blocks."""
    ops_blocks: OptionalCount = None
    """OPS owned at the end of the window; null where no VM owns OPS."""
    alone_iops: Number = None
    """The same workload with the whole preconditioned device to itself."""
    alone_victim_u: Number = None
    min_iops: Number = None
    """Asked for."""
    max_iops: Number = None
    """Asked for."""
    p99_target_us: Number = None
    """Asked for."""
    limit_iops: Number = None
    """Rate limit in force at the end of the window."""
    wants_more: bool = True
    """It would have taken more than it got."""
    busy: bool = True
    """It had requests outstanding nearly all the time."""
    remark: str = ""
    """What the policy did for it, or cannot do, at the end of the window."""
    latency_us: Latency = Latency()

    @property
    def limited(self) -> bool:
        """It ran at a rate limit of the policy when the window ended."""
        return self.limit_iops != self.max_iops and at_limit(self.iops or 0.0, self.limit_iops)

    def judged(self, unit: str = "pages") -> Judgement:
        """By the daemon's rule, with a tolerance of 3 %; `unit` is that of shares."""
        worked = bool(self.iops or self.host_page_writes)
        slo = Slo(
            weight=self.weight,
            min_iops=self.min_iops,
            max_iops=self.max_iops,
            p99_latency_us=self.p99_target_us,
        )
        window = StreamWindow(
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


class GcPagesMoved(_Model):
    """Whose GC moved whose pages over the window, in pages."""

    vms: list[str]
    pages: list[list[Count]]
    """pages[i][j]: moved while serving VM i's writes, owned by VM j."""

    @model_validator(mode="after")
    def _square(self) -> Self:
        if len(self.pages) != len(self.vms) or any(len(row) != len(self.vms) for row in self.pages):
            raise ValueError("the matrix of moved pages is not square")
        return self


class VmSeries(_Model):
    """One VM over time, one number per epoch."""

    name: str
    iops: list[Number] = Field(default_factory=list)
    u: list[Number] = Field(default_factory=list)
    waf: list[Number] = Field(default_factory=list)
    ops_blocks: list[Number] = Field(default_factory=list)
    share: list[Number] = Field(default_factory=list)


class Series(_Model):
    """A run over time. Every list is empty or as long as `drive_writes`."""

    drive_writes: list[float] = Field(default_factory=list)
    """Host page writes so far / logical pages, at the end of each epoch."""
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


class EventResult(_Model):
    """Something that happened to a VM during a run."""

    drive_writes: float
    virtual_s: Number = None
    vm: str
    action: str
    weight: Number = None


class WindowResult(_Model):
    """The measured part of a run."""

    from_drive_writes: float
    to_drive_writes: float
    from_virtual_s: Number = None
    to_virtual_s: Number = None


class RunResult(_Model):
    """One policy on the preconditioned device."""

    policy: str
    isolated: bool
    """Every VM has blocks and OPS of its own."""
    share_by: str = "requests"
    """The unit of shares: pages, requests or device-time."""
    complete: bool = True
    """False when it was interrupted: everything measured stands for less time than asked."""
    wall_s: float
    host_page_writes: Count
    """Over the whole run, not the window."""
    virtual_s: Number = None
    window: WindowResult
    iops: Number = None
    """All VMs together, over the window."""
    waf: Number = None
    """All VMs together, over the window."""
    vms: list[VmResult]
    gc_pages_moved: GcPagesMoved | None = None
    series: Series = Series()
    events: list[EventResult] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    """Plain sentences about this run, such as decisions of the policy worth knowing."""


class DeviceTiming(_Model):
    """Latencies of one die and its channel."""

    model: str
    """paper, full or none."""
    read_us: Number = None
    program_us: Number = None
    erase_us: Number = None
    transfer_us: Number = None
    suspend_us: Number = None
    """None: reads wait for programs and erases."""
    copyback: bool | None = None


class DeviceResult(_Model):
    """The emulated device as it really was, presets and defaults filled in."""

    preset: str
    logical_bytes: Count
    physical_bytes: Count
    """Usable blocks only."""
    op: float
    """physical / logical - 1, as built."""
    page_bytes: Count
    pages_per_block: Count
    """Of a clustered block, where blocks span several dies."""
    blocks: Count
    """Usable blocks."""
    ops_blocks: Count
    """Blocks beyond the logical ones, over all VMs."""
    channels: Count
    dies: Count
    planes: Count
    mapping: str = "page"
    cluster_dies: Count = 1
    """Dies that a block spans."""
    victim_policy: str
    timing: DeviceTiming
    preconditioning_drive_writes: Number = None
    """Written before anything was measured, until WAF settled."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.page_bytes * self.pages_per_block


class Result(_Model):
    """Everything a replay found out."""

    format_version: Literal[1] = FORMAT_VERSION
    tool_version: str = Field(default_factory=tool_version)
    label: Literal["emulated"] = "emulated"
    scenario: dict[str, JsonValue]
    """`Scenario.echo()`."""
    command: str
    """Repeats the run; `scenario_text.command_line`."""
    seed: Count
    device: DeviceResult
    runs: list[RunResult] = Field(default_factory=list)
    complete: bool = True
    """Every run that was asked for is there, and complete."""
    notes: list[str] = Field(default_factory=list)

    def to_json(self) -> str:
        """The one object that `--json` prints, indented, strict JSON."""
        return json.dumps(self.model_dump(mode="json"), indent=2, allow_nan=False, ensure_ascii=False)

    def result_hash(self) -> str:
        """SHA-256 (hex) of the JSON without wall-clock fields: equal for equal scenario and seed."""
        canonical = json.dumps(
            _timeless(self.model_dump(mode="json")), sort_keys=True, separators=(",", ":"), allow_nan=False
        )
        return hashlib.sha256(canonical.encode()).hexdigest()


def share_error(share: float | None, target_share: float | None) -> float | None:
    """How far a VM is from its target, relative to the target: 0 on it, -0.1 ten per cent below.

    None where there is nothing to compare: no share known, or no target because the VM was idle.
    """
    if share is None or not target_share:
        return None
    return share / target_share - 1


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if key not in _WALL_CLOCK}
    if isinstance(value, list):
        return [_timeless(item) for item in value]
    return value
