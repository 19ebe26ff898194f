"""Why a history cannot be kept or read, in words for an operator."""

from __future__ import annotations

import errno
import os
import sqlite3
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PRIMARY_CODE_BITS = 0xFF
"""SQLite puts details of an error above the lowest byte of its code."""

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_REASONS = {
    sqlite3.SQLITE_READONLY: ("{path} is read-only", "make it and its folder writable for the daemon"),
    sqlite3.SQLITE_PERM: ("{path} may not be opened", "make it and its folder writable for the daemon"),
    sqlite3.SQLITE_CANTOPEN: ("{path} cannot be opened", "check that its folder is there and writable"),
    sqlite3.SQLITE_BUSY: ("{path} is locked by another program", "end what holds it open"),
    sqlite3.SQLITE_LOCKED: ("{path} is locked by another program", "end what holds it open"),
}
_CODES = {
    errno.ENOSPC: sqlite3.SQLITE_FULL,
    errno.EDQUOT: sqlite3.SQLITE_FULL,
    errno.EROFS: sqlite3.SQLITE_READONLY,
    errno.EACCES: sqlite3.SQLITE_PERM,
    errno.EPERM: sqlite3.SQLITE_PERM,
}
"""What the system and SQLite both have a number for."""
_FULL = ("no space left for {path}", "free some space, or set [history] max_size lower")


class HistoryError(Exception):
    """The history cannot be written or read at the moment; the daemon goes on without and tries again."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.reason} ({self.hint})" if self.hint else self.reason


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file itself is broken, so that nothing but a new one helps."""
    return _code(error) in _DAMAGED


def explained(error: sqlite3.Error | OSError, path: Path) -> HistoryError:
    """`error`, met while working on the history at `path`, in words."""
    code = _CODES.get(error.errno or 0, 0) if isinstance(error, OSError) else _code(error)
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _is_full(path.parent)):
        reason, hint = _FULL
    elif code in _DAMAGED:
        reason, hint = "{path} is damaged", "move it away: the daemon then begins a new one"
    else:
        reason, hint = _REASONS.get(code, (f"{{path}}: {error}", "the system log may say more"))
    return HistoryError("history: " + reason.format(path=path), hint)


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", None) or 0) & PRIMARY_CODE_BITS


def _is_full(folder: Path) -> bool:
    """SQLite tells some writes to a full file system as plain I/O errors."""
    try:
        return os.statvfs(folder).f_bavail == 0
    except OSError:
        return False
