"""Fake results for tests, in the form of those of a replay and labelled as fake."""

from __future__ import annotations

import math
from typing import Any

from slo_ctl.replay.result import (
    DeviceResult,
    DeviceTiming,
    EventResult,
    GcPagesMoved,
    Latency,
    Percentiles,
    Result,
    RunResult,
    Series,
    VmResult,
    VmSeries,
    WindowResult,
    share_error,
)

OPS_BLOCKS = 2458
DEFAULT_VMS = (("db", 1.0), ("web", 3.0), ("mail", 6.0))


def fake_device(**changes: Any) -> DeviceResult:
    values: dict[str, Any] = {
        "preset": "fast15",
        "logical_bytes": 8 * 2**30,
        "physical_bytes": int(8 * 2**30 * 1.15),
        "op": 0.15,
        "page_bytes": 4096,
        "pages_per_block": 128,
        "blocks": 16384 + OPS_BLOCKS,
        "ops_blocks": OPS_BLOCKS,
        "channels": 8,
        "dies": 8,
        "planes": 1,
        "victim_policy": "greedy",
        "timing": DeviceTiming(
            model="full", read_us=60, program_us=800, erase_us=1500, transfer_us=102, copyback=True
        ),
        "preconditioning_drive_writes": 3.2,
    }
    return DeviceResult(**(values | changes))


def fake_vm(name: str = "db", weight: float = 1.0, **changes: Any) -> VmResult:
    values: dict[str, Any] = {
        "name": name,
        "weight": weight,
        "workload": "uniform (synthetic)",
        "target_share": 0.3,
        "share": 0.3,
        "iops": 1000.0,
        "bandwidth_bytes_s": 4_096_000.0,
        "host_page_writes": 100_000,
        "gc_page_writes": 120_000,
        "waf": 2.2,
        "gc_write_ratio": 1.2,
        "victim_u": 1.2 / 2.2,
        "ops_blocks": 500,
        "alone_iops": 3000.0,
        "alone_victim_u": 0.4,
        "latency_us": Latency(
            read=Percentiles(p50=90, p99=2400, p999=5200),
            write=Percentiles(p50=900, p99=4100, p999=9000, curve=[90.0 * n for n in range(1, 17)]),
        ),
    }
    values |= changes
    values.setdefault("share_error", share_error(values["share"], values["target_share"]))
    return VmResult(**values)


def fake_run(
    policy: str = "proportional",
    vms: tuple[tuple[str, float], ...] = DEFAULT_VMS,
    points: int = 60,
    **changes: Any,
) -> RunResult:
    isolated = policy != "shared"
    total_weight = sum(weight for _, weight in vms)
    rows, series = [], []
    for index, (name, weight) in enumerate(vms):
        target = weight / total_weight
        share = _share(policy, target, len(vms))
        u = 0.72 if not isolated else max(0.25, 0.85 - 0.5 * share)
        ops = round(OPS_BLOCKS * _ops_part(policy, target, len(vms)))
        rows.append(
            fake_vm(
                name,
                weight,
                target_share=target,
                share=share,
                iops=9000 * share,
                bandwidth_bytes_s=9000 * share * 4096 * (1 + index % 2),
                victim_u=u,
                waf=1 / (1 - u),
                gc_write_ratio=u / (1 - u),
                host_page_writes=round(400_000 * share),
                gc_page_writes=round(400_000 * share * u / (1 - u)),
                ops_blocks=ops if isolated else None,
                alone_iops=5200.0 - 700 * index,
                alone_victim_u=0.45 + 0.05 * index,
            )
        )
        series.append(_series(name, points, share, u, ops if isolated else None, len(vms), index))
    values: dict[str, Any] = {
        "policy": policy,
        "isolated": isolated,
        "wall_s": 3.25,
        "host_page_writes": 41_943_040,
        "virtual_s": 600.0,
        "window": WindowResult(
            from_drive_writes=10, to_drive_writes=20, from_virtual_s=300, to_virtual_s=600
        ),
        "iops": 9000.0 if isolated else 7400.0,
        "waf": 2.4 if isolated else 3.6,
        "vms": rows,
        "gc_pages_moved": GcPagesMoved(vms=[name for name, _ in vms], pages=_moved(rows, isolated)),
        "series": Series(
            drive_writes=[20 * (i + 1) / points for i in range(points)],
            virtual_s=[600 * (i + 1) / points for i in range(points)],
            vms=series,
        ),
    }
    return RunResult(**(values | changes))


def fake_result(*policies: str, **changes: Any) -> Result:
    names = policies or ("shared", "proportional")
    values: dict[str, Any] = {
        "tool_version": "0.0",
        "scenario": {"policy": names[-1], "duration": {"drive_writes": 20.0, "virtual_s": None}, "seed": 1},
        "command": "slo-ctl replay --vm name=db,workload=uniform,weight=1 --seed 1",
        "seed": 1,
        "device": fake_device(),
        "runs": [fake_run(name) for name in names],
    }
    return Result(**(values | changes))


def fake_event(**changes: Any) -> EventResult:
    values: dict[str, Any] = {"drive_writes": 8.0, "vm": "web", "action": "weight", "weight": 6.0}
    return EventResult(**(values | changes))


def _share(policy: str, target: float, vms: int) -> float:
    if policy == "shared":
        return 1 / vms
    return target if policy == "proportional" else (target + 1 / vms * 0.4) / 1.4


def _ops_part(policy: str, target: float, vms: int) -> float:
    return target if policy == "static" else 0.5 * target + 0.5 / vms


def _moved(rows: list[VmResult], isolated: bool) -> list[list[int]]:
    return [
        [
            (vm.gc_page_writes if isolated and i == j else 0) if isolated else vm.gc_page_writes // len(rows)
            for j in range(len(rows))
        ]
        for i, vm in enumerate(rows)
    ]


def _series(
    name: str, points: int, share: float, u: float, ops: int | None, vms: int, index: int
) -> VmSeries:
    settle = [1 - math.exp(-i / (points / 10)) for i in range(points)]
    noise = [0.012 * math.sin(i * 1.7 + index) for i in range(points)]
    equal = 1 / vms
    return VmSeries(
        name=name,
        iops=[9000 * (equal + (share - equal) * s + n / 4) for s, n in zip(settle, noise, strict=True)],
        u=[0.72 + (u - 0.72) * s + n for s, n in zip(settle, noise, strict=True)],
        waf=[1 / (1 - 0.72 - (u - 0.72) * s) for s in settle],
        ops_blocks=[]
        if ops is None
        else [round(OPS_BLOCKS / vms + (ops - OPS_BLOCKS / vms) * s) for s in settle],
        share=[equal + (share - equal) * s + n / 4 for s, n in zip(settle, noise, strict=True)],
    )
