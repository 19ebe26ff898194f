"""Which version of slo-ctl this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def tool_version() -> str:
    """The installed version; `0+unknown` when run from a tree that was never installed."""
    try:
        return version("slo-ctl")
    except PackageNotFoundError:
        return "0+unknown"
