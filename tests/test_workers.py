"""Workers that die, such as in a sweep."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest
from dying_tasks import die, fail_at_three, square

from slo_ctl.base.errors import UserError
from slo_ctl.base.workers import MAX_DEATHS, Arguments, GivenUp, Workers, on_processes, report


def run(arguments: dict[int, Arguments], jobs: int) -> tuple[dict[int, int | GivenUp], int]:
    """Results, and how often a task was started again."""
    again: list[None] = []
    with Workers(
        square, arguments, jobs, most_deaths=MAX_DEATHS, note_death=lambda: again.append(None)
    ) as workers:
        return dict(workers), len(again)


@pytest.mark.parametrize("jobs", [1, 3])
def test_task_that_kills_workers_is_given_up_alone(jobs: int) -> None:
    # First, so that it kills workers before any other task is done.
    found, again = run({number: (number, frozenset({0})) for number in range(6)}, jobs)
    assert found.pop(0) == GivenUp(f"{MAX_DEATHS} worker processes died during it")
    assert found == {number: number * number for number in range(1, 6)}
    assert again == MAX_DEATHS - 1


def test_every_worker_dies_once_and_nothing_is_missing(tmp_path: Path) -> None:
    fatal = frozenset(range(3))
    found, _ = run({number: (number, fatal, tmp_path / str(number)) for number in fatal}, 2)
    assert found == {number: number**2 for number in fatal}


def test_nothing_to_do_starts_no_process() -> None:
    assert run({}, 4) == ({}, 0)
    assert not multiprocessing.active_children()


def test_a_dead_process_is_an_error_and_not_waited_for() -> None:
    with pytest.raises(UserError, match="a worker process died"):
        list(on_processes(die, range(3), 2))


def test_an_error_of_a_task_names_its_place_in_the_task() -> None:
    with pytest.raises(ValueError, match="3") as raised:
        list(on_processes(fail_at_three, range(6), 2))
    assert any("fail_at_three" in note for note in raised.value.__notes__)


def test_results_are_in_the_order_of_the_items() -> None:
    assert list(on_processes(square, range(20), 3)) == [number**2 for number in range(20)]


def count_until_stopped(file: Path) -> float:
    """Reports progress for ever."""
    file.touch()
    done = 0.0
    try:
        while True:
            report(1.0)
            done += 1.0
            time.sleep(0.01)
    except KeyboardInterrupt:
        return done


def test_stopped_tasks_return_what_they_have(tmp_path: Path) -> None:
    """Ctrl-C reaches the parent in a function that it is called back with."""
    reported: list[float] = []

    def advance(amount: float) -> None:
        reported.append(amount)
        if len(reported) == 20:
            raise KeyboardInterrupt

    files = {number: (tmp_path / str(number),) for number in range(3)}
    with Workers(count_until_stopped, files, 2, advance=advance) as workers:
        with pytest.raises(KeyboardInterrupt):
            list(workers)
        workers.stop()
        found = dict(workers)
    started = {number for number, (file,) in files.items() if file.exists()}
    assert found.keys() == started < files.keys()
