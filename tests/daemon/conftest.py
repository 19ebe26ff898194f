"""Makes helpers of tests/real importable."""

from __future__ import annotations

import sys
from pathlib import Path

for helpers in ("real", "show"):
    sys.path.insert(0, str(Path(__file__).parents[1] / helpers))
