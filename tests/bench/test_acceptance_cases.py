"""Every case of `bench/acceptance.py` is a valid replay; the complete matrix takes minutes."""

from __future__ import annotations

import pytest
from acceptance import Case, all_cases


@pytest.mark.parametrize("case", list(all_cases(full=True)), ids=lambda case: case.name)
def test_case_is_a_valid_replay(case: Case) -> None:
    if not case.missing:
        assert len(case.scenario().vms) >= 2
