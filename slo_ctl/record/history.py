"""History of observations and actions, in SQLite.

Only the daemon writes, with `Recorder`. Readers open their own connection (history_reader.py), which WAL
allows at the same time. Commits do not wait for the disk: after a power failure the last seconds may be
missing, but the file is not damaged.
"""

from __future__ import annotations

import logging
import math
import os
import sqlite3
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, Never

from slo_ctl.base.clock import Clock
from slo_ctl.model.setting import Outcome, OutcomeState, SettingValue
from slo_ctl.model.status import DeviceStatus, HostStatus, VmStatus
from slo_ctl.record.history_reader import SloChange, storable
from slo_ctl.record.history_schema import (
    RECORDED_FIELDS,
    HistoryError,
    Upkeep,
    create_tables,
    history_error,
    is_damage,
)

log = logging.getLogger("slo_ctl.daemon")

# Writing an epoch: its samples, and the changes of everything else since the epoch before.

_FIELDS_OF = attrgetter(*RECORDED_FIELDS)


class _Sample(NamedTuple):
    """What is stored of the row of a VM in every epoch."""

    vm: VmStatus
    fields: tuple[str, ...]
    """Fields with a number. sqlite3 looks for an adapter of each None: to bind eight of them takes longer
    than to insert the row."""
    numbers: tuple[float, ...]


@cache
def _insert_sample(fields: tuple[str, ...]) -> str:
    columns = ("at_ms", "stream", *fields)
    return (
        f"INSERT OR REPLACE INTO samples ({', '.join(columns)})"  # noqa: S608 - fixed names
        f" VALUES ({', '.join('?' * len(columns))})"
    )


