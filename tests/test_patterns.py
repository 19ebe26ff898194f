"""Patterns for names, compared with Python's regular expressions."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.base.patterns import common_name, is_pattern, matches, specificity

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
