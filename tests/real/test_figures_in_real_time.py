"""Figures of the papers that are measured in real time: on the kernel's block layer, on a real drive."""

from __future__ import annotations

from pathlib import Path

import pytest
from cgroup_groups import prompted

from papers.outcome import FIGURES, Agreement, FigureOutcome, run_figures
from papers.serra.real_drive import FOLDER
from slo_ctl.base.progress import Silent
from slo_ctl.profile.target import MADE_FILE


def quick_run(key: str) -> FigureOutcome:
    result = run_figures([FIGURES[key]], quick=True, seed=1, jobs=1, progress=Silent())
    figure = result.figures[0]
    if figure.agreement is Agreement.NOT_RUN:
        pytest.skip(figure.note)
    return figure


@pytest.mark.slow
def test_weights_of_the_block_layer() -> None:
    """A difference from the paper must have a stated reason."""
    with prompted():
        figure = quick_run("fast15:1")
    wrong = [rule for rule in figure.rules if rule.agreement is Agreement.DIFFERS]
    assert not wrong, "\n".join(f"{rule.rule}: {rule.ours} {rule.reason}" for rule in wrong)


@pytest.mark.slow
def test_a_profile_of_a_real_drive_leaves_no_file() -> None:
    """Rules about times depend on other users of the drive, so only the tables are checked."""
    before = made_files()
    figure = quick_run("serra:real-drive")
    assert made_files() == before
    times = next(table for table in figure.tables if table.title == "Access time")
    assert len({cell.row for cell in times.cells}) == 8
    assert all(cell.mean > 0 for cell in times.cells if cell.row.endswith("sweep"))


def made_files() -> set[Path]:
    return set(FOLDER.glob(f"{MADE_FILE}.*"))
