"""A fio that answers at once by formula, and variants that fail."""

from __future__ import annotations

import ast
import os
import signal
import sys
from pathlib import Path

import pytest

# Without json, which takes as long to import as Python to start: it runs a hundred times in some tests.
_ANSWERING = """#!{python} -IS
import os, sys, time
options = dict(word[2:].partition("=")[::2] for word in sys.argv[1:])
with open({log!r}, "a") as log:
    print(options, file=log)
{extra}
size, rw = int(options["bs"]), options["rw"]
side = "write" if "write" in rw else "read"
latency = (10.0 * size / 1024 + (5000.0 if rw.startswith("rand") else 100.0)) * 1000
written = int(options.get("io_size", options["size"]))
count = max(1, written // size)
bandwidth = {bandwidth}
answer = {{"total_ios": count, "lat_ns": {{"mean": latency}}, "runtime": 50}}
job = {{"error": 0, side: answer | {{"bw_bytes": bandwidth, "io_bytes": written}}}}
print("fio: a note before the answer")
print(str({{"jobs": [job]}}).replace("'", '"'))
"""


def install(folder: Path, extra: str = "", bandwidth: str = "1e8") -> Path:
    """Install it into `folder`, to be first on PATH; returns the log of its jobs.

    `bandwidth` is an expression in bytes/s, which may use `size` and `rw`.
    """
    folder.mkdir(exist_ok=True)
    log = folder / "fio.log"
    program = folder / "fio"
    program.write_text(
        _ANSWERING.format(python=sys.executable, log=str(log), extra=extra, bandwidth=bandwidth)
    )
    program.chmod(0o755)
    return log


def put_first(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Put `folder` first on PATH."""
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def jobs_run(log: Path) -> list[dict[str, str]]:
    """The options of every call."""
    return [ast.literal_eval(line) for line in log.read_text().splitlines()]


NO_SPACE = 'sys.exit("fio: io_u error on file x: No space left on device: write offset=0")'


def killed_after(log: Path, count: int) -> str:
    """Code that kills it when it is called for the `count` + 1st time."""
    return f"if sum(1 for _ in open({str(log)!r})) > {count}: os.kill(os.getpid(), {signal.SIGKILL:d})"
