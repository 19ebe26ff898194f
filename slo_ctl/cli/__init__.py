"""The command line: one module per noun, each imported only when it is asked for."""

from __future__ import annotations

import os
import signal
import sys

from slo_ctl.cli.exit_codes import EXIT_INTERRUPTED


def main() -> None:
    """Run the process's command line and exit; for its status see `cli.exit_codes`."""
    # The imports take a while. Until they are done there is nothing to clean up, and an exception that is
    # raised in the middle of one would be a traceback.
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
