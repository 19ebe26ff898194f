"""Patterns for names, compared with Python's regular expressions."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.base import patterns as patterns_module
from slo_ctl.base.patterns import ambiguous, common_name, is_pattern, matches, specificity

patterns = st.text("ab*?", max_size=6)
names = st.text("abx[", max_size=6)


@given(patterns, names)
def test_star_and_question_mark_match(pattern: str, name: str) -> None:
    expected = re.fullmatch(pattern.replace("*", ".*").replace("?", "."), name) is not None
    assert matches(pattern, name) is expected
    if not is_pattern(pattern):
        assert matches(pattern, name) is (pattern == name)
        assert specificity(pattern) == len(pattern)


def test_other_characters_are_literal() -> None:
    assert matches("v[1].*", "v[1].\n")
    assert not matches("v[1]", "v1")
    assert not is_pattern("v[1]")


@given(patterns, patterns, names)
def test_common_match_of_two_patterns_is_found(first: str, second: str, name: str) -> None:
    common = common_name(first, second)
    if common is None:
        assert not (matches(first, name) and matches(second, name))
    else:
        assert matches(first, common)
        assert matches(second, common)


def test_a_pattern_with_many_stars_takes_no_time() -> None:
    # One try after the other would take longer than any test run.
    assert not matches("*a" * 30 + "b", "a" * 255)
    assert matches("*a" * 30 + "*", "a" * 255)
    assert matches("a*?b*", "axxb")


@given(st.lists(patterns, unique=True, max_size=12))
def test_each_ambiguous_pattern_is_found_with_the_first_such_one(names: list[str]) -> None:
    expected = []
    for index, name in enumerate(names):
        equal = (other for other in names[:index] if specificity(other) == specificity(name))
        clash = next(
            ((other, both) for other in equal if (both := common_name(other, name)) is not None), None
        )
        if clash is not None:
            expected.append((name, *clash))
    assert list(ambiguous(names)) == expected


@pytest.mark.parametrize(
    ("shape", "found"),
    [("web{:04}-*", 0), ("*-web{:04}", 0), ("web*-{:04}", 0), ("web{:04}-??", 0), ("*a{:04}*", 1999)],
)
def test_work_to_find_ambiguous_patterns_is_proportional_to_their_number(
    shape: str, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0

    def counted(compare: Callable[[str, str], str | None], first: str, second: str) -> str | None:
        nonlocal compared
        compared += 1
        return compare(first, second)

    monkeypatch.setattr(patterns_module, "common_name", partial(counted, common_name))
    assert len(list(ambiguous(map(shape.format, range(2000))))) == found
    assert compared <= 2000
