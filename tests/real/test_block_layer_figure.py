"""The figure of the papers that is measured in real time on the kernel's block layer."""

from __future__ import annotations

import pytest
from cgroup_groups import prompted

from papers.outcome import Agreement, run_figures
from papers.registry import FIGURES
from slo_ctl.base.progress import Silent

IN_REAL_TIME = "fast15:1"


@pytest.mark.slow
def test_quick_run_in_real_time() -> None:
    with prompted():
        result = run_figures([FIGURES[IN_REAL_TIME]], quick=True, seed=1, jobs=1, progress=Silent())
    figure = result.figures[0]
    if figure.agreement is Agreement.NOT_RUN:
        pytest.skip(figure.note)
    wrong = [rule for rule in figure.rules if rule.agreement is Agreement.DIFFERS]
    assert not wrong, "\n".join(f"{rule.rule}: {rule.ours} {rule.reason}" for rule in wrong)
