"""The nouns everything else speaks of: VMs and their streams, SLOs, samples, decisions.

Data only: nothing in here performs I/O or reads a clock. Observers produce samples, `slo_ctl.decide` turns
them into decisions, actuators carry the decisions out, `slo_ctl.show` prints all three.
"""

from __future__ import annotations

from slo_ctl.model.decision import Decision, OpsMove, Target
from slo_ctl.model.flash import FlashTiming, Placement, TimingModel
from slo_ctl.model.host import DeviceNumber, Disk, FoundBy, IoCounters, Stream, Vm, VmState
from slo_ctl.model.sample import DeviceSample, Slo, VmSample

__all__ = [
    "Decision",
    "DeviceNumber",
    "DeviceSample",
    "Disk",
    "FlashTiming",
    "FoundBy",
    "IoCounters",
    "OpsMove",
    "Placement",
    "Slo",
    "Stream",
    "Target",
    "TimingModel",
    "Vm",
    "VmSample",
    "VmState",
]
