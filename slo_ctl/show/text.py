"""Text that others chose (VM names, file names), made safe to put on a terminal."""

from __future__ import annotations

from slo_ctl.printable import printable

__all__ = ["printable"]
