"""The result's JSON: strict, stable, and hashed without the wall clock."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from slo_ctl.replay.result import (
    DeviceResult,
    DeviceTiming,
    GcPagesMoved,
    Result,
    RunResult,
    Series,
    VmResult,
    VmSeries,
    WindowResult,
    share_error,
)


def result(wall_s: float = 1.0, **vm: Any) -> Result:
    run = RunResult(
        policy="static",
        isolated=True,
        wall_s=wall_s,
        host_page_writes=np.int64(5),  # type: ignore[arg-type]  # numpy's numbers are taken
        window=WindowResult(from_drive_writes=1, to_drive_writes=2),
        vms=[VmResult(name="db", weight=1, workload="uniform (synthetic)", **vm)],
    )
    device = DeviceResult(
        preset="fast15",
        logical_bytes=100,
        physical_bytes=115,
        op=0.15,
        page_bytes=4096,
        pages_per_block=128,
        blocks=9,
        ops_blocks=2,
        channels=1,
        dies=1,
        planes=1,
        victim_policy="greedy",
        timing=DeviceTiming(model="none"),
    )
    return Result(scenario={"seed": 1}, command="slo-ctl replay", seed=1, device=device, runs=[run])


def strict(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


def test_json_has_every_documented_field() -> None:
    printed = strict(result(iops=10.0).to_json())
    assert printed["format_version"] == 1
    assert printed["label"] == "emulated"
    assert printed["runs"][0]["vms"][0]["latency_us"]["read"] == {
        "p50": None,
        "p99": None,
        "p999": None,
        "curve": [],
    }
    assert {"policy", "wall_s", "host_page_writes", "vms"} <= printed["runs"][0].keys()
    fields = (
        "name weight target_share share share_error iops bandwidth_bytes_s host_page_writes gc_page_writes "
        "waf gc_write_ratio victim_u ops_blocks latency_us"
    )
    assert set(fields.split()) <= printed["runs"][0]["vms"][0].keys()


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), np.float64("nan"), np.float32("inf")]
)
def test_unknown_values_are_null(value: float) -> None:
    printed = strict(result(iops=value, waf=value).to_json())
    assert printed["runs"][0]["vms"][0]["iops"] is None


def test_numpy_numbers_are_accepted() -> None:
    vm = result(iops=np.float32(2.5), host_page_writes=np.int64(7), ops_blocks=np.uint32(3)).runs[0].vms[0]
    assert (vm.iops, vm.host_page_writes, vm.ops_blocks) == (2.5, 7, 3)


def test_the_hash_ignores_the_wall_clock_and_nothing_else() -> None:
    assert result(wall_s=1).result_hash() == result(wall_s=2).result_hash()
    assert result(iops=1.0).result_hash() != result(iops=2.0).result_hash()


def test_result_can_be_read_back() -> None:
    once = result(iops=3.0)
    again = Result.model_validate_json(once.to_json())
    assert again == once
    assert again.result_hash() == once.result_hash()


def test_share_error_is_the_deviation_from_the_target() -> None:
    assert share_error(0.33, 0.3) == pytest.approx(0.1)
    assert share_error(0.2, 0.0) is None
    assert share_error(None, 0.3) is None


def test_uneven_shapes_are_refused() -> None:
    with pytest.raises(ValidationError, match="square"):
        GcPagesMoved(vms=["a", "b"], pages=[[1, 2]])
    with pytest.raises(ValidationError, match="differ in length"):
        Series(drive_writes=[1.0, 2.0], vms=[VmSeries(name="a", u=[0.5])])
    with pytest.raises(ValidationError, match="iosp"):
        VmResult.model_validate({"name": "a", "weight": 1, "workload": "x", "iosp": 3})
