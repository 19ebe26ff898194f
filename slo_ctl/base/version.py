"""Which version of slo-ctl this is."""

from __future__ import annotations


def tool_version() -> str:
    """The installed version; `0+unknown` when run from a tree that was never installed."""
    # Its import takes as long as many a command.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("slo-ctl")
    except PackageNotFoundError:
        return "0+unknown"
