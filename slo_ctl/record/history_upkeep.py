"""Incremental upkeep of a history: means of minutes, deletion by age and by size.

Each step takes a few milliseconds at most, in the transaction of the caller, so that no epoch waits long. It
deletes the samples of several epochs while an epoch adds only its own, so it catches up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.record.history_schema import FIELDS, WORST

if TYPE_CHECKING:
    import sqlite3

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
    for field in FIELDS
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

    def step(self, now_ms: int) -> bool:
        """Do one step within a transaction; False when there was nothing to do."""
        # A list, because `or` would skip the later ones.
        return any(
            [
                self._add_minute_means(now_ms),
                self._drop_old(now_ms),
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

    def _drop_old(self, now_ms: int) -> bool:
        cutoff = now_ms - self._keep_ms
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
            deleted += self._connection.execute(
                f"DELETE FROM {table} WHERE rowid IN"  # noqa: S608 - fixed names
                f" (SELECT rowid FROM {table} WHERE at_ms < ? ORDER BY at_ms LIMIT ?)",
                (before_ms, _EVENTS_A_STEP),
            ).rowcount
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
