"""What tests of this folder share is beside them; commands run below a root of the test's own."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from command_line import device, place

__all__ = ["device", "place"]
