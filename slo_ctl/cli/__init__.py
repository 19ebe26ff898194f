"""The command line: one module per noun, each imported only when it is asked for."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the process's command line and exit.

    For its status see `cli.exit_codes`.
    """
    from slo_ctl.cli.app import run

    sys.exit(run(sys.argv[1:]))
