"""Keeping a history small, a little at a time: means of a minute, pruning by age and by size.

Each step is one of a few milliseconds at most, inside the transaction that the caller has begun: an epoch
never waits for a great clean-up. An epoch adds its samples and a step removes those of several, so it catches
up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.record.history_schema import FIELDS, WORST

if TYPE_CHECKING:
    import sqlite3

_RAW_S = 3600.0
"""Every epoch's samples are kept for this long; means of a minute beyond."""
_SHORT_OF_SPACE_RAW_S = 600.0
"""And for this long where the size that was allowed does not suffice for more."""
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
"""How much of the size allowed is used: the rest is for pages that are free for the moment."""

_MEANS = ", ".join(
    f"max({field})" if field in WORST else f"round(avg({field}), {0 if field == 'bandwidth_bytes_s' else 3})"
    for field in FIELDS
)


class Upkeep:
    """The clean-up of one open history."""

    def __init__(self, connection: sqlite3.Connection, keep_s: float, max_bytes: int) -> None:
        self._connection = connection
        self._keep_ms = round(keep_s * 1000)
        self._max_bytes = max_bytes
        self._page_bytes: int = connection.execute("PRAGMA page_size").fetchone()[0]
        self._minute: int | None = None
        self._next_stream = 0
        self._looked_at: int | None = None
        self._verdicts_done = 0
        self.forgotten: set[int] = set()
        """Numbers of streams that no longer exist, for callers that cache them."""

    def step(self, now_ms: int) -> bool:
        """Do a little; False when there was nothing to do. Called inside a transaction."""
        # Every one of these has its turn: `or` would starve the later ones.
        return any(
            [self._thin(now_ms), self._drop_old(now_ms), self._drop_for_size(now_ms), self._release_pages()]
        )

    def _thin(self, now_ms: int) -> bool:
        """Means of one complete minute, for some of the streams."""
        if self._minute is None:
            this_minute = now_ms // MINUTE_MS
            if self._looked_at == this_minute:
                return False
            found = self._one(
                "SELECT min(at_ms) / ? * ? FROM epochs WHERE at_ms < ? / ? * ?"
                " AND at_ms / ? * ? NOT IN (SELECT at_ms FROM minute_marks)",
                *[MINUTE_MS, MINUTE_MS, now_ms, MINUTE_MS, MINUTE_MS, MINUTE_MS, MINUTE_MS],
            )
            if found is None:
                self._looked_at = this_minute
                return False
            self._minute, self._next_stream = found, 0
        last = self._one(
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
            f"INSERT OR REPLACE INTO minutes SELECT ?, stream, count(*), {_MEANS}"  # noqa: S608 - our own names
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
        return self._forget(cutoff) or done

    def _drop_for_size(self, now_ms: int) -> bool:
        """Delete the least useful first: samples that have means, then the oldest means, then samples."""
        if self._used_bytes() <= self._max_bytes * _FILL_SHARE:
            return False
        if self._drop_epochs(now_ms - round(_SHORT_OF_SPACE_RAW_S * 1000), 0):
            return True
        oldest = self._one("SELECT min(at_ms) FROM minute_marks")
        if oldest is not None and self._drop_minutes(oldest + _MINUTES_A_STEP * MINUTE_MS):
            self._drop_events(oldest)
            return True
        # Also when it was events that took the space: the oldest of all go together.
        oldest = self._one(
            "SELECT min(at_ms) FROM (SELECT at_ms FROM epochs UNION ALL SELECT at_ms FROM decisions"
            " UNION ALL SELECT at_ms FROM slo_changes)"
        )
        if oldest is None or oldest >= now_ms:
            return False
        after = min(now_ms, oldest + MINUTE_MS)
        return self._drop_epochs(after, after) | self._drop_events(after)

    def _drop_epochs(self, before_ms: int, before_even_without_means_ms: int) -> bool:
        """A few of the oldest epochs whose minute has its means, or that are very old."""
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
        """Old events of all kinds, but the one verdict of each stream that held at `before_ms`."""
        deleted = 0
        for table in ("decisions", "outcomes", "slo_changes"):
            deleted += self._connection.execute(
                f"DELETE FROM {table} WHERE rowid IN"  # noqa: S608 - our own names
                f" (SELECT rowid FROM {table} WHERE at_ms < ? ORDER BY at_ms LIMIT ?)",
                (before_ms, _EVENTS_A_STEP),
            ).rowcount
        return bool(deleted + self._drop_verdicts(before_ms))

    def _forget(self, before_ms: int) -> bool:
        """VMs that were last here before that, when nothing else of them is left."""
        gone = self._connection.execute(
            "SELECT id FROM streams WHERE seen_ms < ? LIMIT ?", (before_ms, _STREAMS_A_STEP)
        ).fetchall()
        self._connection.executemany("DELETE FROM verdicts WHERE stream = ?", gone)
        self._connection.executemany("DELETE FROM streams WHERE id = ?", gone)
        self.forgotten.update(stream for (stream,) in gone)
        return bool(gone)

    def _drop_verdicts(self, before_ms: int) -> int:
        """Of a few streams in turn, those that another had followed by `before_ms`."""
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
        free, pages = self._one("PRAGMA freelist_count"), self._one("PRAGMA page_count")
        if not free or not pages:
            return False
        if free < pages * _FREE_SHARE and pages * self._page_bytes <= self._max_bytes:
            return False
        # Every row of this pragma frees a page: not fetching them all stops it early.
        self._connection.execute(f"PRAGMA incremental_vacuum({_VACUUM_PAGES_A_STEP})").fetchall()
        return True

    def _used_bytes(self) -> int:
        pages, free = self._one("PRAGMA page_count") or 0, self._one("PRAGMA freelist_count") or 0
        return (pages - free) * self._page_bytes

    def _one(self, statement: str, *values: int) -> int | None:
        row = self._connection.execute(statement, values).fetchone()
        return None if row is None else row[0]
