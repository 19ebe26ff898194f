"""Fake HostStatus values: a fixed one with every kind of VM, and a hypothesis strategy."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from slo_ctl.model.sample import DeviceWaf, WafSource
from slo_ctl.model.setting import Knob, Lever, Outcome, OutcomeState, Setting
from slo_ctl.model.slo import Slo
from slo_ctl.model.status import DeviceStatus, HostStatus, Verdict, VmStatus

AT = 1_700_000_000.0


def vm_status(name: str = "web", device: str = "ssd0", **fields: Any) -> VmStatus:
    """A VM with verdict ok, changed by `fields`."""
    values: dict[str, Any] = {
        "vm": name,
        "device": device,
        "disks": ("vdb",),
        "slo": Slo(weight=3.0, min_iops=500.0),
        "slo_source": "vm set",
        "state": "running",
        "backend": "emulated SSD, isolated OPS",
        "verdict": Verdict.OK,
        "reason": "at 101 % of its target",
        "target_iops": 3000.0,
        "target_share": 0.3,
        "share": 0.303,
        "iops": 3030.0,
        "bandwidth_bytes_s": 12.4e6,
        "p99_read_us": 180.0,
        "p99_write_us": 1830.0,
        "throttle_wait_us": 0.0,
        "ops_blocks": 512,
        "ops_bytes": 2**30,
        "ops_share": 0.25,
        "u": 0.4,
        "waf": 1.67,
    }
    return VmStatus(**{**values, **fields})


def outcome(vm: str = "slow", state: OutcomeState = OutcomeState.UNAPPLIED) -> Outcome:
    """A limit on a cgroup."""
    knob = Knob(Lever.CGROUP_LIMIT, "/slo/slow", "total_iops", "8:0")
    return Outcome(Setting(knob, 500.0, vm, "its maximum"), state, None, None, "no such file")


def device_status(name: str = "ssd0", **fields: Any) -> DeviceStatus:
    values: dict[str, Any] = {
        "name": name,
        "kind": "emulated",
        "backend": "emulated SSD, isolated OPS",
        "policy": "proportional",
        "window_s": 10.0,
        "iops": 10_000.0,
        "capacity_iops": 10_400.0,
        "sum_min_iops": 500.0,
        "reasons": ("moved 3 blocks of OPS from db to web: web is below its target",),
    }
    return DeviceStatus(**{**values, **fields})


def host_status(vms: tuple[VmStatus, ...] | None = None, **fields: Any) -> HostStatus:
    """A host with an emulated and a block device and one VM of each kind."""
    if vms is None:
        vms = (
            vm_status("web"),
            vm_status("db", verdict=Verdict.INSUFFICIENT, reason="below its minimum", iops=410.0),
            vm_status(
                "slow",
                device="fast",
                backend="cgroup v1 bfq",
                verdict=Verdict.UNAPPLIED,
                reason="a limit could not be applied",
                slo=Slo(max_iops=500.0),
                waf=None,
                ops_blocks=None,
                ops_bytes=None,
                ops_share=None,
                unapplied=(outcome(),),
            ),
            vm_status("lazy", verdict=Verdict.IDLE, reason="asked for nothing", iops=0.0, state="running"),
        )
    values: dict[str, Any] = {
        "at": AT,
        "window_s": 10.0,
        "epoch_s": 1.0,
        "daemon_pid": 4711,
        "started_at": AT - 3600,
        "config_problem": "",
        "devices": (
            device_status(),
            device_status(
                "fast", kind="block", backend="cgroup v1 bfq", policy="", capacity_iops=None, reasons=()
            ),
        ),
        "vms": vms,
        "notes": ("libvirt does not answer",),
        "epoch_cpu_ms": 3.2,
    }
    return HostStatus(**{**values, **fields})


_number = st.none() | st.floats(allow_nan=False, allow_infinity=False)
_count = st.none() | st.integers(0, 2**62)
_sum = st.floats(allow_nan=False, allow_infinity=False)
_slos = st.builds(
    Slo, _sum, min_iops=_number, max_iops=_number, max_bandwidth_bytes_s=_number, p99_latency_us=_number
)
_knobs = st.builds(Knob, st.sampled_from(Lever), st.text(), st.text(), st.text())
_outcomes = st.builds(
    Outcome,
    st.builds(Setting, _knobs, _number, st.text(), st.text()),
    st.sampled_from(OutcomeState),
    _number,
    _number,
    st.text(),
)
_vms = st.builds(
    VmStatus,
    vm=st.text(),
    device=st.text(),
    slo_source=st.text(),
    state=st.text(),
    backend=st.text(),
    reason=st.text(),
    disks=st.lists(st.text(), max_size=2).map(tuple),
    slo=_slos,
    verdict=st.sampled_from(Verdict),
    iops=_number,
    waf=_number,
    share=_number,
    p99_write_us=_number,
    ops_blocks=_count,
    ops_bytes=_count,
    unapplied=st.lists(_outcomes, max_size=2).map(tuple),
)
_wafs = st.builds(
    DeviceWaf,
    st.sampled_from(WafSource),
    _number,
    _number,
    _sum,
    st.integers(0, 2**62),
    _count,
    st.text(),
    st.booleans(),
    st.text(),
)
_devices = st.builds(
    DeviceStatus,
    name=st.text(),
    kind=st.sampled_from(("emulated", "block")),
    backend=st.text(),
    policy=st.text(),
    iops=_number,
    capacity_iops=_number,
    window_s=_sum,
    sum_min_iops=_sum,
    reasons=st.lists(st.text(), max_size=2).map(tuple),
    waf=st.none() | _wafs,
    placement=st.text(),
)
host_statuses = st.builds(
    HostStatus,
    daemon_pid=st.integers(1, 2**22),
    config_problem=st.text(),
    at=_sum,
    window_s=_sum,
    epoch_s=_sum,
    started_at=_sum,
    epoch_cpu_ms=_sum,
    devices=st.lists(_devices, max_size=2).map(tuple),
    vms=st.lists(_vms, max_size=3).map(tuple),
    notes=st.lists(st.text(), max_size=2).map(tuple),
)
