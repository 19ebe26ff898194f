"""Results of tests of nvme-cli and blktests against the emulated SSD, with the reasons of failures."""

from __future__ import annotations

import re
from collections.abc import Mapping

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
REASONS = (
    (FAILED, "interrupts, which NVMe over Fabrics does not have", "nvme_get_features_test"),
    (FAILED, "Write Uncorrectable is not supported", "nvme_writeuncor_test"),
    (SKIPPED, "Get LBA Status is not supported", "nvme_get_lba_status_test nvme_lba_status_log_test"),
    (
        FAILED,
        "configures the kernel's own target",
        "nvme/031 nvme/033 nvme/034 nvme/036 nvme/037 nvme/038 nvme/051 nvme/057 nvme/058",
    ),
    (FAILED, "DH-HMAC-CHAP is not supported", "nvme/041 nvme/042 nvme/043 nvme/044 nvme/045"),
    (SKIPPED, "TLS and concatenation are not supported", "nvme/062 nvme/063"),
    (SKIPPED, "reservations are not supported", "nvme/054"),
    (
        SKIPPED,
        "for another transport or the kernel's own target",
        "nvme/002 nvme/016 nvme/017 nvme/030 nvme/032 nvme/052 nvme/055",
    ),
    (SKIPPED, "mkfs.xfs and xfs_io are not in the guest", "nvme/012 nvme/035 nvme/047 nvme/059"),
    (
        SKIPPED,
        "the guest has one CPU, no multipath, and a kernel without fault injection",
        "nvme/005 nvme/039 nvme/048 nvme/050 nvme/060",
    ),
    (SKIPPED, "offloading network hardware", "nvme/056"),
)
"""Results of tests that do not pass, with their reasons."""
EXPECTED: Mapping[str, str] = {name: result for result, _, names in REASONS for name in names.split()}


def result_of_unittest(output: str) -> str:
    """Result in the output of Python's own runner, which may be surrounded by other output."""
    verdicts = re.findall(r"^(OK(?: \(skipped)?|FAILED)", output, flags=re.MULTILINE)
    return {"OK": PASSED, "OK (skipped": SKIPPED}.get(verdicts[-1] if verdicts else "", FAILED)


def result_of_blktests(output: str) -> str:
    """Result in the output of `check` for one test, which may run it under several conditions."""
    results = re.findall(r"^\S+/\d+ .*\[(passed|failed|not run)\]", output, flags=re.MULTILINE)
    if not results or "failed" in results:
        return FAILED
    return PASSED if "passed" in results else SKIPPED
