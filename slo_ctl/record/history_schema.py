"""Tables of a history, error messages, and upkeep."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from slo_ctl.base.errors import UserError
from slo_ctl.base.files import move_command

# Errors of writing and reading a history.

_PRIMARY_CODE_BITS = 0xFF
"""SQLite has details of an error above the lowest byte of its code."""

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_NO_TEXT = "Could not decode to UTF-8"
"""Begin of an error without a code, of Python: SQLite does not notice damage within a text."""
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


class HistoryError(UserError):
    """The history cannot be written or read now; the daemon continues without it and tries again."""


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is damaged, so that a new one is needed."""
    return _code(error) in _DAMAGED


def history_error(error: sqlite3.Error | OSError, path: Path) -> HistoryError:
    """The HistoryError for an error of SQLite or of the system."""
    code = _CODES.get(error.errno or 0, 0) if isinstance(error, OSError) else _code(error)
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _is_full(path.parent)):
        reason, hint = _FULL
    elif isinstance(error, OSError) and error.errno == errno.EISDIR:
        reason, hint = "{path} is a directory", f"{move_command(path)}; the daemon then starts a new file"
    elif code in _DAMAGED:
        reason, hint = "{path} is damaged", f"{move_command(path)}; the daemon then starts a new file"
    else:
        # Without the file name, which is in the text of an OSError.
        text = error.strerror or error if isinstance(error, OSError) else error
        reason, hint = _REASONS.get(code, (f"{{path}}: {text}", "see the system log"))
    return HistoryError("history: " + reason.format(path=path), hint)


def _code(error: sqlite3.Error) -> int:
    if str(error).startswith(_NO_TEXT):
        return sqlite3.SQLITE_CORRUPT
    return int(getattr(error, "sqlite_errorcode", None) or 0) & _PRIMARY_CODE_BITS


def _is_full(folder: Path) -> bool:
    """Whether the file system is full, which SQLite may report as an I/O error."""
    try:
        return os.statvfs(folder).f_bavail == 0
    except OSError:
        return False


_APPLICATION_ID = 0x534C4F48
"""`SLOH` in the header of the file, so that databases of other programs are never changed."""

