"""Data types shared by all packages: VMs and their streams, SLOs, samples, decisions.

Nothing here performs I/O or reads a clock. Observers produce samples, `slo_ctl.decide` turns them into
decisions, actuators apply these, `slo_ctl.show` prints all three.
"""

from __future__ import annotations

from slo_ctl.model.decision import (
    Decision,
    Knob,
    Lever,
    MovePlan,
    OpsMove,
    Outcome,
    OutcomeState,
    Setting,
    SettingValue,
)
from slo_ctl.model.device_waf import DeviceWaf, WafSource
from slo_ctl.model.host import (
    DeviceNumber,
    Disk,
    DiskLatency,
    FoundBy,
    IoCounters,
    LatencyCounts,
    Stream,
    Tenant,
    Vm,
    VmState,
)
from slo_ctl.model.sample import (
    DeviceSample,
    FlashTiming,
    Placement,
    ShareBy,
    Slo,
    StreamWindow,
    TimingModel,
    VmSample,
)
from slo_ctl.model.status import (
    DEGRADED,
    DeviceStatus,
    GroupStatus,
    HostStatus,
    MoveStatus,
    Verdict,
    VmStatus,
)

__all__ = [
    "DEGRADED",
    "Decision",
    "DeviceNumber",
    "DeviceSample",
    "DeviceStatus",
    "DeviceWaf",
    "Disk",
    "DiskLatency",
    "FlashTiming",
    "FoundBy",
    "GroupStatus",
    "HostStatus",
    "IoCounters",
    "Knob",
    "LatencyCounts",
    "Lever",
    "MovePlan",
    "MoveStatus",
    "OpsMove",
    "Outcome",
    "OutcomeState",
    "Placement",
    "Setting",
    "SettingValue",
    "ShareBy",
    "Slo",
    "Stream",
    "StreamWindow",
    "Tenant",
    "TimingModel",
    "Verdict",
    "Vm",
    "VmSample",
    "VmState",
    "VmStatus",
    "WafSource",
]
