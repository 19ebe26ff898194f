"""A fio that answers by formula, at once; and ones that fail."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_ANSWERING = """#!{python} -IS
import json, os, signal, sys, time
options = dict(word[2:].partition("=")[::2] for word in sys.argv[1:])
with open({log!r}, "a") as log:
    print(json.dumps(options), file=log)
{extra}
size, rw = int(options["bs"]), options["rw"]
side = "write" if "write" in rw else "read"
latency = (10.0 * size / 1024 + (5000.0 if rw.startswith("rand") else 100.0)) * 1000
count = max(1, int(options["io_size"]) // size)
answer = {{"total_ios": count, "lat_ns": {{"mean": latency}}, "runtime": 50, "bw_bytes": 1e8}}
job = {{"error": 0, side: answer}}
print("fio: a note before the answer")
print(json.dumps({{"jobs": [job]}}))
"""


def install(folder: Path, extra: str = "") -> Path:
    """Put it into `folder`, to be first on PATH; returns the log of what it was asked."""
    folder.mkdir(exist_ok=True)
    log = folder / "fio.log"
    program = folder / "fio"
    program.write_text(_ANSWERING.format(python=sys.executable, log=str(log), extra=extra))
    program.chmod(0o755)
    return log


NO_SPACE = 'sys.exit("fio: io_u error on file x: No space left on device: write offset=0")'


def killed_after(log: Path, count: int) -> str:
    """Code that has it killed when it is called for the `count` + 1st time."""
    return f"if sum(1 for _ in open({str(log)!r})) > {count}: os.kill(os.getpid(), signal.SIGKILL)"
