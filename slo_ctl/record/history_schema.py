"""Tables of a history, migrations of older files, and error messages.

The version of a file is its `user_version`, the number of MIGRATIONS that were applied. A released migration
is never changed; a change of the tables is a new one. Each migration is one transaction.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from slo_ctl.base.files import move_command

# Errors of writing and reading a history.

_PRIMARY_CODE_BITS = 0xFF
"""SQLite has details of an error above the lowest byte of its code."""

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_REASONS = {
    sqlite3.SQLITE_READONLY: ("{path} is read-only", "make it and its directory writable for the daemon"),
    sqlite3.SQLITE_PERM: ("{path} may not be opened", "make it and its directory writable for the daemon"),
    sqlite3.SQLITE_CANTOPEN: ("{path} cannot be opened", "check that its directory exists and is writable"),
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
"""SQLite's codes of errors of the system."""
_FULL = ("no space left for {path}", "free some space, or set [history] max_size lower")


class HistoryError(Exception):
    """The history cannot be written or read now; the daemon continues without it and tries again."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.reason} ({self.hint})" if self.hint else self.reason


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is damaged, so that a new one is needed."""
    return _code(error) in _DAMAGED


def history_error(error: sqlite3.Error | OSError, path: Path) -> HistoryError:
    """The HistoryError for an error of SQLite or of the system."""
    code = _CODES.get(error.errno or 0, 0) if isinstance(error, OSError) else _code(error)
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _is_full(path.parent)):
        reason, hint = _FULL
    elif code in _DAMAGED:
        reason, hint = "{path} is damaged", f"{move_command(path)}; the daemon then starts a new file"
    else:
        # Without the file name, which is in the text of an OSError.
        text = error.strerror or error if isinstance(error, OSError) else error
        reason, hint = _REASONS.get(code, (f"{{path}}: {text}", "see the system log"))
    return HistoryError("history: " + reason.format(path=path), hint)


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", None) or 0) & _PRIMARY_CODE_BITS


def _is_full(folder: Path) -> bool:
    """Whether the file system is full, which SQLite may report as an I/O error."""
    try:
        return os.statvfs(folder).f_bavail == 0
    except OSError:
        return False


_APPLICATION_ID = 0x534C4F48
"""`SLOH` in the header of the file, so that databases of other programs are never changed."""

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
"""Fields of VmStatus that are stored in every epoch, with the same names."""
WORST = frozenset({"p99_read_us", "p99_write_us"})
"""Percentiles, of which the maximum is kept instead of the mean."""

# Rows of one epoch are stored together, so that it appends a few pages for any number of VMs. With the stream
# first in the key, each VM would change a different page. Readers look up one row for each of `epochs`.
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

# Means of minutes, which are kept after their samples; `minute_marks` has the complete minutes with their
# numbers of epochs.
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
    """Version of a file; 0 if it is new. Raises HistoryError if it is not a history, or too new."""
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
            f"history: {path} has schema {version} of a newer slo-ctl; this one supports up to {VERSION}",
            "install the newer slo-ctl again, or move the file away to start a new history",
        )
    return int(version)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Migrate a file to VERSION, in autocommit mode. Raises HistoryError as `version_of`."""
    version = version_of(connection, path)
    if version == 0:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only possible before the first table
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
