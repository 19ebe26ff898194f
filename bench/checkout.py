"""Imported first by every benchmark: what it measures is the checkout that it lies in.

Python puts the folder of a script on its path, not the one above it, so that `slo_ctl` and the other packages
would be those that are installed, perhaps from another checkout. Processes that a benchmark starts inherit
the path. Helpers of tests/real are found too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REAL = ROOT / "tests" / "real"

sys.path.insert(0, str(ROOT))
sys.path.append(str(REAL))
_inherited = os.environ.get("PYTHONPATH")
os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{_inherited}" if _inherited else str(ROOT)
