"""nvme-cli's JSON, recorded and hostile."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from fake_nvme import recorded
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.host.nvme import pages
from slo_ctl.host.nvme.command import NvmeError, NvmeSchemaError, parse_object
from slo_ctl.host.nvme.pages import MAX_128, PageFields, parse_uint
from slo_ctl.model.nvme import PlacementHandle

VERSIONS = ("2.3", "2.13")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
PARSERS: dict[str, Any] = {
    "id-ctrl": lambda answer: pages.controller(answer, "nvme0"),
    "id-ns": lambda answer: pages.namespace(answer, 1, attached=True),
    "list-ns": pages.nsids,
    "fdp-configs": pages.fdp_configs,
    "fdp-stats": pages.fdp_bytes_written,
    "fdp-status": pages.fdp_handles,
    "fdp-usage": pages.fdp_handles_used,
    "endgrp": pages.group_log,
    "smart": pages.host_bytes_written,
    "ocp": pages.ocp_media_bytes_written,
    "list": pages.listed,
    "list-v": pages.listed,
}


@given(st.integers(0, MAX_128))
def test_128_bit_numbers_are_parsed_from_number_and_string(value: int) -> None:
    assert parse_uint(value) == value
    assert parse_uint(str(value)) == value
    assert parse_uint(json.loads(json.dumps(value))) == value
    assert PageFields({"n": {"hi": value >> 64, "lo": value & (1 << 64) - 1}}, "test").wide("n") == value


@given(st.integers(max_value=-1) | st.integers(min_value=MAX_128 + 1) | st.floats() | st.booleans())
def test_invalid_128_bit_numbers_are_refused(value: object) -> None:
    assert parse_uint(value) is None
    assert parse_uint(str(value)) is None


@pytest.mark.parametrize("text", ["", " 1", "1 ", "+1", "-0", "1_000", "0x10", "1e3", "\u0661", "1" * 5000])
def test_strings_that_int_would_accept_or_fail_on_are_refused(text: str) -> None:
    assert parse_uint(text) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_controller_is_parsed(version: str) -> None:
    found = pages.controller(recorded(f"{version}/id-ctrl"), "nvme1")
    assert (found.model, found.serial, found.firmware) == ("QEMU NVMe Ctrl", "MULTI0", "10.0.2")
    assert found.namespace_management
    assert found.endurance_groups
    assert found.emulated
    assert [found.fdp, found.nvm_sets, found.capacity_management] == [False] * 3
    assert found.total_bytes is None
    assert found.unallocated_bytes is None


def test_recorded_kernel_target_is_parsed() -> None:
    found = pages.controller(recorded("2.13/id-ctrl-nvmet"), "nvme2")
    assert [found.namespace_management, found.endurance_groups, found.emulated] == [False] * 3


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_namespace_is_parsed(version: str) -> None:
    found = pages.namespace(recorded(f"{version}/id-ns"), 1, attached=True)
    assert (found.block_bytes, found.size_bytes, found.endurance_group) == (512, 1 << 30, 1)
    assert found.nvm_set is None
    assert found.nguid == ""
    assert found.shared


def test_format_index_combines_low_and_high_bits() -> None:
    answer = recorded("2.13/id-ns")
    answer["lbafs"] = [{"ds": 9}] * 17 + [{"ds": 12}]
    answer["flbas"] = 0b1000001  # bits 6:5 are 2, bits 3:0 are 1
    with pytest.raises(NvmeSchemaError, match="LBA format 33 of 18"):
        pages.namespace(answer, 1, attached=True)
    answer["flbas"] = 0b0110001  # bits 6:5 are 1; bit 4 is about metadata
    assert pages.namespace(answer, 1, attached=True).block_bytes == 4096


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_logs_are_parsed(version: str) -> None:
    (config,) = pages.fdp_configs(recorded(f"{version}/fdp-configs"))
    assert (config.handles, config.reclaim_groups, config.reclaim_unit_bytes) == (8, 1, 16 << 20)
    assert pages.fdp_handles_used(recorded(f"{version}/fdp-usage")) == (True,) * 8
    first = 0 if version == "2.13" else 4
    assert pages.fdp_handles(recorded(f"{version}/fdp-status")) == tuple(
        PlacementHandle(index, first + index) for index in range(4)
    )
    assert pages.host_bytes_written(recorded(f"{version}/smart")) == 0
    assert pages.ocp_media_bytes_written(recorded(f"{version}/ocp")) == 0
    group = pages.group_log(recorded(f"{version}/endgrp"))
    assert (group.host_bytes, group.media_bytes, group.total_bytes) == (0, 0, None)


def test_recorded_fdp_statistics_are_parsed() -> None:
    before, after, last = (pages.fdp_bytes_written(recorded(f"2.13/fdp-stats{n}")) for n in ("", "2", "3"))
    assert (before[0], after) == (0, (32 << 20, 33 << 20))
    assert last[0] - after[0] == 4096


def test_ocp_in_the_second_schema() -> None:
    # Keys of ocp-print-json.c, v3.0-rc1.
    answer = {"physical_media_units_written": {"hi": 1, "lo": "18446744073709551615"}}
    assert pages.ocp_media_bytes_written(answer) == (2 << 64) - 1


def test_names_are_never_taken_for_nsids() -> None:
    by_name = pages.listed(recorded("2.13/list"))
    assert (by_name["nvme1n1"], by_name["nvme1n2"]) == (2, 1)
    old = pages.listed(recorded("2.3/list"))
    assert (old["nvme1n1"], old["nvme1n2"], old["nvme0n1"]) == (2, 1, 1)
    assert pages.listed(recorded("2.3/list-v")) == old


def test_multipath_namespaces_are_below_the_subsystem() -> None:
    assert pages.listed(recorded("2.13/list-v"))["nvme0n1"] == 1


def test_second_schema_has_namespaces_with_paths() -> None:
    # Keys of nvme-print-json.c, v3.0-rc1.
    path = {"Path": "nvme0c1n1", "ANAState": "optimized", "Controller": "nvme1", "SerialNumber": "S"}
    space = {"NameSpace": "nvme0n1", "Generic": "ng0n1", "NSID": 7, "Paths": [path]}
    subsystem = {"Subsystem": "nvme-subsys0", "SubsystemNQN": "nqn.x", "Namespaces": [space]}
    assert pages.listed({"Devices": [{"HostNQN": "h", "Subsystems": [subsystem]}]}) == {"nvme0n1": 7}


@pytest.mark.parametrize("name", PARSERS)
@given(data=st.data())
def test_hostile_values_are_reported_and_never_crash(name: str, data: st.DataObject) -> None:
    """Any value of a recorded answer, replaced by any other value."""
    answer = copy.deepcopy(recorded(f"2.13/{name}"))
    spot: Any = answer
    while True:
        keys = list(spot) if isinstance(spot, dict) else list(range(len(spot)))
        key = data.draw(st.sampled_from(keys))
        if not (isinstance(spot[key], dict | list) and spot[key]) or data.draw(st.booleans()):
            break
        spot = spot[key]
    spot[key] = data.draw(JSON)
    output = ""
    try:
        PARSERS[name](answer)
    except NvmeSchemaError as error:
        output = str(error)
    assert output.isprintable()
    assert len(output) < 400


@pytest.mark.parametrize("name", PARSERS)
def test_truncated_output_is_refused(name: str) -> None:
    text = json.dumps(recorded(f"2.13/{name}"))
    for length in range(0, len(text), 97):
        with pytest.raises(NvmeError, match="is not JSON"):
            parse_object(text[:length], name)


@pytest.mark.parametrize(
    "text", ["", "[1]", "NaN", '{"a": Infinity}', '{"a": ' + "9" * 5000 + "}", "[" * 100_000, "\x00"]
)
def test_json_that_is_not_an_object_is_refused(text: str) -> None:
    with pytest.raises(NvmeError):
        parse_object(text, "nvme test")


def test_too_many_entries_are_refused() -> None:
    with pytest.raises(NvmeSchemaError, match="more than 4096 entries"):
        pages.nsids({"nsid_list": [{"nsid": 1}] * 5000})


@given(st.lists(st.integers(0, (1 << 32) - 1), max_size=50))
def test_nsids_are_sorted_once_each_and_valid(given_ids: list[int]) -> None:
    found = pages.nsids({"nsid_list": [{"nsid": nsid} for nsid in given_ids]})
    assert list(found) == sorted(set(given_ids) - {0, 0xFFFFFFFF})
