"""The tables of a history, and the steps that bring an older file up to date.

The version of a file is its `user_version`: how many of MIGRATIONS it has been through. A step, once
released, is never changed; a change of the tables is a new step. Every step is one transaction.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from slo_ctl.base.files import move_command

# Why a history cannot be kept or read, in words for an operator.

_PRIMARY_CODE_BITS = 0xFF
"""SQLite puts details of an error above the lowest byte of its code."""

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_REASONS = {
    sqlite3.SQLITE_READONLY: ("{path} is read-only", "make it and its directory writable for the daemon"),
    sqlite3.SQLITE_PERM: ("{path} may not be opened", "make it and its directory writable for the daemon"),
    sqlite3.SQLITE_CANTOPEN: ("{path} cannot be opened", "check that its directory is there and writable"),
    sqlite3.SQLITE_BUSY: ("{path} is locked by another program", "stop the program that has it open"),
    sqlite3.SQLITE_LOCKED: ("{path} is locked by another program", "stop the program that has it open"),
}
_CODES = {
    errno.ENOSPC: sqlite3.SQLITE_FULL,
    errno.EDQUOT: sqlite3.SQLITE_FULL,
    errno.EROFS: sqlite3.SQLITE_READONLY,
    errno.EACCES: sqlite3.SQLITE_PERM,
    errno.EPERM: sqlite3.SQLITE_PERM,
}
"""Problems that have an error code of the system and of SQLite."""
_FULL = ("no space left for {path}", "free some space, or set [history] max_size lower")


class HistoryError(Exception):
    """The history cannot be written or read at the moment; the daemon continues without and tries again."""

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
        reason, hint = "{path} is damaged", f"{move_command(path)}; the daemon then begins a new one"
    else:
        # The text of an OSError names the file, which this does already.
        words = error.strerror or error if isinstance(error, OSError) else error
        reason, hint = _REASONS.get(code, (f"{{path}}: {words}", "the system log may say more"))
    return HistoryError("history: " + reason.format(path=path), hint)


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", None) or 0) & _PRIMARY_CODE_BITS


def _is_full(folder: Path) -> bool:
    """SQLite reports some writes to a full file system as plain I/O errors."""
    try:
        return os.statvfs(folder).f_bavail == 0
    except OSError:
        return False


_APPLICATION_ID = 0x534C4F48
"""`SLOH` in the header of the file: databases of other programs are never written to."""

FIELDS = (
    "iops",
    "bandwidth_bytes_s",
    "p99_read_us",
    "p99_write_us",
    "throttle_wait_us",
    "target_iops",
    "share",
    "target_share",
    "ops_blocks",
    "u",
    "waf",
)
"""Columns kept of a VmStatus every epoch, under the same names."""
WORST = frozenset({"p99_read_us", "p99_write_us"})
"""A mean of percentiles says little: of these the worst is kept."""

# Rows of one moment lie together, so an epoch appends a few pages however many VMs there are. Keyed by stream
# first, every VM would dirty a page of its own in each epoch. Readers step through `epochs` and look up a row
# for each.
_FIRST = (
    """CREATE TABLE streams (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        vm TEXT NOT NULL,
        device TEXT NOT NULL,
        UNIQUE (vm, device))""",
    "CREATE TABLE epochs (at_ms INTEGER PRIMARY KEY)",
    """CREATE TABLE samples (
        at_ms INTEGER NOT NULL, stream INTEGER NOT NULL,
        iops, bandwidth_bytes_s, p99_read_us, p99_write_us, throttle_wait_us, target_iops,
        share, target_share, ops_blocks, u, waf,
        PRIMARY KEY (at_ms, stream)) WITHOUT ROWID""",
    """CREATE TABLE verdicts (
        stream INTEGER NOT NULL, at_ms INTEGER NOT NULL, verdict TEXT NOT NULL, reason TEXT NOT NULL,
        PRIMARY KEY (stream, at_ms)) WITHOUT ROWID""",
    "CREATE TABLE decisions (at_ms INTEGER NOT NULL, device TEXT NOT NULL, reason TEXT NOT NULL)",
    "CREATE INDEX decisions_at ON decisions (at_ms)",
    """CREATE TABLE outcomes (
        at_ms INTEGER NOT NULL, vm TEXT NOT NULL, lever TEXT NOT NULL, place TEXT NOT NULL,
        device TEXT NOT NULL, name TEXT NOT NULL, value, state TEXT NOT NULL, before, after,
        why TEXT NOT NULL, reason TEXT NOT NULL)""",
    "CREATE INDEX outcomes_at ON outcomes (at_ms)",
)

# Means of a minute, kept when the samples are gone; `minute_marks` are the complete minutes, with the number
# of epochs that each was made of.
_THINNING = (
    "ALTER TABLE streams ADD COLUMN seen_ms INTEGER NOT NULL DEFAULT 0",
    "UPDATE streams SET seen_ms = coalesce((SELECT max(at_ms) FROM epochs), 0)",
    "CREATE TABLE minute_marks (at_ms INTEGER PRIMARY KEY, epochs INTEGER NOT NULL)",
    """CREATE TABLE minutes (
        at_ms INTEGER NOT NULL, stream INTEGER NOT NULL, samples INTEGER NOT NULL,
        iops, bandwidth_bytes_s, p99_read_us, p99_write_us, throttle_wait_us, target_iops,
        share, target_share, ops_blocks, u, waf,
        PRIMARY KEY (at_ms, stream)) WITHOUT ROWID""",
)

_SLO_CHANGES = (
    """CREATE TABLE slo_changes (
        at_ms INTEGER NOT NULL, vm TEXT NOT NULL, user TEXT NOT NULL, what TEXT NOT NULL)""",
    "CREATE INDEX slo_changes_at ON slo_changes (at_ms)",
)

MIGRATIONS = (_FIRST, _THINNING, _SLO_CHANGES)
VERSION = len(MIGRATIONS)


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """How far a file is; 0 for a new one. HistoryError when it is not a history, or a newer release's."""
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if (application, version, tables) == (0, 0, 0):
        return 0
    if application != _APPLICATION_ID:
        raise HistoryError(f"history: {path} is another program's database", "move it away")
    if version > VERSION:
        raise HistoryError(
            f"history: {path} has schema {version} of a newer slo-ctl; this one knows up to {VERSION}",
            "install the newer slo-ctl again, or move the file away to begin a new history",
        )
    return int(version)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the file to VERSION; `connection` is in autocommit mode. HistoryError as `version_of`."""
    version = version_of(connection, path)
    if version == 0:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # has to be said before the first table
    for number, step in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in step:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
