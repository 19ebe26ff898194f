"""Every case of `bench/acceptance.py` is a valid replay; the complete matrix takes minutes."""

from __future__ import annotations

import pytest
from acceptance import Case, all_cases

# A replay of a trace that is not there cannot be built.
CASES = [case for case in all_cases(full=True) if not case.missing]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_is_a_valid_replay(case: Case) -> None:
    assert len(case.scenario().vms) >= 2
