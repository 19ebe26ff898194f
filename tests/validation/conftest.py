"""Makes the modules of bench importable, parts of which these tests run."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "bench"))
