"""Parts of a group's minimum and maximum."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.decide.entitlement import Claim
from slo_ctl.decide.groups import Rates, divide, slos_in_group
from slo_ctl.decide.objectives import at_limit
from slo_ctl.model.slo import Slo, SloGroup

POSITIVE = st.floats(1e-3, 1e6)


@st.composite
def members(draw: st.DrawFn) -> list[Claim]:
    found = []
    for number in range(draw(st.integers(1, 8))):
        most = draw(st.one_of(st.just(math.inf), POSITIVE))
        least = draw(st.floats(0.0, 1.0)) * (most if math.isfinite(most) else 1e6)
        found.append(Claim(f"vm{number}", draw(POSITIVE), draw(POSITIVE), draw(st.booleans()), least, most))
    return found


@given(total=POSITIVE, members=members())
def test_parts_add_up_to_the_total_within_the_bounds_of_each_vm(total: float, members: list[Claim]) -> None:
    parts = divide(total, members)
    assert parts.keys() == {m.vm for m in members}
    for_minimums, weights = 0.95 * total, sum(m.weight for m in members)
    fit = sum(m.minimum for m in members) <= for_minimums
    for m in members:
        kept = m.minimum if fit else min(m.minimum, for_minimums / len(members))
        kept = max(kept, min(m.maximum, 0.05 * total * m.weight / weights))
        assert kept <= parts[m.vm] * (1 + 1e-9)
        assert parts[m.vm] <= m.maximum
    assert sum(parts.values()) == pytest.approx(min(total, sum(m.maximum for m in members)))


@given(total=POSITIVE, members=members())
def test_no_vm_that_wants_more_has_less_than_its_part_by_weight(total: float, members: list[Claim]) -> None:
    """Unless its own maximum, or the minimums of others, prevent it."""
    parts, weights = divide(total, members), sum(m.weight for m in members)
    others = sum(m.minimum for m in members)
    for m in members:
        if m.wants_more:
            fair = m.weight / weights * max(0.0, total - others)
            assert parts[m.vm] >= min(fair, m.maximum) * (1 - 1e-9)


def vm(weight: float = 1.0, **bounds: float) -> Slo:
    return Slo(weight, **bounds)


def group(**fields: float) -> SloGroup:
    return SloGroup("shop", fields)


def did(iops: float, *, wants_more: bool = False) -> Rates:
    return Rates(iops, 4096 * iops, wants_more)


def test_parts_are_by_weight_before_any_measurement() -> None:
    own = {"web": vm(3), "db": vm(1)}
    parts = slos_in_group(group(max_iops=1000, min_iops=100), own, {}, {})
    assert parts == {"web": vm(3, min_iops=75, max_iops=750), "db": vm(1, min_iops=25, max_iops=250)}


def test_unused_part_is_lent_and_returned_within_two_epochs() -> None:
    own = {"web": vm(), "db": vm()}
    shop = group(max_iops=1000)
    first = slos_in_group(shop, own, {}, {})
    lent = slos_in_group(shop, own, {"web": did(495), "db": did(0)}, first)
    assert (lent["web"].max_iops, lent["db"].max_iops) == (975, 25)
    back = slos_in_group(shop, own, {"web": did(970), "db": did(25)}, lent)
    assert (back["web"].max_iops, back["db"].max_iops) == (500, 500)


def test_device_bound_vm_lends_its_unused_part() -> None:
    own = {"web": vm(), "db": vm()}
    shop = group(max_iops=2000)
    first = slos_in_group(shop, own, {}, {})
    then = slos_in_group(shop, own, {"web": did(100, wants_more=True), "db": did(990)}, first)
    assert (then["web"].max_iops, then["db"].max_iops) == (125, 1875)


def test_group_minimum_goes_to_vms_that_need_it() -> None:
    own = {"web": vm(), "db": vm(), "mail": vm()}
    parts = slos_in_group(
        group(min_iops=900), own, {"web": did(100), "db": did(50, wants_more=True), "mail": did(0)}, {}
    )
    assert (parts["web"].min_iops, parts["db"].min_iops, parts["mail"].min_iops) == (125, 760, 15)


@pytest.mark.parametrize("used", [0.0, 100.0, 300.0, 399.0])
def test_lent_part_does_not_make_a_vm_want_more(used: float) -> None:
    own = {"web": vm(), "db": vm()}
    shop = group(max_iops=1000)
    parts = slos_in_group(shop, own, {}, {})
    for _ in range(5):
        most = parts["db"].max_iops
        assert most is not None
        parts = slos_in_group(shop, own, {"web": did(used), "db": did(0.99 * most)}, parts)
        web = parts["web"].max_iops
        assert web is not None
        assert not at_limit(used, web)


def test_small_changes_leave_parts_as_they_are() -> None:
    own = {"web": vm(), "db": vm()}
    shop = group(max_iops=1000)
    parts = slos_in_group(shop, own, {"web": did(200), "db": did(990)}, slos_in_group(shop, own, {}, {}))
    assert slos_in_group(shop, own, {"web": did(205), "db": did(745)}, parts) == parts
    assert slos_in_group(shop, own, {"web": did(300), "db": did(745)}, parts) != parts


def test_small_change_of_an_own_maximum_takes_effect() -> None:
    shop = group(max_iops=10_000)
    parts = slos_in_group(shop, {"web": vm(max_iops=1000), "db": vm()}, {}, {})
    lowered = slos_in_group(shop, {"web": vm(max_iops=960), "db": vm()}, {}, parts, changed=True)
    assert lowered["web"].max_iops == 960


@pytest.mark.parametrize("own_minimum", [800, 1000])
def test_minimum_of_one_vm_leaves_a_part_of_the_maximum_to_the_others(own_minimum: float) -> None:
    own = {"web": vm(), "db": vm(3, min_iops=own_minimum)}
    parts = slos_in_group(group(max_iops=800), own, {}, {})
    assert parts == {"web": vm(max_iops=40), "db": vm(3, min_iops=760, max_iops=760)}


def test_own_minimum_above_that_of_the_group_is_kept() -> None:
    own = {"web": vm(), "db": vm(3, min_iops=1000)}
    parts = slos_in_group(group(min_iops=300), own, {}, {})
    assert (parts["web"].min_iops, parts["db"].min_iops) == (15, 1000)


def test_bandwidth_is_divided_by_bytes_and_own_bounds_are_kept() -> None:
    own = {"web": vm(1, max_bandwidth_bytes_s=1e6), "db": vm(1, min_iops=400)}
    parts = slos_in_group(group(max_bandwidth_bytes_s=10e6, max_iops=500), own, {}, {})
    assert parts["web"] == vm(1, max_iops=100, max_bandwidth_bytes_s=1e6)
    assert parts["db"] == vm(1, min_iops=400, max_iops=400, max_bandwidth_bytes_s=9e6)
