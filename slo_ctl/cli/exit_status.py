"""Exit statuses of all commands."""

from __future__ import annotations

import signal

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_CHECK = 3
EXIT_UNREACHABLE = 4
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_STATUSES = {
    EXIT_OK: "success",
    EXIT_FAILURE: "an unexpected error, or a setting that could not be applied",
    EXIT_USAGE: "a usage error",
    EXIT_CHECK: "a check failed: an SLO that is not met, changes pending, a requirement missing",
    EXIT_UNREACHABLE: "the daemon, or the server of a device, is not reachable",
    EXIT_INTERRUPTED: "interrupted",
}
"""Meanings, as manual pages list them."""
