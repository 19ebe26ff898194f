"""The command line: one module per noun, each imported only when it is asked for."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the process's command line and exit.

    Status 0: done; 1: an unexpected failure; 2: a mistake in what was asked; 130: interrupted.
    """
    from slo_ctl.cli.app import run

    sys.exit(run(sys.argv[1:]))
