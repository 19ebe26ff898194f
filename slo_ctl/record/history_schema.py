"""The tables of a history, and the steps that bring an older file up to date.

The version of a file is its `user_version`: how many of MIGRATIONS it has been through. A step, once
released, is never changed; a change of the tables is a new step. Every step is one transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.record.history_errors import HistoryError

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

APPLICATION_ID = 0x534C4F48
"""`SLOH` in the header of the file: nobody else's database is ever written to."""

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
"""What is kept of a VmStatus every epoch, under the same names."""

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

MIGRATIONS = (_FIRST, _THINNING)
VERSION = len(MIGRATIONS)


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """How far a file is; 0 for a new one. HistoryError when it is no history, or a newer release's."""
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if (application, version, tables) == (0, 0, 0):
        return 0
    if application != APPLICATION_ID:
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
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
