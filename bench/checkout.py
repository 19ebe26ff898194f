"""Imported first by every benchmark, so that it measures the checkout that it belongs to.

Python puts the directory of a script on its path, not the one above it; without this, `slo_ctl` and the other
packages would be the installed ones, perhaps of another checkout. Child processes inherit the path. Helpers
of tests/real are found too.
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
