"""Checks of a program that the configuration names before the daemon runs it."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def why_not_run(program: Path, *, as_root: bool) -> str:
    """Why a program may not be run; empty if it may. `as_root`: only root must be able to change it."""
    if not program.is_absolute():
        return "is not an absolute path"
    try:
        real = program.resolve(strict=True)
        status = real.stat()
    except OSError as error:
        return f"cannot be run: {error.strerror}"
    if not stat.S_ISREG(status.st_mode):
        return "is not a file"
    if not os.access(real, os.X_OK):
        return "is not executable"
    if not as_root:
        return ""
    problem = _why_not_trusted(status)
    if problem:
        return problem
    # Write access to one of its directories would allow replacing the program.
    for folder in dict.fromkeys([*real.parents, *program.parents]):
        try:
            problem = _why_not_trusted(folder.stat())
        except OSError as error:
            return f"cannot be run: {folder}: {error.strerror}"
        if problem:
            return f"is in {folder}, which {problem}"
    return ""


def _why_not_trusted(status: os.stat_result) -> str:
    if status.st_uid != 0:
        return "is not owned by root"
    sticky_folder = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky_folder:
        return "is writable by users other than root"
    return ""
