"""When the value of a knob counts as the wanted one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.model.setting import SettingValue, change_of, in_force, value_text

WORDS = st.lists(st.from_regex(r"[a-z_]+=[0-9]+", fullmatch=True), max_size=5).map(" ".join)
VALUES: st.SearchStrategy[SettingValue] = st.one_of(st.none(), st.floats(-1e9, 1e9), WORDS)


@given(VALUES)
def test_value_read_back_as_written_is_in_force(value: SettingValue) -> None:
    assert in_force(value, value)
    assert isinstance(value_text(value), str)


@given(WORDS, WORDS)
def test_word_in_a_list_of_choices_is_in_force(wanted: str, others: str) -> None:
    assert in_force(wanted, f"{others} {wanted}")
    assert in_force(wanted, others) == (set(wanted.split()) <= set(others.split()))


@given(WORDS, st.one_of(st.none(), st.floats()))
def test_word_never_equals_a_number_or_none(words: str, other: float | None) -> None:
    assert not in_force(words, other)
    assert not in_force(other, words)


def test_numbers_are_compared_with_tolerance() -> None:
    assert in_force(0.1 + 0.2, 0.3)
    assert not in_force(300.0, 301.0)
    assert not in_force(None, 0.0)


def test_change_text_shows_only_differences() -> None:
    before = "bfq back_seek_max=1 low_latency=1 slice_idle_us=8000"
    assert change_of(before, "bfq low_latency=0 slice_idle_us=8000") == (
        "bfq low_latency=1",
        "bfq low_latency=0",
    )
    assert change_of("mq-deadline front_merges=1", "bfq low_latency=0") == (
        "mq-deadline",
        "bfq low_latency=0",
    )
    assert change_of(None, "enable=1") == (None, "enable=1")
    assert change_of(100.0, 300.0) == (100.0, 300.0)
