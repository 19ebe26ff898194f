"""Data types shared by all packages: VMs and their streams, SLOs, samples, decisions.

Nothing here performs I/O or reads a clock. Observers produce samples, `slo_ctl.decide` turns them into
decisions, actuators apply these, `slo_ctl.show` prints all three.

A module is imported when one of its names is first used: to make all these classes takes a sixth of the time
of `slo-ctl status`, which uses less than half of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slo_ctl.model.decision import Decision, MovePlan, OpsMove
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
        StreamWindow,
        TimingModel,
        VmSample,
    )
    from slo_ctl.model.setting import Knob, Lever, Outcome, OutcomeState, Setting, SettingValue
    from slo_ctl.model.slo import Slo
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

_MODULES = ("status", "setting", "device_waf", "host", "decision", "sample")
"""Where names are searched, in this order: commands need the first ones more often."""


def __getattr__(name: str) -> object:
    """A name that has not been used before."""
    if name in __all__:
        for module in _MODULES:
            names = vars(import_module(f"{__name__}.{module}"))
            if name in names:
                return globals().setdefault(name, names[name])
    raise AttributeError(f"module {__name__} has no attribute {name}")
