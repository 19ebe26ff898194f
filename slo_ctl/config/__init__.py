"""`slo-ctl.toml` and `conf.d/*.toml` as typed, checked settings."""

from __future__ import annotations

from slo_ctl.config.load import load
from slo_ctl.config.settings import (
    DEFAULTS,
    Config,
    DaemonConfig,
    DeviceConfig,
    HistoryConfig,
    LibvirtConfig,
    VmConfig,
)

__all__ = [
    "DEFAULTS",
    "Config",
    "DaemonConfig",
    "DeviceConfig",
    "HistoryConfig",
    "LibvirtConfig",
    "VmConfig",
    "load",
]
