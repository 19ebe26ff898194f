"""A status is unchanged after conversion to JSON and back."""

from __future__ import annotations

import json
import math
import tracemalloc
from dataclasses import fields, replace
from typing import Any

import pytest
from fake_status import host_status, host_statuses, vm_status
from hypothesis import given, settings
from pydantic import TypeAdapter

from slo_ctl.base.errors import ReplyFormatError
from slo_ctl.model.status import HostStatus, VmStatus
from slo_ctl.model.status_json import from_json, to_json, to_text


@settings(max_examples=60)
@given(host_statuses)
def test_status_reads_back_from_json(status: HostStatus) -> None:
    assert from_json(json.loads(json.dumps(to_json(status), allow_nan=False))) == status
    assert json.loads(to_text(status)) == to_json(status)


def test_fields_have_the_names_of_the_dataclasses() -> None:
    output = to_json(host_status())
    assert output["format_version"] == 1
    assert list(output["vms"][0]) == [each.name for each in fields(VmStatus)]
    assert output["vms"][1]["verdict"] == "insufficient"
    assert output["vms"][2]["unapplied"][0]["setting"]["knob"]["lever"] == "cgroup limit"


def test_values_outside_json_are_null() -> None:
    output = to_json(host_status(vms=(vm_status(iops=math.inf, waf=math.nan),)))
    assert (output["vms"][0]["iops"], output["vms"][0]["waf"]) == (None, None)


def test_text_takes_little_more_memory_than_itself() -> None:
    """With all of 500 VMs in plain types it took ten times its length, which the daemon kept."""
    status = host_status(vms=(vm_status(),) * 500)
    text = to_text(status)
    tracemalloc.start()
    to_text(status)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 4 * len(text)


def test_status_of_other_releases_is_read() -> None:
    output = to_json(host_status())
    output["tomorrow"] = output["vms"][0]["tomorrow"] = 1
    del output["notes"], output["vms"][0]["u"]
    read = from_json(output)
    assert (read.notes, read.vms[0].u) == ((), None)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format_version",), 2, "format_version is 2 and not 1"),
        (("at",), "now", "at: Input should be a valid number, unable to parse string as a number"),
        (("vms", 1, "verdict"), "odd", "vms[1].verdict: Input should be 'ok', "),
        (("vms", 0, "slo", "weight"), None, "vms[0].slo.weight: Input should be a valid number"),
        (("vms", 0, "disks"), "vda", "vms[0].disks: Input should be a valid tuple"),
        (("vms", 0, "ops_blocks"), 1.5, "vms[0].ops_blocks: Input should be a valid integer"),
        (("devices",), [3], "devices[0]: Input should be a dictionary or an instance of DeviceStatus"),
    ],
)
def test_refusals_name_the_field(path: tuple[Any, ...], value: Any, message: str) -> None:
    output = to_json(host_status())
    place: Any = output
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(ReplyFormatError) as refusal:
        from_json(output)
    assert refusal.value.message.startswith(f"invalid reply from the daemon: {message}")


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [("iops", "12.5", 12.5), ("iops", 2**60, float(2**60)), ("ops_blocks", 3.0, 3), ("vm", "web", "web")],
)
def test_values_of_other_types_are_converted(field: str, value: Any, read: Any) -> None:
    output = to_json(host_status())
    output["vms"][0][field] = value
    converted = getattr(from_json(output).vms[0], field)
    assert (converted, type(converted)) == (read, type(read))


def test_as_pydantic_reads_it() -> None:
    output = json.loads(json.dumps(to_json(host_status())))
    assert from_json(output) == TypeAdapter(HostStatus).validate_python(output)


def test_missing_field_is_refused() -> None:
    output = to_json(host_status())
    del output["vms"][0]["vm"]
    with pytest.raises(ReplyFormatError, match=r"vms\[0\]\.vm: Field required"):
        from_json(output)


def test_non_utf8_names_round_trip() -> None:
    (refused,) = host_status().vms[2].unapplied
    knob = replace(refused.setting.knob, place="/slo/\udcff")
    odd = replace(refused, setting=replace(refused.setting, knob=knob))
    status = host_status(vms=(vm_status(unapplied=(odd,)),))
    assert from_json(json.loads(json.dumps(to_json(status)))) == status
    assert from_json(json.loads(to_text(status))) == status
