"""A status survives the way to JSON and back."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest
from fake_status import host_status, host_statuses, vm_status
from hypothesis import given, settings

from slo_ctl.model import VmStatus
from slo_ctl.show.status_json import StatusFormatError, from_json, to_json

if TYPE_CHECKING:
    from slo_ctl.model import HostStatus


@settings(max_examples=60, deadline=None)
@given(host_statuses)
def test_round_trip(status: HostStatus) -> None:
    assert from_json(json.loads(json.dumps(to_json(status), allow_nan=False))) == status


def test_fields_are_named_as_the_dataclasses() -> None:
    told = to_json(host_status())
    assert told["format_version"] == 1
    assert list(told["vms"][0]) == [each.name for each in fields(VmStatus)]
    assert told["vms"][1]["verdict"] == "insufficient"
    assert told["vms"][2]["unapplied"][0]["setting"]["knob"]["lever"] == "cgroup limit"


def test_what_json_cannot_write_is_null() -> None:
    told = to_json(host_status(vms=(vm_status(iops=math.inf, waf=math.nan),)))
    assert (told["vms"][0]["iops"], told["vms"][0]["waf"]) == (None, None)


def test_other_releases() -> None:
    told = to_json(host_status())
    told["tomorrow"] = told["vms"][0]["tomorrow"] = 1
    del told["notes"], told["vms"][0]["u"]
    read = from_json(told)
    assert (read.notes, read.vms[0].u) == ((), None)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format_version",), 2, "format_version is 2 and not 1"),
        (("at",), "now", "at is 'now' and no number"),
        (("vms", 1, "verdict"), "odd", "vms[1].verdict is 'odd', which is not known"),
        (("vms", 0, "slo", "weight"), None, "vms[0].slo.weight is None and no number"),
        (("vms", 0, "disks"), "vda", "vms[0].disks is 'vda'"),
        (("vms", 0, "ops_blocks"), True, "vms[0].ops_blocks is True"),
        (("devices",), [3], "devices[0] is 3 and no object"),
    ],
)
def test_refusals_name_the_field(path: tuple[Any, ...], value: Any, message: str) -> None:
    told = to_json(host_status())
    place: Any = told
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(StatusFormatError) as refusal:
        from_json(told)
    assert str(refusal.value) == message


def test_a_missing_field() -> None:
    told = to_json(host_status())
    del told["vms"][0]["vm"]
    with pytest.raises(StatusFormatError, match=r"vms\[0\]\.vm is missing"):
        from_json(told)
