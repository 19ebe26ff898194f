"""The file that is made to be measured: locked as long as its maker lives, so that what one left behind can
be told from one in use, on this host or another."""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from slo_ctl.errors import UserError
from slo_ctl.serra.target import MADE_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NAME = re.compile(re.escape(MADE_FILE) + r"\.\d+")
_TRIES = 5
"""Somebody who looks for files left behind may take ours before it is locked."""


class MadeFile:
    """A file of ours, with room for `size_bytes`."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        """Make it. Raises UserError when that is not possible."""
        self.path = path
        self._descriptor = _create(path)
        try:
            os.posix_fallocate(self._descriptor, 0, size_bytes)
        except OSError as error:
            self.remove()
            raise UserError(
                f"{path}: {error.strerror}", "use less of it (--file-size, --bytes), or name another place"
            ) from None
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove it."""
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)


def remove_stale(folder: Path) -> list[Path]:
    """Remove files whose makers were killed; returns them. What cannot be told, or is not ours, stays."""
    return [
        path
        for path in sorted(folder.glob(f"{MADE_FILE}.*"))
        if _NAME.fullmatch(path.name) and _remove_if_stale(path)
    ]


def _remove_if_stale(path: Path) -> bool:
    try:
        # Neither a link to somebody's file, nor a pipe to wait for.
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    with _closing(descriptor):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        except OSError:
            return False  # In use, gone already, or on a file system without locks.
    return True


def _create(path: Path) -> int:
    for _ in range(_TRIES):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}", "name another place") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            return descriptor  # A file system without locks: nobody else can lock it, either.
        except BaseException:
            path.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)
    raise UserError(f"{path}: somebody removes it again and again", "name another place")


@contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)
