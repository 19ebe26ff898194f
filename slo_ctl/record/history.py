"""History of observations and actions, in SQLite.

`History` writes, in the daemon only: here is the file and what may befall it, what goes into it is in
history_epoch.py. Whoever reads opens a connection of its own (history_reader.py). WAL lets readers and the
writer pass each other. Commits do not wait for the disk: after a power cut the last seconds may be missing,
the file is whole all the same.
"""

from __future__ import annotations

import math
import os
import sqlite3
import threading
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Never

from slo_ctl.model import DeviceStatus, HostStatus, Outcome, OutcomeState, SettingValue, VmStatus
from slo_ctl.record.history_reader import SloChange, VmHistory, read_vm, storable
from slo_ctl.record.history_schema import FIELDS, HistoryError, explained, is_damage, migrate
from slo_ctl.record.history_upkeep import Upkeep

# What of an epoch goes into the history: samples, and of all else what is new since the epoch before.

_FIELDS_OF = attrgetter(*FIELDS)
_INSERT_SAMPLE = (
    f"INSERT OR REPLACE INTO samples (at_ms, stream, {', '.join(FIELDS)})"  # noqa: S608 - our own names
    f" VALUES ({', '.join('?' * (len(FIELDS) + 2))})"
)


@dataclass(slots=True)
class Known:
    """Content of the file, so that only changes are written. Replaced only after a commit."""

    streams: dict[tuple[str, str], int] = field(default_factory=dict)
    """Their numbers in the file, by VM and device."""
    verdicts: dict[int, str] = field(default_factory=dict)
    """The last one of each stream."""
    reasons: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Decisions of the epoch before, by device."""
    outcomes: frozenset[tuple[Any, ...]] = frozenset()
    """Rows of the epoch before, without its time."""
    present: frozenset[int] = frozenset()
    """Streams of the epoch before."""
    seen_at: float = -math.inf
    """When it was last written that they are there, seconds since 1970."""

    def forget(self, streams: set[int]) -> None:
        """Forget streams that upkeep has deleted."""
        if streams:
            self.streams = {key: stream for key, stream in self.streams.items() if stream not in streams}
            self.verdicts = {stream: word for stream, word in self.verdicts.items() if stream not in streams}
            streams.clear()


def _load_known(connection: sqlite3.Connection) -> Known:
    """The content that matters to the next epoch. Raises sqlite3.Error."""
    return Known(
        streams={
            (vm, device): id_ for id_, vm, device in connection.execute("SELECT id, vm, device FROM streams")
        },
        # With max(), the other columns are those of its row.
        verdicts={
            stream: verdict
            for stream, verdict, _ in connection.execute(
                "SELECT stream, verdict, max(at_ms) FROM verdicts GROUP BY stream"
            )
        },
    )


def _epoch_ms(status: HostStatus) -> int:
    """When the epoch was, as the file has it."""
    return round(status.at * 1000)


def _write_epoch(
    connection: sqlite3.Connection,
    known: Known,
    status: HostStatus,
    outcomes: Iterable[Outcome],
    seen_every_s: float,
) -> Known:
    """Write what is new since `known`; what the file holds then, once the transaction is committed.

    When its VMs were last there is written every `seen_every_s`, or when others are there. Raises
    sqlite3.Error.
    """
    at_ms = _epoch_ms(status)
    keys = [(storable(vm.vm), storable(vm.device)) for vm in status.vms]
    streams = _with_streams(connection, known.streams, keys)
    here = list(zip([streams[key] for key in keys], status.vms, strict=True))
    connection.execute("INSERT OR IGNORE INTO epochs VALUES (?)", (at_ms,))
    connection.executemany(
        _INSERT_SAMPLE,
        [(at_ms, stream, *_numbers(vm)) for stream, vm in here if vm.iops is not None],
    )
    verdicts: dict[int, str] = {stream: vm.verdict for stream, vm in here}
    connection.executemany(
        "INSERT OR REPLACE INTO verdicts (stream, at_ms, verdict, reason) VALUES (?, ?, ?, ?)",
        [
            (stream, at_ms, vm.verdict.value, storable(vm.reason))
            for stream, vm in here
            if known.verdicts.get(stream) != vm.verdict
        ],
    )
    connection.executemany(
        "INSERT INTO decisions (at_ms, device, reason) VALUES (?, ?, ?)",
        [(at_ms, *row) for device in status.devices for row in _new_reasons(device, known)],
    )
    rows = _outcome_rows(status, outcomes)
    connection.executemany(
        "INSERT INTO outcomes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(at_ms, *row) for row in rows if row not in known.outcomes],
    )
    seen_at, present = known.seen_at, frozenset(verdicts)
    if abs(status.at - seen_at) >= seen_every_s or present != known.present:
        seen_at = status.at
        connection.executemany(
            "UPDATE streams SET seen_ms = ? WHERE id = ?", [(at_ms, stream) for stream in present]
        )
    return Known(
        streams=streams,
        # A VM that is gone for a while and comes back with the same verdict has not changed it.
        verdicts={**known.verdicts, **verdicts},
        reasons={device.name: device.reasons for device in status.devices},
        outcomes=frozenset(rows),
        present=present,
        seen_at=seen_at,
    )


def _with_streams(
    connection: sqlite3.Connection, streams: dict[tuple[str, str], int], keys: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], int]:
    """`streams` itself, or a copy with those of `keys` that are new."""
    new = set(keys) - streams.keys()
    if not new:
        return streams
    added = dict(streams)
    for key in sorted(new):
        connection.execute("INSERT OR IGNORE INTO streams (vm, device) VALUES (?, ?)", key)
        row = connection.execute("SELECT id FROM streams WHERE vm = ? AND device = ?", key).fetchone()
        added[key] = row[0]
    return added


def _outcome_rows(status: HostStatus, outcomes: Iterable[Outcome]) -> list[tuple[Any, ...]]:
    unapplied = (each for vm in status.vms for each in vm.unapplied)
    rows: dict[tuple[Any, ...], None] = {}
    for outcome in (*outcomes, *unapplied):
        if outcome.state in (OutcomeState.UNCHANGED, OutcomeState.PLANNED):
            continue
        knob = outcome.setting.knob
        rows[
            (
                storable(outcome.setting.vm),
                knob.lever.value,
                storable(knob.place),
                knob.device,
                knob.name,
                _value(outcome.setting.value),
                outcome.state.value,
                _value(outcome.before),
                _value(outcome.after),
                storable(outcome.setting.reason),
                storable(outcome.reason),
            )
        ] = None
    return list(rows)


def _new_reasons(device: DeviceStatus, known: Known) -> list[tuple[str, str]]:
    before = known.reasons.get(device.name, ())
    if before == device.reasons:
        return []
    return [(storable(device.name), storable(reason)) for reason in device.reasons if reason not in before]


def _numbers(vm: VmStatus) -> list[float | None]:
    return [None if value is None else _number(value) for value in _FIELDS_OF(vm)]


def _value(value: SettingValue) -> SettingValue:
    return storable(value) if isinstance(value, str) else _number(value)


def _number(value: float | None) -> float | None:
    """Rounded to what SQLite stores compactly; None for infinities."""
    if value is None or not math.isfinite(value):
        return None
    return round(value) if 100 <= value < 2**62 else round(value, 4)


_BUSY_TIMEOUT_S = 0.2
_FILE_MODE = 0o640
_DAMAGED_SUFFIX = ".damaged"
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

    def add(
        self,
        status: HostStatus,
        outcomes: Iterable[Outcome] = (),
        slo_changes: Iterable[tuple[str, SloChange]] = (),
    ) -> None:
        """Keep one epoch: samples, and of decisions, verdicts and outcomes what is new.

        `slo_changes` are those since the epoch before, each with its VM.

        `outcomes` are the epoch's; unchanged ones are left out, and unapplied ones are in `status` as well.
        Raises HistoryError; nothing of the epoch is kept then, and the next call
        tries again.
        """
        try:
            connection, upkeep = self._open()
            connection.execute("BEGIN IMMEDIATE")
            known = _write_epoch(
                connection, self._known, status, outcomes, seen_every_s=min(_SEEN_S, self._keep_s / 4)
            )
            connection.executemany(
                "INSERT INTO slo_changes VALUES (?, ?, ?, ?)",
                [
                    (round(each.at * 1000), storable(vm), storable(each.user), storable(each.what))
                    for vm, each in slo_changes
                ],
            )
            upkeep.step(_epoch_ms(status))
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

    def vm(
        self, name: str, since: float | None = None, until: float | None = None, limit: int = 500
    ) -> VmHistory:
        """The past of one VM, see `read_vm`. From any thread."""
        return read_vm(self.path, name, since, until, limit)

    def close(self) -> None:
        """Write everything into the one file and close it. Raises nothing."""
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
            is_new = not self.path.exists()
            opened = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if is_new:
                    # Whatever the umask is: the group of the daemon may read it.
                    os.fchmod(opened, _FILE_MODE)
            finally:
                os.close(opened)
            connection = sqlite3.connect(self.path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
            try:
                migrate(connection, self.path)
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
                # Done by a thread: a checkpoint waits for the disk, and an epoch must not.
                connection.execute("PRAGMA wal_autocheckpoint = 0")
                self._upkeep = Upkeep(connection, self._keep_s, self._max_bytes)
                self._known = _load_known(connection)
            except BaseException:
                connection.close()
                raise
            self._connection, self._file = connection, _identity(self.path)
        return self._connection, self._upkeep

    def _failed(self, error: sqlite3.Error | OSError) -> Never:
        self.close()
        if isinstance(error, OSError) or not is_damage(error):
            raise explained(error, self.path) from error
        aside = self.path.with_name(self.path.name + _DAMAGED_SUFFIX)
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
        closing(sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)) as connection,
    ):
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        # The writer restarts the log when all of it is in the file, which on a slow disk never is so: new
        # epochs keep coming. Then the rest, little after the above, is done with the writer kept out.
        if path.with_name(path.name + "-wal").stat().st_size > _WAL_LIMIT_BYTES:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
