"""Whether a program that an administrator names may be run by us."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def why_not_run(program: Path, *, as_root: bool) -> str:
    """Empty if it may be run. `as_root`: only root may be able to change or replace it."""
    if not program.is_absolute():
        return "is not an absolute path"
    try:
        real = program.resolve(strict=True)
        found = real.stat()
    except OSError as error:
        return f"cannot be run: {error.strerror}"
    if not stat.S_ISREG(found.st_mode):
        return "is not a file"
    if not os.access(real, os.X_OK):
        return "is not executable"
    if not as_root:
        return ""
    problem = _why_not_roots(found)
    if problem:
        return problem
    # Write access to one of its directories would allow replacing the program.
    for folder in dict.fromkeys([*real.parents, *program.parents]):
        try:
            problem = _why_not_roots(folder.stat())
        except OSError as error:
            return f"cannot be run: {folder}: {error.strerror}"
        if problem:
            return f"is in {folder}, which {problem}"
    return ""


def _why_not_roots(found: os.stat_result) -> str:
    if found.st_uid != 0:
        return "is not owned by root"
    sticky_folder = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky_folder:
        return "is writable by others than root"
    return ""
