"""Consequences of a worker's death in a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest
from dying_tasks import square

from slo_ctl.base.progress import Silent
from slo_ctl.replay.workers import MAX_DEATHS, GivenUp, on_local_workers


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize("jobs", [1, 3])
def test_task_that_kills_workers_is_given_up_alone(jobs: int) -> None:
    progress = Notes()
    # First, so that it kills workers before any other task is done.
    arguments = {number: (number, frozenset({0})) for number in range(6)}
    found = dict(on_local_workers(square, arguments, jobs, progress))
    assert found.pop(0) == GivenUp(f"{MAX_DEATHS} worker processes died during it")
    assert found == {number: number * number for number in range(1, 6)}
    assert len(progress.notes) == MAX_DEATHS - 1


def test_every_worker_dies_once_and_nothing_is_missing(tmp_path: Path) -> None:
    fatal = frozenset(range(3))
    arguments = {number: (number, fatal, tmp_path / str(number)) for number in fatal}
    assert dict(on_local_workers(square, arguments, 2, Silent())) == {number: number**2 for number in fatal}


def test_nothing_to_do_starts_no_process() -> None:
    assert list(on_local_workers(square, {}, 4, Silent())) == []
