"""The command line: one module per noun."""

from __future__ import annotations


def main() -> None:
    """Run the command line on `sys.argv` and exit with its status."""
    raise SystemExit(1)
