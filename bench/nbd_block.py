"""A block device for the kernel's I/O schedulers: a loop device over a file or an NBD export."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

START_S = 10.0
NBDFUSE, NBDINFO = (shutil.which(name) or name for name in ("nbdfuse", "nbdinfo"))
EXPORT_PROGRAMS = ("nbdfuse", "nbdinfo")
"""From the package libnbd-bin."""


def over_file(stack: ExitStack, size_bytes: int) -> str:
    """A loop device over a file that is written, not sparse: first writes to a hole are the file system's
    work.
    """
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slo-ctl-bench-", dir="/var/tmp")))
    with (folder / "image").open("wb") as file:
        for _ in range(0, size_bytes, 1 << 20):
            file.write(bytes(1 << 20))
    return _attached(stack, folder / "image")


def over_export(stack: ExitStack, uri: str) -> str:
    """A loop device over nbdfuse's file of an NBD export; marked as rotational in the kernel if the export
    is.
    """
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slo-ctl-bench-")))
    (folder / "disk").touch()
    server = subprocess.Popen([NBDFUSE, str(folder / "disk"), uri])
    stack.callback(server.wait)
    stack.callback(subprocess.run, ["umount", "--lazy", str(folder / "disk")], check=False)
    deadline = time.monotonic() + START_S
    while (folder / "disk").stat().st_size == 0:
        if time.monotonic() > deadline or server.poll() is not None:
            sys.exit(f"nbdfuse has no file for {uri}")
        time.sleep(0.1)
    path = _attached(stack, folder / "disk")
    # bfq waits longer and merges queues less on rotating disks; a loop device over FUSE is never rotational.
    flag = Path("/sys/class/block") / Path(path).name / "queue" / "rotational"
    stack.callback(flag.write_text, flag.read_text())
    flag.write_text(str(int(_rotates(uri))))
    return path


def _rotates(uri: str) -> bool:
    output = subprocess.run([NBDINFO, "--json", uri], capture_output=True, text=True, check=True).stdout
    return bool(json.loads(output)["exports"][0]["is_rotational"])


def _attached(stack: ExitStack, file: Path) -> str:
    command = ["losetup", "--find", "--show", "--direct-io=on", str(file)]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    stack.callback(subprocess.run, ["losetup", "--detach", path], check=False)
    return path
