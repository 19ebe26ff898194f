"""Delays of threads, added up for a VM."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.host.task_delay import MAX_THREADS, TaskDelay, Waits, delay_between

waits = st.dictionaries(
    st.text("123", min_size=1, max_size=2), st.tuples(st.integers(0, 2**63), st.integers(0, 2**63))
)


@given(waits, waits, st.floats(0.01, 100))
def test_delay_is_between_zero_and_the_elapsed_time(
    earlier: dict[str, Waits], later: dict[str, Waits], window_s: float
) -> None:
    delay = delay_between(earlier, later, window_s)
    assert delay.waits >= 0
    assert 0 <= delay.delay_s <= 1.51 * window_s * max(1, delay.threads)
    assert delay.threads <= len(earlier.keys() & later.keys())


def test_delay_is_the_sum_over_threads() -> None:
    earlier = {"1": (10, 10**9), "2": (5, 5 * 10**8), "3": (9, 9 * 10**12)}
    later = {"1": (20, 10**9 + 10**8), "2": (7, 6 * 10**8), "3": (10, 10**12), "4": (99, 10**9)}
    delay = delay_between(earlier, later, 1.0)
    assert (delay.waits, delay.delay_s, delay.threads) == (12, 0.2, 2)


def proc(folder: Path, accounting: str | None, **processes: int) -> Path:
    (folder / "sys" / "kernel").mkdir(parents=True)
    if accounting is not None:
        (folder / "sys" / "kernel" / "task_delayacct").write_text(f"{accounting}\n")
    for pid, threads in processes.items():
        for number in range(threads):
            (folder / pid.removeprefix("p") / "task" / f"{pid.removeprefix('p')}{number}").mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("accounting", "message"), [("0", "sysctl kernel.task_delayacct=1"), (None, "CONFIG_")]
)
def test_disabled_delay_accounting_says_what_to_do(
    tmp_path: Path, accounting: str | None, message: str
) -> None:
    delay = TaskDelay(proc(tmp_path, accounting, p1=1))
    assert message in delay.problem
    assert delay.sample({"a": ["1"]}) == {}


def test_vms_with_many_threads_are_sampled_in_turns(tmp_path: Path) -> None:
    asked: list[int] = []

    def read(thread: int) -> Waits:
        asked.append(thread)
        return len(asked), 1000 * len(asked)

    half = MAX_THREADS // 2 + 1
    delay = TaskDelay(proc(tmp_path, "1", p1=half, p2=half, p3=half), read)
    pids = {"a": ["1"], "b": ["2"], "c": ["3"]}
    seen: set[str] = set()
    for _ in range(6):
        asked.clear()
        seen |= delay.sample(pids).keys()
        assert 0 < len(asked) <= MAX_THREADS
    assert seen == {"a", "b", "c"}


def test_ended_thread_and_refusal_are_handled(tmp_path: Path) -> None:
    failure = errno.ESRCH

    def read(_: int) -> Waits:
        raise OSError(failure, "no")

    delay = TaskDelay(proc(tmp_path, "1", p1=1), read)
    assert delay.sample({"a": ["1"]}) == {}
    assert delay.problem == ""
    failure = errno.EPERM
    assert delay.sample({"a": ["1"]}) == {}
    assert "taskstats" in delay.problem


def test_lack_of_descriptors_does_not_end_the_reading_for_ever(tmp_path: Path) -> None:
    failures = [errno.EMFILE, errno.ENOBUFS]

    def read(_thread: int) -> Waits:
        if failures:
            raise OSError(failures.pop(), "for now")
        return 1, 1000

    delay = TaskDelay(proc(tmp_path, "1", p1=1), read)
    assert [len(delay.sample({"a": ["1"]})) for _ in range(4)] == [0, 0, 0, 1]
    assert delay.problem == ""


def test_a_host_without_pyroute2_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyroute2.netlink.taskstats", None)
    delay = TaskDelay(proc(tmp_path, "1", p1=1))
    assert delay.sample({"a": ["1"]}) == {}
    assert "pyroute2" in delay.problem
