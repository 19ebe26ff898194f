"""Precedence, field by field."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.decide.slo_sources import resolve
from slo_ctl.model.slo import Slo, SloClass, SloEntry

WEB = "config conf.d/web.toml:4"


def test_default_applies_without_any_slo() -> None:
    resolved = resolve("web", {}, Slo(weight=2), {})
    assert (resolved.slo, resolved.slo_source, resolved.conflicts) == (Slo(weight=2), "default", ())
    assert resolved.sources == {"weight": "default"}


def test_strongest_source_wins_field_by_field() -> None:
    resolved = resolve(
        "web",
        {
            WEB: SloEntry({"weight": 1.0, "max_iops": 50.0}),
            "metadata": SloEntry({"weight": 2.0, "min_iops": 5.0}),
            "vm set": SloEntry({"weight": 3.0}),
        },
        Slo(p99_latency_us=5000),
        {},
    )
    assert resolved.slo == Slo(weight=3, min_iops=5, max_iops=50, p99_latency_us=5000)
    assert resolved.slo_source == f"vm set, metadata, {WEB}"
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


def test_equal_values_are_no_conflict() -> None:
    assert (
        resolve(
            "web", {WEB: SloEntry({"weight": 3.0}), "vm set": SloEntry({"weight": 3.0})}, Slo(), {}
        ).conflicts
        == ()
    )


def test_weaker_bound_is_dropped() -> None:
    resolved = resolve(
        "web", {WEB: SloEntry({"max_iops": 100.0}), "vm set": SloEntry({"min_iops": 200.0})}, Slo(), {}
    )
    assert resolved.slo == Slo(min_iops=200)
    assert resolved.conflicts == (
        (
            "web: min_iops: 200 by `vm set` leaves no room for max_iops 100 "
            "in conf.d/web.toml:4, which is ignored"
        ),
    )
    resolved = resolve(
        "web", {"vm set": SloEntry({"max_iops": 100.0}), "metadata": SloEntry({"min_iops": 200.0})}, Slo(), {}
    )
    assert resolved.slo == Slo(max_iops=100)


GOLD = SloClass("gold", {"weight": 4.0, "min_iops": 40.0}, "a.toml:1", {"weight": "a.toml:2"})
LEAD = SloClass("lead", {"weight": 1.0, "max_iops": 10.0}, "a.toml:5")
CLASSES = {"gold": GOLD, "lead": LEAD}


def test_own_fields_override_the_class() -> None:
    resolved = resolve("web", {WEB: SloEntry({"weight": 2.0}, "gold")}, Slo(), CLASSES)
    assert resolved.slo == Slo(weight=2, min_iops=40)
    assert resolved.sources == {"weight": WEB, "min_iops": "class gold (a.toml:1)", "class": WEB}
    assert (resolved.class_name, resolved.sources["class"]) == ("gold", WEB)
    assert resolved.slo_source == f"{WEB}, class gold (a.toml:1)"
    assert resolved.conflicts == ()


def test_only_the_class_of_the_strongest_source_applies() -> None:
    stated = {WEB: SloEntry({"weight": 2.0}, "lead"), "vm set": SloEntry({}, "gold")}
    resolved = resolve("web", stated, Slo(), CLASSES)
    assert resolved.slo == Slo(weight=4, min_iops=40)  # no maximum of lead
    assert (resolved.class_name, resolved.sources["class"]) == ("gold", "vm set")
    assert resolved.conflicts[0] == "web: class: gold by `vm set` overrides lead in conf.d/web.toml:4"


def test_missing_class_is_ignored_with_a_note() -> None:
    resolved = resolve(
        "web", {WEB: SloEntry({}, "lead"), "vm set": SloEntry({}, "gold")}, Slo(), {"lead": LEAD}
    )
    assert (resolved.slo, resolved.class_name) == (Slo(weight=1, max_iops=10), "lead")
    assert resolved.conflicts == ("web: class: gold by `vm set` is not in the configuration and is ignored",)


def test_bound_of_the_class_yields_to_that_of_the_vm() -> None:
    resolved = resolve("web", {WEB: SloEntry({"max_iops": 20.0}, "gold")}, Slo(), CLASSES)
    assert resolved.slo == Slo(weight=4, max_iops=20)
    assert "leaves no room for min_iops 40 in class gold (a.toml:1)" in resolved.conflicts[0]


def test_unknown_source_raises() -> None:
    with pytest.raises(ValueError, match="not a source"):
        resolve("web", {"rumour": SloEntry({"weight": 1.0})}, Slo(), {})


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
def test_order_of_the_sources_does_not_matter(stated: dict[str, dict[str, float]], order: list[int]) -> None:
    entries = {source: SloEntry(fields) for source, fields in stated.items()}
    resolved = resolve("web", entries, Slo(), {})
    keys = list(stated)
    shuffled = {keys[i]: entries[keys[i]] for i in order if i < len(keys)}
    assert resolve("web", shuffled, Slo(), {}) == resolved
    for field, source in resolved.sources.items():
        value = getattr(resolved.slo, field)
        assert value == (stated[source][field] if source != "default" else getattr(Slo(), field))
