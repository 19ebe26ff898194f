"""A small file system of its own for a test."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def tmpfs(folder: Path, *options: str) -> Iterator[Path]:
    """A tmpfs at `folder`, which is created; skips the test where it cannot be mounted."""
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
        # What still has a file open, such as a server that a failed test left, is not in the way.
        subprocess.run(["umount", "-l", str(folder)], check=True)
