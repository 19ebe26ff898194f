"""Results of other projects' test suites, parsed from their output."""

from __future__ import annotations

import pytest
from suite_results import EXPECTED, FAILED, PASSED, REASONS, SKIPPED, result_of_blktests, result_of_unittest


@pytest.mark.parametrize(
    ("output", "result"),
    [
        ("Ran 1 test in 2.1s\n\nOK\n\nteardown: ctrl: /dev/nvme0\n", PASSED),
        ("Ran 1 test in 1.4s\n\nOK (skipped=1)\n\nUsing nvme binary\n", SKIPPED),
        ("FAIL\n\nRan 1 test in 2.3s\n\nFAILED (failures=1)\n\nsetup: ctrl\n", FAILED),
        ("Traceback (most recent call last):\nModuleNotFoundError: OK\n", FAILED),
        ("", FAILED),
    ],
)
def test_result_of_a_unittest_is_its_last_verdict(output: str, result: str) -> None:
    assert result_of_unittest(output) == result


@pytest.mark.parametrize(
    ("output", "result"),
    [
        (
            "nvme/003 (tr=tcp) (keep-alives)\nnvme/003 (tr=tcp) (keep-alives) [passed]\n    runtime  24s\n",
            PASSED,
        ),
        ("nvme/012 (tr=tcp) (mkfs) [not run]\n    command mkfs.xfs is not available\n", SKIPPED),
        ("nvme/010 (bd=device) (fio) [passed]\nnvme/010 (bd=file) (fio) [failed]\n    --- 010.out\n", FAILED),
        ("nvme/010 (bd=device) (fio) [passed]\nnvme/010 (bd=file) (fio) [not run]\n", PASSED),
        ("common/rc: line 235: value too great for base\n", FAILED),
    ],
)
def test_blktest_passes_unless_it_failed_under_a_condition(output: str, result: str) -> None:
    assert result_of_blktests(output) == result


def test_each_test_that_does_not_pass_has_one_reason() -> None:
    names = [name for _, _, names in REASONS for name in names.split()]
    assert len(names) == len(set(names)) == len(EXPECTED)
    assert set(EXPECTED.values()) == {FAILED, SKIPPED}
