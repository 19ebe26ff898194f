"""slo-ctl: a VM-aware storage QoS controller for KVM hosts."""

from __future__ import annotations


def tool_version() -> str:
    """The installed version; `0+unknown` in a source tree that is not installed."""
    # Imported here because it takes as long as a short command.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("slo-ctl")
    except PackageNotFoundError:
        return "0+unknown"
