"""Every benchmark imports this module first, so that it measures the checkout that it belongs to.

Python puts the directory of a script on its path, but not its parent; without this module, `slo_ctl` and the
other packages would be the installed ones, perhaps of another checkout. Child processes inherit the path.
Helpers of tests/real can be imported, too. Ctrl-C and SIGTERM end a benchmark without a traceback.
"""

from __future__ import annotations

import os
import shutil
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


def require(*programs: str, root: bool = False) -> None:
    """Exit with a message unless these programs are installed and, with `root`, this process runs as root."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        sys.exit(f"not installed: {', '.join(missing)}")
    if root and os.geteuid() != 0:
        sys.exit("run it as root")


def cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


OF_UNIT = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}
"""Environment of a daemon that systemd/slo-ctld.service starts."""
