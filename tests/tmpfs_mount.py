"""A small private file system for a test."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def tmpfs(folder: Path, *options: str) -> Iterator[Path]:
    """Mount a tmpfs at `folder`, which is created; skip the test if that is not possible."""
    if os.geteuid() != 0:
        pytest.skip("a mount needs root")
    folder.mkdir()
    words = ["-o", ",".join(options)] if options else []
    command = ["mount", "-t", "tmpfs", *words, "slo-ctl-test", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        # A lazy unmount succeeds even if a file is open, e.g. by a server that a failed test left running.
        subprocess.run(["umount", "-l", str(folder)], check=True)
