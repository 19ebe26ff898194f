"""Precedence, field by field."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.decide.slo_sources import resolve
from slo_ctl.model import Slo

WEB = "config conf.d/web.toml:4"


def test_no_slo_set_is_the_default() -> None:
    resolved = resolve("web", {}, Slo(weight=2))
    assert (resolved.slo, resolved.source, resolved.conflicts) == (Slo(weight=2), "default", ())
    assert resolved.sources == {"weight": "default"}


def test_the_nearest_to_the_operator_wins_field_by_field() -> None:
    resolved = resolve(
        "web",
        {
            WEB: {"weight": 1.0, "max_iops": 50.0},
            "metadata": {"weight": 2.0, "min_iops": 5.0},
            "vm set": {"weight": 3.0},
        },
        Slo(p99_latency_us=5000),
    )
    assert resolved.slo == Slo(weight=3, min_iops=5, max_iops=50, p99_latency_us=5000)
    assert resolved.source == f"vm set, metadata, {WEB}"
    assert resolved.sources == {
        "weight": "vm set",
        "min_iops": "metadata",
        "max_iops": WEB,
        "p99_latency_us": "default",
    }
    assert resolved.conflicts == (
        "web: weight: 3 by `vm set` overrides 2 in libvirt metadata",
        "web: weight: 3 by `vm set` overrides 1 in conf.d/web.toml:4",
    )


def test_the_same_twice_is_no_conflict() -> None:
    assert resolve("web", {WEB: {"weight": 3.0}, "vm set": {"weight": 3.0}}, Slo()).conflicts == ()


def test_the_weaker_bound_gives_way() -> None:
    resolved = resolve("web", {WEB: {"max_iops": 100.0}, "vm set": {"min_iops": 200.0}}, Slo())
    assert resolved.slo == Slo(min_iops=200)
    assert resolved.conflicts == (
        (
            "web: min_iops: 200 by `vm set` leaves no room for max_iops 100 "
            "in conf.d/web.toml:4, which is ignored"
        ),
    )
    resolved = resolve("web", {"vm set": {"max_iops": 100.0}, "metadata": {"min_iops": 200.0}}, Slo())
    assert resolved.slo == Slo(max_iops=100)


def test_unknown_sources_are_a_mistake_of_the_program() -> None:
    with pytest.raises(ValueError, match="not a source"):
        resolve("web", {"rumour": {"weight": 1.0}}, Slo())


some = st.fixed_dictionaries(
    {},
    optional={
        "weight": st.floats(1, 10),
        "min_iops": st.floats(1, 50),
        "max_iops": st.floats(50, 100),
        "p99_latency_us": st.floats(1, 10),
    },
)


@given(st.dictionaries(st.sampled_from(["vm set", "metadata", WEB]), some), st.permutations(range(3)))
def test_order_of_the_sources_has_no_say(said: dict[str, dict[str, float]], order: list[int]) -> None:
    resolved = resolve("web", said, Slo())
    keys = list(said)
    shuffled = {keys[i]: said[keys[i]] for i in order if i < len(keys)}
    assert resolve("web", shuffled, Slo()) == resolved
    for field, source in resolved.sources.items():
        value = getattr(resolved.slo, field)
        assert value == (said[source][field] if source != "default" else getattr(Slo(), field))
