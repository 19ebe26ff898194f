"""Imported first by every benchmark, so that it measures the checkout that it belongs to.

Python puts the directory of a script on its path, not the one above it; without this, `slo_ctl` and the other
packages would be the installed ones, perhaps of another checkout. Child processes inherit the path. Helpers
of tests/real are found too. Ctrl-C and SIGTERM end a benchmark without a traceback.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[1]
REAL = ROOT / "tests" / "real"

sys.path.insert(0, str(ROOT))
sys.path.append(str(REAL))
_inherited = os.environ.get("PYTHONPATH")
os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{_inherited}" if _inherited else str(ROOT)


def _report(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


sys.excepthook = _report
