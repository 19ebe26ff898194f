"""The command line: a module for each command, imported only when that command runs."""

from __future__ import annotations

import os
import signal
import sys

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
"""Of all commands, with their meanings."""


def main() -> None:
    """Run the command line of this process and exit with one of EXIT_STATUSES."""
    # During the imports there is nothing to clean up, and a KeyboardInterrupt would print a traceback.
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(EXIT_INTERRUPTED))
    from slo_ctl.cli.app import run

    try:
        signal.signal(signal.SIGINT, before)
        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        status = EXIT_INTERRUPTED
    sys.exit(status)