RECORDED_FIELDS = (
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

_VERSION = 3
"""`user_version` of files with these tables."""

# Rows of one epoch are stored together, so that it appends a few pages for any number of VMs. With the stream
# first in the key, each VM would change a different page. Readers look up one row for each of `epochs`.
#
# `minutes` has means of minutes, which are kept after their samples; `minute_marks` has the complete minutes
# with their numbers of epochs.
_TABLES = """
    CREATE TABLE streams (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        vm TEXT NOT NULL,
        device TEXT NOT NULL,
        seen_ms INTEGER NOT NULL DEFAULT 0,
        UNIQUE (vm, device));
    CREATE TABLE epochs (at_ms INTEGER PRIMARY KEY);
    CREATE TABLE samples (
        at_ms INTEGER NOT NULL, stream INTEGER NOT NULL,
        iops, bandwidth_bytes_s, p99_read_us, p99_write_us, throttle_wait_us, target_iops,
        share, target_share, ops_blocks, u, waf,
        PRIMARY KEY (at_ms, stream)) WITHOUT ROWID;
    CREATE TABLE minute_marks (at_ms INTEGER PRIMARY KEY, epochs INTEGER NOT NULL);
    CREATE TABLE minutes (
        at_ms INTEGER NOT NULL, stream INTEGER NOT NULL, samples INTEGER NOT NULL,
        iops, bandwidth_bytes_s, p99_read_us, p99_write_us, throttle_wait_us, target_iops,
        share, target_share, ops_blocks, u, waf,
        PRIMARY KEY (at_ms, stream)) WITHOUT ROWID;
    CREATE TABLE verdicts (
        stream INTEGER NOT NULL, at_ms INTEGER NOT NULL, verdict TEXT NOT NULL, reason TEXT NOT NULL,
        PRIMARY KEY (stream, at_ms)) WITHOUT ROWID;
    CREATE TABLE decisions (at_ms INTEGER NOT NULL, device TEXT NOT NULL, reason TEXT NOT NULL);
    CREATE INDEX decisions_at ON decisions (at_ms);
    CREATE TABLE outcomes (
        at_ms INTEGER NOT NULL, vm TEXT NOT NULL, lever TEXT NOT NULL, place TEXT NOT NULL,
        device TEXT NOT NULL, name TEXT NOT NULL, value, state TEXT NOT NULL, before, after,
        why TEXT NOT NULL, reason TEXT NOT NULL);
    CREATE INDEX outcomes_at ON outcomes (at_ms);
    CREATE TABLE slo_changes (
        at_ms INTEGER NOT NULL, vm TEXT NOT NULL, user TEXT NOT NULL, what TEXT NOT NULL);
    CREATE INDEX slo_changes_at ON slo_changes (at_ms);
"""


def has_tables(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file is a history; False if it is new. Raises HistoryError if it is anything else."""
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if (application, version, tables) == (0, 0, 0):
        return False
    if application != _APPLICATION_ID:
        raise HistoryError(f"history: {path} is another program's database", "move it away")
    if version != _VERSION:
        raise HistoryError(
            f"history: {path} has schema {version} of another slo-ctl; this one has schema {_VERSION}",
            "install that slo-ctl again, or move the file away to start a new history",
        )
    return True


def create_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables of a new file, in autocommit mode. Raises HistoryError as `has_tables`."""
    if has_tables(connection, path):
        return
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only possible before the first table
    header = f"PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {_VERSION};"
    connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} {header} COMMIT;")


# Upkeep: means of minutes, deletion by age and by size.
#
# Each step takes a few milliseconds at most, in the transaction of the caller, so that no epoch waits long.
# It deletes the samples of several epochs while an epoch adds only its own, so it catches up.

_RAW_S = 3600.0
"""How long samples of epochs are kept; later only means of minutes."""
_SHORT_OF_SPACE_RAW_S = 600.0
"""The same if the allowed size does not suffice."""
MINUTE_MS = 60_000

_STREAMS_A_STEP = 64
_EPOCHS_A_STEP = 3
_MINUTES_A_STEP = 3
_EVENTS_A_STEP = 200
_VERDICT_STREAMS_A_STEP = 8
_VACUUM_PAGES_A_STEP = 64
_FREE_SHARE = 0.25
"""Free pages are returned to the file system beyond this share of the file."""
_FILL_SHARE = 0.9
"""Share of the allowed size that is used; the rest is for pages that are temporarily free."""

_MEANS = ", ".join(
    f"max({field})" if field in WORST else f"round(avg({field}), {0 if field == 'bandwidth_bytes_s' else 3})"
    for field in RECORDED_FIELDS
)


class Upkeep:
    """Upkeep of one open history."""

    def __init__(self, connection: sqlite3.Connection, keep_s: float, max_bytes: int) -> None:
        self._connection = connection
        self._keep_ms = round(keep_s * 1000)
        self._max_bytes = max_bytes
        self._page_bytes: int = connection.execute("PRAGMA page_size").fetchone()[0]
        self._minute: int | None = None
        self._next_stream = 0
        self._minutes_complete_at: int | None = None
        self._verdicts_done = 0
        self.forgotten: set[int] = set()
        """Numbers of deleted streams, for callers that cache them."""

    def step(self, now_ms: int, *, drop_old: bool = True) -> bool:
        """Do one step within a transaction; False when there was nothing to do.

        `drop_old`: also delete what is too old.
        """
        # A list, because `or` would skip the later ones.
        return any(
            [
                self._add_minute_means(now_ms),
                self._drop_old(now_ms, now_ms - self._keep_ms if drop_old else 0),
                self._drop_for_size(now_ms),
                self._release_pages(),
            ]
        )

    def _add_minute_means(self, now_ms: int) -> bool:
        """Calculate means of one complete minute for some of the streams."""
        if self._minute is None:
            this_minute = now_ms // MINUTE_MS
            if self._minutes_complete_at == this_minute:
                return False
            found = self._query_int(
                "SELECT min(at_ms) / ? * ? FROM epochs WHERE at_ms < ? / ? * ?"
                " AND at_ms / ? * ? NOT IN (SELECT at_ms FROM minute_marks)",
                *[MINUTE_MS, MINUTE_MS, now_ms, MINUTE_MS, MINUTE_MS, MINUTE_MS, MINUTE_MS],
            )
            if found is None:
                self._minutes_complete_at = this_minute
                return False
            self._minute, self._next_stream = found, 0
        last = self._query_int(
            "SELECT max(id) FROM (SELECT id FROM streams WHERE id >= ? ORDER BY id LIMIT ?)",
            self._next_stream,
            _STREAMS_A_STEP,
        )
        if last is None:
            self._connection.execute(
                "INSERT OR IGNORE INTO minute_marks"
                " SELECT ?1, count(*) FROM epochs WHERE at_ms >= ?1 AND at_ms < ?1 + ?2",
                (self._minute, MINUTE_MS),
            )
            self._minute = None
            return True
        self._connection.execute(
            f"INSERT OR REPLACE INTO minutes SELECT ?, stream, count(*), {_MEANS}"  # noqa: S608 - fixed names
            " FROM epochs CROSS JOIN samples USING (at_ms)"
            " WHERE epochs.at_ms >= ? AND epochs.at_ms < ? AND stream BETWEEN ? AND ? GROUP BY stream",
            (self._minute, self._minute, self._minute + MINUTE_MS, self._next_stream, last),
        )
        self._next_stream = last + 1
        return True

    def _drop_old(self, now_ms: int, cutoff: int) -> bool:
        done = self._drop_epochs(max(now_ms - round(_RAW_S * 1000), cutoff), cutoff)
        done |= self._drop_minutes(cutoff)
        done |= self._drop_events(cutoff)
        return self._drop_streams(cutoff) or done

    def _drop_for_size(self, now_ms: int) -> bool:
        """Delete in this order: samples that have means, the oldest means, other samples."""
        if self._used_bytes() <= self._max_bytes * _FILL_SHARE:
            return False
        if self._drop_epochs(now_ms - round(_SHORT_OF_SPACE_RAW_S * 1000), 0):
            return True
        oldest = self._query_int("SELECT min(at_ms) FROM minute_marks")
        if oldest is not None and self._drop_minutes(oldest + _MINUTES_A_STEP * MINUTE_MS):
            self._drop_events(oldest)
            return True
        # Delete the oldest of everything, also if events take the space.
        oldest = self._query_int(
            "SELECT min(at_ms) FROM (SELECT at_ms FROM epochs UNION ALL SELECT at_ms FROM decisions"
            " UNION ALL SELECT at_ms FROM slo_changes)"
        )
        if oldest is None or oldest >= now_ms:
            return False
        after = min(now_ms, oldest + MINUTE_MS)
        return self._drop_epochs(after, after) | self._drop_events(after)

    def _drop_epochs(self, before_ms: int, before_even_without_means_ms: int) -> bool:
        """Delete a few of the oldest epochs: those whose minute has means, or that are very old."""
        rows = self._connection.execute(
            "SELECT at_ms FROM epochs WHERE at_ms < ? AND"
            " (at_ms < ? OR at_ms / ? * ? IN (SELECT at_ms FROM minute_marks)) ORDER BY at_ms LIMIT ?",
            (before_ms, before_even_without_means_ms, MINUTE_MS, MINUTE_MS, _EPOCHS_A_STEP),
        ).fetchall()
        self._connection.executemany("DELETE FROM samples WHERE at_ms = ?", rows)
        self._connection.executemany("DELETE FROM epochs WHERE at_ms = ?", rows)
        return bool(rows)

    def _drop_minutes(self, before_ms: int) -> bool:
        rows = self._connection.execute(
            "SELECT at_ms FROM minute_marks WHERE at_ms < ? ORDER BY at_ms LIMIT ?",
            (before_ms, _MINUTES_A_STEP),
        ).fetchall()
        self._connection.executemany("DELETE FROM minutes WHERE at_ms = ?", rows)
        self._connection.executemany("DELETE FROM minute_marks WHERE at_ms = ?", rows)
        return bool(rows)

    def _drop_events(self, before_ms: int) -> bool:
        """Delete some old events, but not the verdict of each stream that was in force at `before_ms`."""
        deleted = 0
        for table in ("decisions", "outcomes", "slo_changes"):
            # DELETE with a subquery would fill a temporary table of 85 KiB in each epoch.
            rows = self._connection.execute(
                f"SELECT rowid FROM {table} WHERE at_ms < ? ORDER BY at_ms LIMIT ?",  # noqa: S608 - fixed names
                (before_ms, _EVENTS_A_STEP),
            ).fetchall()
            self._connection.executemany(f"DELETE FROM {table} WHERE rowid = ?", rows)  # noqa: S608 - fixed names
            deleted += len(rows)
        return bool(deleted + self._drop_verdicts(before_ms))

    def _drop_streams(self, before_ms: int) -> bool:
        """Delete some streams that were last present before `before_ms`."""
        rows = self._connection.execute(
            "SELECT id FROM streams WHERE seen_ms < ? LIMIT ?", (before_ms, _STREAMS_A_STEP)
        ).fetchall()
        self._connection.executemany("DELETE FROM verdicts WHERE stream = ?", rows)
        self._connection.executemany("DELETE FROM streams WHERE id = ?", rows)
        self.forgotten.update(stream for (stream,) in rows)
        return bool(rows)

    def _drop_verdicts(self, before_ms: int) -> int:
        """Delete verdicts of a few streams that were followed by another one before `before_ms`."""
        streams = self._connection.execute(
            "SELECT id FROM streams WHERE id > ? ORDER BY id LIMIT ?",
            (self._verdicts_done, _VERDICT_STREAMS_A_STEP),
        ).fetchall()
        self._verdicts_done = streams[-1][0] if streams else 0
        return sum(
            self._connection.execute(
                "DELETE FROM verdicts WHERE stream = ?1 AND at_ms <"
                " (SELECT max(at_ms) FROM verdicts WHERE stream = ?1 AND at_ms <= ?2)",
                (stream, before_ms),
            ).rowcount
            for (stream,) in streams
        )

    def _release_pages(self) -> bool:
        free, pages = self._query_int("PRAGMA freelist_count"), self._query_int("PRAGMA page_count")
        if not free or not pages:
            return False
        if free < pages * _FREE_SHARE and pages * self._page_bytes <= self._max_bytes:
            return False
        # Each row of this pragma frees a page, so all rows have to be fetched.
        self._connection.execute(f"PRAGMA incremental_vacuum({_VACUUM_PAGES_A_STEP})").fetchall()
        return True

    def _used_bytes(self) -> int:
        pages, free = self._query_int("PRAGMA page_count") or 0, self._query_int("PRAGMA freelist_count") or 0
        return (pages - free) * self._page_bytes

    def _query_int(self, statement: str, *values: int) -> int | None:
        row = self._connection.execute(statement, values).fetchone()
        return None if row is None else row[0]
