"""One SLO: spellings, units, limits, and back to text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.model.slo import (
    FIELD_NAMES,
    SLO_KEYS,
    SloError,
    SloUpdate,
    check_fields,
    config_texts,
    field_named,
    parse_change,
    parse_fields,
    update_text,
)

positive = st.floats(min_value=1e-3, max_value=1e6)
slos = st.fixed_dictionaries(
    {},
    optional={
        "weight": positive,
        "min_iops": st.floats(1e-3, 10),
        "max_iops": st.floats(10, 1e9),
        "max_bandwidth_bytes_s": st.integers(1, 2**53).map(float),
        "p99_latency_us": st.integers(10, 10**9).map(lambda tenth: tenth / 10),
    },
)


@given(slos)
def test_written_fields_are_read_back(fields: dict[str, float]) -> None:
    again = parse_fields(config_texts(fields))
    assert again.keys() == fields.keys()
    assert all(math.isclose(again[name], value, rel_tol=1e-12) for name, value in fields.items())


def test_every_spelling_of_a_field_is_accepted() -> None:
    expected = {"min_iops": 100.0, "max_bandwidth_bytes_s": 100.0 * 2**20, "p99_latency_us": 5000.0}
    assert parse_fields({"min": "100", "max_bandwidth": "100MiB/s", "p99": "5ms"}) == expected
    assert parse_fields({"min_iops": 100, "max_bandwidth": 100 * 2**20, "p99": "0.005s"}) == expected
    assert parse_fields({**expected}) == expected
    assert parse_fields({"min": "0.1k", "bandwidth": "100MiB/s", "p99": "5ms"}) == expected
    assert parse_fields({"p99": "1us"}) == {"p99_latency_us": 1.0}
    libvirt = {"total_iops_sec": "1k", "total_bytes_sec": "100MiB"}
    assert parse_fields(libvirt) == {"max_iops": 1000.0, "max_bandwidth_bytes_s": 100.0 * 2**20}
    assert {field_named(name) for name in FIELD_NAMES} == set(FIELD_NAMES)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"weight": "-1"}, "weight=-1 is out of range"),
        ({"weight": 0}, "weight=0"),
        ({"weight": "nan"}, "not a finite number"),
        ({"weight": float("nan")}, "not a finite number"),
        ({"weight": float("inf")}, "not a finite number"),
        ({"weight": 10**400}, "not a finite number"),
        ({"weight": int("9" * 4000) ** 2}, "not a finite number"),
        ({"weight": True}, "not a single value"),
        ({"weight": [1]}, "not a single value"),
        ({"weight": "three"}, "is not a number"),
        ({"wieght": 3}, "not a field of an SLO"),
        ({"min": 0}, "not more than 0"),
        ({"max": "-5"}, "not more than 0"),
        ({"min": 5, "min_iops": 6}, "given twice"),
        ({"min": 200, "max": 100}, "min_iops=200 is more than max_iops=100"),
        ({"max_bandwidth": "fast"}, "is not a size"),
        ({"max_bandwidth": "-5"}, "not more than 0"),
        ({"p99": 5}, "has no unit"),
        ({"p99": "5"}, "is not a time"),
        ({"p99": "0ms"}, "not more than 0"),
        ({"p99": "0.5us"}, "p99=0.5us is less than 1 us"),
        ({"p99_latency_us": 0.999}, "is less than 1 us"),
    ],
)
def test_refusals_have_hints(values: dict[str, object], message: str) -> None:
    with pytest.raises(SloError) as caught:
        parse_fields(values)
    assert message in caught.value.message
    assert caught.value.hint
    assert len(caught.value.message) < 200


def test_misspelled_field_gets_a_suggestion() -> None:
    with pytest.raises(SloError) as caught:
        parse_fields({"wieght": 3})
    assert caught.value.hint == "did you mean weight?"


@given(st.dictionaries(st.text(max_size=8), st.floats()))
def test_accepted_fields_are_known_finite_and_positive(fields: dict[str, float]) -> None:
    try:
        check_fields(fields)
    except SloError:
        return
    assert set(fields) <= set(FIELD_NAMES)
    assert all(math.isfinite(value) and value > 0 for value in fields.values())


def test_a_change_reads_as_it_is_typed() -> None:
    change = parse_change(
        {"weight": 3, "p99": "5ms", "max_bandwidth": "100MiB", "class": "gold", "min": None}
    )
    assert update_text(change) == "set weight=3, max_bandwidth=100MiB, p99=5ms, class=gold; unset min_iops"
    assert update_text(SloUpdate(unset=frozenset(SLO_KEYS))) == "unset all fields"
