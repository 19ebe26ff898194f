"""The entitlement solver: invariants of water-filling, and cases calculated by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.decide.entitlement import (
    LEAST_SHARE,
    Claim,
    entitle,
    fitting_minimums,
    shares_of,
    with_bandwidth_as_iops,
)
from slo_ctl.model.slo import Slo

RATES = st.floats(0.0, 1e6)
CLAIMS = st.lists(
    st.builds(
        lambda weight, used, wants_more, low, span: Claim("", weight, used, wants_more, low, low + span),
        st.floats(0.01, 1e3),
        RATES,
        st.booleans(),
        st.one_of(st.just(0.0), RATES),
        st.one_of(st.just(math.inf), RATES),
    ),
    min_size=1,
    max_size=8,
).map(
    lambda claims: [
        Claim(f"vm{i}", c.weight, c.used, c.wants_more, c.minimum, c.maximum) for i, c in enumerate(claims)
    ]
)


def test_equal_weights_share_equally() -> None:
    answer = entitle([Claim("a", 1, 900, True), Claim("b", 1, 100, True)])
    assert answer.rates == pytest.approx({"a": 500, "b": 500})


def test_unused_share_goes_to_vms_that_want_more() -> None:
    answer = entitle([Claim("a", 1, 100, False), Claim("b", 1, 900, True), Claim("c", 3, 1000, True)])
    assert answer.rates == pytest.approx({"a": 100, "b": 475, "c": 1425})


def test_a_vm_above_its_share_is_entitled_to_its_share_only() -> None:
    answer = entitle([Claim("a", 1, 900, False), Claim("b", 3, 300, True)])
    assert answer.rates == pytest.approx({"a": 300, "b": 900})


def test_minimums_precede_weights_and_maximums_cap() -> None:
    claims = [
        Claim("a", 1, 100, True, minimum=600),
        Claim("b", 1, 800, True),
        Claim("c", 1, 100, True, maximum=50),
    ]
    assert entitle(claims).rates == pytest.approx({"a": 600, "b": 350, "c": 50})


def test_a_maximum_of_bandwidth_caps_what_a_vm_is_entitled_to() -> None:
    limited = with_bandwidth_as_iops(Slo(max_bandwidth_bytes_s=4096.0 * 100), 4096.0 * 90, 90.0)
    assert shares_of({"a": limited, "b": Slo()}, 1000.0) == pytest.approx({"a": 0.1, "b": 0.9})
    tighter = Slo(max_iops=50.0, max_bandwidth_bytes_s=4096.0 * 100)
    assert with_bandwidth_as_iops(tighter, 4096.0 * 50, 50.0) == tighter
    unknown_size = Slo(max_bandwidth_bytes_s=4096.0)
    assert with_bandwidth_as_iops(unknown_size, None, 50.0) == unknown_size


def test_minimums_beyond_the_capacity_leave_a_part_to_others() -> None:
    answer = entitle([Claim("a", 1, 500, True, minimum=2500), Claim("b", 3, 500, True)])
    assert answer.overcommitted
    assert answer.rates == pytest.approx({"a": 950, "b": 50})


def test_minimums_of_vms_that_want_less_do_not_exceed_the_capacity() -> None:
    assert not entitle([Claim("a", 3, 20, False, minimum=50)]).overcommitted
    assert not entitle([Claim("a", 1, 20, False, minimum=50), Claim("b", 1, 2, True)]).overcommitted
    assert entitle([Claim("a", 1, 20, False, minimum=50), Claim("b", 1, 2, True, minimum=15)]).overcommitted


def test_an_absurd_minimum_takes_nothing_from_a_reachable_one() -> None:
    claims = [
        Claim("absurd", 1, 600, True, minimum=1e6),
        Claim("reachable", 1, 200, True, minimum=300),
        Claim("without", 1, 200, True),
    ]
    answer = entitle(claims)
    assert answer.overcommitted
    assert answer.rates == pytest.approx({"absurd": 650, "reachable": 300, "without": 50})


MINIMUMS = st.dictionaries(st.sampled_from("abcdef"), RATES, min_size=1)


@given(MINIMUMS, RATES)
def test_minimums_that_fit_are_kept_and_others_take_all_that_is_available(
    minimums: dict[str, float], available: float
) -> None:
    kept = fitting_minimums(minimums, available)
    assert sum(kept.values()) == pytest.approx(min(available, sum(minimums.values())), rel=1e-9, abs=1e-9)
    for vm, minimum in minimums.items():
        assert min(minimum, available / len(minimums)) * (1 - 1e-9) <= kept[vm] <= minimum


@given(MINIMUMS, RATES, st.floats(1.0, 1e3))
def test_asking_for_more_than_the_kept_minimum_changes_nothing(
    minimums: dict[str, float], available: float, factor: float
) -> None:
    before = fitting_minimums(minimums, available)
    for vm, minimum in minimums.items():
        if before[vm] < minimum:
            after = fitting_minimums(minimums | {vm: factor * minimum}, available)
            assert after == pytest.approx(before, rel=1e-9, abs=1e-9)


@given(CLAIMS)
def test_entitlement_covers_an_equal_part_of_the_total_if_the_minimum_asks_for_it(
    claims: list[Claim],
) -> None:
    answer = entitle(claims)
    part = (1.0 - LEAST_SHARE) * sum(c.used for c in claims) / len(claims)
    for c in claims:
        assert answer.rates[c.vm] >= min(c.minimum, c.most, part) * (1 - 1e-9) - 1e-9


def test_entitlement_is_the_usage_if_no_vm_wants_more() -> None:
    answer = entitle([Claim("a", 1, 10, False), Claim("b", 3, 20, False)])
    assert answer.rates == {"a": 10, "b": 20}
    assert answer.level == pytest.approx(7.5)


@given(CLAIMS)
def test_entitlements_never_exceed_the_total_and_waste_nothing_wanted(claims: list[Claim]) -> None:
    answer = entitle(claims)
    total = sum(c.used for c in claims)
    given_out = sum(answer.rates.values())
    assert given_out <= total * (1 + 1e-9) + 1e-6
    if any(c.wants_more and answer.rates[c.vm] < c.maximum * (1 - 1e-9) for c in claims):
        assert given_out == pytest.approx(total, rel=1e-6, abs=1e-6)


@given(CLAIMS)
def test_vm_that_wants_more_gets_its_part_by_weight_unless_bounded(claims: list[Claim]) -> None:
    answer = entitle(claims)
    total, weights = sum(c.used for c in claims), sum(c.weight for c in claims)
    for c in claims:
        if c.wants_more and not any(other.minimum for other in claims):
            fair = min(total * c.weight / weights, c.maximum)
            assert answer.rates[c.vm] >= fair * (1 - 1e-6) - 1e-6


@given(CLAIMS, st.floats(0.1, 0.9))
def test_an_entitlement_does_not_depend_on_how_slow_the_vm_is(claims: list[Claim], part: float) -> None:
    """Service shifted from one VM to another changes no entitlement, as long as both want more."""
    slow, fast = Claim("slow", 2.0, 100.0, True), Claim("fast", 1.0, 300.0, True)
    moved = 100.0 * part
    before = entitle([*claims, slow, fast])
    after = entitle(
        [*claims, Claim("slow", 2.0, 100.0 - moved, True), Claim("fast", 1.0, 300.0 + moved, True)]
    )
    assert after.rates == pytest.approx(before.rates, rel=1e-6, abs=1e-6)
