"""What the daemon saw and did, kept in SQLite.

`History` writes, in the daemon only: here is the file and what may befall it, what goes into it is in
history_epoch.py. Whoever reads opens a connection of its own (history_reader.py). WAL lets readers and the
writer pass each other. Commits do not wait for the disk: after a power cut the last seconds may be missing,
the file is whole all the same.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Never

from slo_ctl.record.history_epoch import Known, epoch_ms, load_known, write_epoch
from slo_ctl.record.history_errors import HistoryError, explained, is_damage
from slo_ctl.record.history_reader import VmHistory, read_vm
from slo_ctl.record.history_schema import migrate
from slo_ctl.record.history_upkeep import Upkeep

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from slo_ctl.model import HostStatus, Outcome

BUSY_TIMEOUT_S = 0.2
FILE_MODE = 0o640
DAMAGED_SUFFIX = ".damaged"
_CHECKPOINT_S = 30.0
_SEEN_S = 600.0
"""How exactly it is known when a VM was last there; it decides nothing but when its name is forgotten."""
_WAL_LIMIT_BYTES = 8 << 20


class History:
    """The history at `path`, opened with the first `add` and again after every failure.

    `keep_s` is how long anything is kept, `max_bytes` about how large the file may become. Not for use by
    several threads at once, except `vm`, which has nothing to do with the rest.
    """

    def __init__(self, path: Path, keep_s: float, max_bytes: int) -> None:
        self.path = path
        self._keep_s = keep_s
        self._max_bytes = max_bytes
        self._connection: sqlite3.Connection | None = None
        self._upkeep: Upkeep | None = None
        self._file: tuple[int, int] | None = None
        self._known = Known()
        self._checkpoint: threading.Thread | None = None
        self._checkpointed_at = time.monotonic()

    def add(self, status: HostStatus, outcomes: Iterable[Outcome] = ()) -> None:
        """Keep one epoch: samples, and of decisions, verdicts and outcomes what is new.

        `outcomes` are the epoch's; unchanged ones are left out, and those that did not take are found in
        `status` as well. Raises HistoryError; nothing of the epoch is kept then, and the next call
        tries anew.
        """
        try:
            connection, upkeep = self._open()
            connection.execute("BEGIN IMMEDIATE")
            known = write_epoch(
                connection, self._known, status, outcomes, seen_every_s=min(_SEEN_S, self._keep_s / 4)
            )
            upkeep.step(epoch_ms(status))
            connection.execute("COMMIT")
            known.forget(upkeep.forgotten)
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
        except BaseException:
            self.close()
            raise
        else:
            self._known = known
            self._checkpoint_at_times()

    def prune(self, budget_s: float = 0.05) -> bool:
        """Clean up for about `budget_s`; True when there is more to do. `add` does a step each time as well.

        Raises HistoryError.
        """
        end = time.monotonic() + budget_s
        try:
            connection, upkeep = self._open()
            while True:
                connection.execute("BEGIN IMMEDIATE")
                more = upkeep.step(round(time.time() * 1000))
                connection.execute("COMMIT")
                self._known.forget(upkeep.forgotten)
                if not more or time.monotonic() >= end:
                    return more
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
        except BaseException:
            self.close()
            raise

    def vm(
        self, name: str, since: float | None = None, until: float | None = None, limit: int = 500
    ) -> VmHistory:
        """The past of one VM, see `read_vm`. From any thread."""
        return read_vm(self.path, name, since, until, limit)

    def close(self) -> None:
        """Write everything into the one file and let go of it. Raises nothing."""
        checkpoint, self._checkpoint = self._checkpoint, None
        if checkpoint is not None:
            checkpoint.join()
        connection, self._connection, self._upkeep = self._connection, None, None
        if connection is not None:
            with suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            with suppress(sqlite3.Error):
                connection.close()

    def _open(self) -> tuple[sqlite3.Connection, Upkeep]:
        if self._connection is not None and self._file != _identity(self.path):
            self.close()  # someone moved or deleted the file: what is written to it would be lost
        if self._connection is None or self._upkeep is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Made here and not by SQLite, whose file everybody could read.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
            connection = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
            try:
                migrate(connection, self.path)
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
                # Done by a thread: a checkpoint waits for the disk, and an epoch must not.
                connection.execute("PRAGMA wal_autocheckpoint = 0")
                self._upkeep = Upkeep(connection, self._keep_s, self._max_bytes)
                self._known = load_known(connection)
            except BaseException:
                connection.close()
                raise
            self._connection, self._file = connection, _identity(self.path)
        return self._connection, self._upkeep

    def _failed(self, error: sqlite3.Error | OSError) -> Never:
        self.close()
        if isinstance(error, OSError) or not is_damage(error):
            raise explained(error, self.path) from error
        aside = self.path.with_name(self.path.name + DAMAGED_SUFFIX)
        try:
            self.path.replace(aside)
            for suffix in ("-wal", "-shm"):  # they belong to the old file and would spoil the new one
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        except OSError as problem:
            raise explained(problem, self.path) from error
        raise HistoryError(
            f"history: {self.path} was damaged ({error}); a new one is begun",
            f"the old one is {aside}; delete it, or rescue it with sqlite3's .recover",
        ) from error

    def _checkpoint_at_times(self) -> None:
        now = time.monotonic()
        if now - self._checkpointed_at < _CHECKPOINT_S:
            return
        if self._checkpoint is None or not self._checkpoint.is_alive():
            self._checkpointed_at = now
            self._checkpoint = threading.Thread(
                target=_checkpoint, args=(self.path,), name="history", daemon=True
            )
            self._checkpoint.start()


def _checkpoint(path: Path) -> None:
    """Bring the write-ahead log into the file. A failure shows with the next `add`."""
    with (
        suppress(sqlite3.Error, OSError),
        closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as connection,
    ):
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        # The writer begins the log anew when all of it is in the file, which on a slow disk never is so: new
        # epochs keep coming. Then the rest, little after the above, is done with the writer kept out.
        if path.with_name(path.name + "-wal").stat().st_size > _WAL_LIMIT_BYTES:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