@dataclass(slots=True)
class WrittenState:
    """Content of the file as of the last commit, so that only changes are written.

    `reasons` and `outcomes` are what the last epoch had, which the file does not tell: they outlive the
    connection, so that what is still in force is not written again as if it had just been decided.
    """

    streams: dict[tuple[str, str], int] = field(default_factory=dict)
    """Numbers of streams in the file, by VM and device."""
    verdicts: dict[int, str] = field(default_factory=dict)
    """Last verdict of each stream; empty while the clock is behind `verdicts_until_ms`."""
    verdicts_until_ms: int = 0
    """Time of the newest verdict, which is later than now after the clock was set back."""
    reasons: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Reasons of the last epoch, by device."""
    outcomes: frozenset[tuple[Any, ...]] = frozenset()
    """Rows of outcomes of the last epoch, without its time."""
    present: frozenset[int] = frozenset()
    """Streams of the last epoch."""
    samples: dict[int, _Sample] = field(default_factory=dict)
    """Samples of the last epoch, by stream."""
    seen_at: float = -math.inf
    """When `streams.seen_ms` was last updated, in seconds since 1970."""

    def forget(self, streams: set[int]) -> None:
        """Remove streams that upkeep has deleted."""
        if streams:
            self.streams = {key: stream for key, stream in self.streams.items() if stream not in streams}
            self.verdicts = {stream: word for stream, word in self.verdicts.items() if stream not in streams}
            streams.clear()


def _load_written(connection: sqlite3.Connection) -> WrittenState:
    """Read the state of an existing file. Raises sqlite3.Error."""
    # SQLite takes the other columns from the row with the maximum.
    last_verdicts = connection.execute(
        "SELECT stream, verdict, max(at_ms) FROM verdicts GROUP BY stream"
    ).fetchall()
    return WrittenState(
        streams={
            (vm, device): id_ for id_, vm, device in connection.execute("SELECT id, vm, device FROM streams")
        },
        verdicts={stream: verdict for stream, verdict, _ in last_verdicts},
        verdicts_until_ms=max((at_ms for *_, at_ms in last_verdicts), default=0),
    )


def _verdicts_at(connection: sqlite3.Connection, streams: Iterable[int], at_ms: int) -> dict[int, str]:
    """The verdict of each stream that the file has for a time, also if it has later ones."""
    found = {
        stream: connection.execute(
            "SELECT verdict FROM verdicts WHERE stream = ? AND at_ms <= ? ORDER BY at_ms DESC LIMIT 1",
            (stream, at_ms),
        ).fetchone()
        for stream in streams
    }
    return {stream: row[0] for stream, row in found.items() if row is not None}


def _epoch_ms(status: HostStatus) -> int:
    """Time of the epoch in ms since 1970, as in the file."""
    return round(status.at * 1000)


def _write_epoch(
    connection: sqlite3.Connection,
    written: WrittenState,
    status: HostStatus,
    outcomes: Iterable[Outcome],
    seen_every_s: float,
) -> WrittenState:
    """Write the changes since `written`; returns the new state of the file after a commit.

    The time at which streams were last present is written every `seen_every_s`, and when the VMs change.
    Raises sqlite3.Error.
    """
    at_ms = _epoch_ms(status)
    keys = [(storable(vm.vm), storable(vm.device)) for vm in status.vms]
    streams = _with_streams(connection, written.streams, keys)
    present_vms = list(zip([streams[key] for key in keys], status.vms, strict=True))
    connection.execute("INSERT OR IGNORE INTO epochs VALUES (?)", (at_ms,))
    samples = {
        stream: sample
        if (sample := written.samples.get(stream)) is not None and sample.vm is vm
        else _sample(vm)
        for stream, vm in present_vms
        if vm.iops is not None
    }
    by_fields: dict[tuple[str, ...], list[tuple[float, ...]]] = defaultdict(list)
    for stream, sample in samples.items():
        by_fields[sample.fields].append((at_ms, stream, *sample.numbers))
    for fields, rows_of_fields in by_fields.items():
        connection.executemany(_insert_sample(fields), rows_of_fields)
    verdicts: dict[int, str] = {stream: vm.verdict for stream, vm in present_vms if not vm.first_reading}
    was_set_back = at_ms < written.verdicts_until_ms
    before = _verdicts_at(connection, verdicts, at_ms) if was_set_back else written.verdicts
    changed_verdicts = [
        (stream, at_ms, vm.verdict.value, storable(vm.reason))
        for stream, vm in present_vms
        if stream in verdicts and before.get(stream) != vm.verdict
    ]
    connection.executemany(
        "INSERT OR REPLACE INTO verdicts (stream, at_ms, verdict, reason) VALUES (?, ?, ?, ?)",
        changed_verdicts,
    )
    connection.executemany(
        "INSERT INTO decisions (at_ms, device, reason) VALUES (?, ?, ?)",
        [(at_ms, *row) for device in status.devices for row in _new_reasons(device, written)],
    )
    rows = _outcome_rows([*outcomes, *(outcome for vm in status.vms for outcome in vm.unapplied)])
    _insert_outcomes(connection, at_ms, (row for row in rows if row not in written.outcomes))
    seen_at, present = written.seen_at, frozenset(stream for stream, _ in present_vms)
    if abs(status.at - seen_at) >= seen_every_s or present != written.present:
        seen_at = status.at
        connection.executemany(
            "UPDATE streams SET seen_ms = ? WHERE id = ?", [(at_ms, stream) for stream in present]
        )
    return WrittenState(
        streams=streams,
        # A VM that returns with the same verdict has not changed it.
        verdicts={} if was_set_back else {**written.verdicts, **verdicts},
        verdicts_until_ms=max(written.verdicts_until_ms, at_ms if changed_verdicts else 0),
        reasons={device.name: device.reasons for device in status.devices},
        outcomes=frozenset(rows),
        present=present,
        samples=samples,
        seen_at=seen_at,
    )


def _with_streams(
    connection: sqlite3.Connection, streams: dict[tuple[str, str], int], keys: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], int]:
    """`streams`, or a copy with those of `keys` that are new."""
    new = set(keys) - streams.keys()
    if not new:
        return streams
    added = dict(streams)
    for key in sorted(new):
        connection.execute("INSERT OR IGNORE INTO streams (vm, device) VALUES (?, ?)", key)
        row = connection.execute("SELECT id FROM streams WHERE vm = ? AND device = ?", key).fetchone()
        added[key] = row[0]
    return added


def _insert_outcomes(connection: sqlite3.Connection, at_ms: int, rows: Iterable[tuple[Any, ...]]) -> None:
    connection.executemany(
        "INSERT INTO outcomes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", [(at_ms, *row) for row in rows]
    )


def _outcome_rows(outcomes: Iterable[Outcome]) -> list[tuple[Any, ...]]:
    rows: dict[tuple[Any, ...], None] = {}
    for outcome in outcomes:
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


def _new_reasons(device: DeviceStatus, written: WrittenState) -> list[tuple[str, str]]:
    before = written.reasons.get(device.name, ())
    if before == device.reasons:
        return []
    return [(storable(device.name), storable(reason)) for reason in device.reasons if reason not in before]


def _sample(vm: VmStatus) -> _Sample:
    numbers = [None if value is None else _number(value) for value in _FIELDS_OF(vm)]
    known = {
        name: number for name, number in zip(RECORDED_FIELDS, numbers, strict=True) if number is not None
    }
    return _Sample(vm, tuple(known), tuple(known.values()))


def _value(value: SettingValue) -> SettingValue:
    return storable(value) if isinstance(value, str) else _number(value)


def _number(value: float | None) -> float | None:
    """A number rounded so that SQLite stores it compactly; None for infinite numbers."""
    if value is None or not math.isfinite(value):
        return None
    return round(value) if 100 <= value < 2**62 else round(value, 4)


_BUSY_TIMEOUT_S = 1.0
"""How long an epoch waits for a checkpoint, or for another program, until it is not recorded."""
_FILE_MODE = 0o640
_DAMAGED_SUFFIX = ".damaged"
_CHECKPOINT_S = 30.0
_SEEN_S = 600.0
"""Resolution of the time at which a VM was last present, after which its name is deleted."""
_WAL_LIMIT_BYTES = 8 << 20
_CACHE_KIB = 256
"""Pages of the file in the daemon's memory: it writes to the ends of tables only. The default of SQLite,
2 MB, takes an hour to fill, and saves no CPU time.
"""


class History:
    """The history at `path`, opened by the first `add` and again after a failure.

    `keep_s`: how long entries are kept; `max_bytes`: approximate largest size of the file. Not thread-safe,
    except `vm`.
    """

    def __init__(self, path: Path, keep_s: float, max_bytes: int) -> None:
        self.path = path
        self._keep_s = keep_s
        self._max_bytes = max_bytes
        self._connection: sqlite3.Connection | None = None
        self._upkeep: Upkeep | None = None
        self._file: tuple[int, int] | None = None
        self._written = WrittenState()
        self._checkpoint: threading.Thread | None = None
        self._checkpointed_at = time.monotonic()

    def add(
        self,
        status: HostStatus,
        outcomes: Iterable[Outcome] = (),
        slo_changes: Iterable[tuple[str, SloChange]] = (),
        *,
        drop_old: bool = True,
    ) -> None:
        """Write an epoch: its samples, and changed decisions, verdicts and outcomes.

        `slo_changes`: changes since the epoch before, with their VMs. `outcomes`: those of the epoch;
        unchanged ones are skipped, and unapplied ones are also in `status`. `drop_old`: whether what is older
        than `keep_s` at the time of the epoch is deleted. Raises HistoryError; then nothing
        of the epoch is written, and the next call tries again.
        """
        try:
            connection, upkeep = self._open()
            connection.execute("BEGIN IMMEDIATE")
            written = _write_epoch(
                connection, self._written, status, outcomes, seen_every_s=min(_SEEN_S, self._keep_s / 4)
            )
            connection.executemany(
                "INSERT INTO slo_changes VALUES (?, ?, ?, ?)",
                [
                    (round(change.at * 1000), storable(vm), storable(change.user), storable(change.what))
                    for vm, change in slo_changes
                ],
            )
            upkeep.step(_epoch_ms(status), drop_old=drop_old)
            connection.execute("COMMIT")
            written.forget(upkeep.forgotten)
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
        except BaseException:
            self.close()
            raise
        else:
            self._written = written
            self._checkpoint_if_due()

    def add_restored(self, at_s: float, outcomes: Iterable[Outcome]) -> None:
        """Write outcomes after the last epoch, when settings were restored, if there is a history.

        Raises HistoryError.
        """
        if not self.path.exists():
            return
        try:
            connection, _ = self._open()
            connection.execute("BEGIN IMMEDIATE")
            _insert_outcomes(connection, round(at_s * 1000), _outcome_rows(outcomes))
            connection.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            self._failed(error)

    def configure(self, keep_s: float, max_bytes: int) -> None:
        """Use other limits from the next `add` on."""
        self._keep_s, self._max_bytes = keep_s, max_bytes
        self.close()

    def close(self) -> None:
        """Close the file after moving the write-ahead log into it. Raises nothing."""
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
            self.close()  # another program moved or deleted the file
        if self._connection is None or self._upkeep is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Created here, because a file that SQLite creates could be read by all users.
            is_new = not self.path.exists()
            opened = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if is_new:
                    # Independent of the umask, readable by the group of the daemon.
                    os.fchmod(opened, _FILE_MODE)
            finally:
                os.close(opened)
            connection = sqlite3.connect(self.path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
            try:
                create_tables(connection, self.path)
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
                connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
                # A thread does it, because a checkpoint waits for the disk.
                connection.execute("PRAGMA wal_autocheckpoint = 0")
                self._upkeep = Upkeep(connection, self._keep_s, self._max_bytes)
                loaded = _load_written(connection)
                if not is_new and self._file == _identity(self.path):
                    loaded = replace(loaded, reasons=self._written.reasons, outcomes=self._written.outcomes)
                self._written = loaded
            except BaseException:
                connection.close()
                raise
            self._connection, self._file = connection, _identity(self.path)
        return self._connection, self._upkeep

    def _failed(self, error: sqlite3.Error | OSError) -> Never:
        self.close()
        if isinstance(error, OSError) or not is_damage(error):
            raise history_error(error, self.path) from error
        damaged_path, number = self.path.with_name(self.path.name + _DAMAGED_SUFFIX), 1
        while damaged_path.exists():
            number += 1
            damaged_path = damaged_path.with_suffix(f"{_DAMAGED_SUFFIX}{number}")
        try:
            self.path.replace(damaged_path)
            for suffix in ("-wal", "-shm"):  # they belong to the old file
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        except OSError as problem:
            raise history_error(problem, self.path) from error
        raise HistoryError(
            f"history: {self.path} was damaged ({error}); a new file was started",
            f"the old file is {damaged_path}: delete it, or recover it with sqlite3's .recover",
        ) from error

    def _checkpoint_if_due(self) -> None:
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
    """Move the write-ahead log into the file. The next `add` reports a failure."""
    with (
        suppress(sqlite3.Error, OSError),
        closing(sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)) as connection,
    ):
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        # SQLite restarts the log only when all of it is in the file, which may never happen on a slow disk.
        # The small rest is then written while the writer waits.
        if path.with_name(path.name + "-wal").stat().st_size > _WAL_LIMIT_BYTES:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


# Recording the epochs of the daemon.

_MAX_SLO_CHANGES = 10_000
_LEAST_JUMP_S = 60.0
"""Smaller jumps of the clock delete next to nothing."""
_DISTRUST_S = 86_400.0


class Recorder:
    """Writes the history, also when the file cannot be written and when the clock is set.

    After an error the next epoch tries again.
    """

    def __init__(self, path: Path, keep_s: float, max_bytes: int, clock: Clock) -> None:
        """`keep_s` and `max_bytes`: as for `History`."""
        self.problem = ""
        """Why the last epoch was not written; empty if it was."""
        self._history = History(path, keep_s, max_bytes)
        self._limits = keep_s, max_bytes
        self._clock = clock
        self._drop_old_from_s = -math.inf
        """Monotonic time from which entries are deleted by age."""
        self._slo_changes: deque[tuple[str, SloChange]] = deque(maxlen=_MAX_SLO_CHANGES)
        """Changes not yet written, with their VMs."""

    def configure(self, keep_s: float, max_bytes: int) -> None:
        if (keep_s, max_bytes) != self._limits:
            self._limits = keep_s, max_bytes
            self._history.configure(keep_s, max_bytes)

    def clock_was_set(self, jump_s: float) -> None:
        """For a day after a jump forward, which may be an error, nothing is deleted for being too old."""
        if jump_s >= _LEAST_JUMP_S:
            self._drop_old_from_s = self._clock.monotonic_s() + _DISTRUST_S
            log.warning("history: entries are not deleted by age for a day, as the clock may be wrong")
        elif jump_s <= -_LEAST_JUMP_S:
            self._drop_old_from_s = -math.inf

    def add(
        self, status: HostStatus, outcomes: Sequence[Outcome], slo_changes: Sequence[tuple[str, SloChange]]
    ) -> None:
        self._slo_changes.extend(slo_changes)
        try:
            drop_old = self._clock.monotonic_s() >= self._drop_old_from_s
            self._history.add(status, outcomes, self._slo_changes, drop_old=drop_old)
        except HistoryError as error:
            if str(error) != self.problem:
                log.warning("%s", error)
            self.problem = str(error)
        else:
            self.problem = ""
            self._slo_changes.clear()

    def add_restored(self, outcomes: Sequence[Outcome]) -> None:
        """Write what was restored when the daemon stops."""
        if outcomes:
            try:
                self._history.add_restored(self._clock.time_s(), outcomes)
            except HistoryError as error:
                log.warning("%s", error)

    def close(self) -> None:
        self._history.close()
