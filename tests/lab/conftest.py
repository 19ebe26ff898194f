"""Helpers that these tests share with those of profiles are in tests/profile."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "profile"))

from command_line import device, place

__all__ = ["device", "place"]
