"""What of an epoch goes into the history: samples, and of all else what is new since the epoch before."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from slo_ctl.model import OutcomeState
from slo_ctl.record.history_reader import storable
from slo_ctl.record.history_schema import FIELDS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

    from slo_ctl.model import DeviceStatus, HostStatus, Outcome, SettingValue, VmStatus

_FIELDS_OF = attrgetter(*FIELDS)
_INSERT_SAMPLE = (
    f"INSERT OR REPLACE INTO samples (at_ms, stream, {', '.join(FIELDS)})"  # noqa: S608 - our own names
    f" VALUES ({', '.join('?' * (len(FIELDS) + 2))})"
)


@dataclass(slots=True)
class Known:
    """What the file holds already, so that only changes are written. Replaced only after a commit."""

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
        """Those that upkeep has deleted."""
        if streams:
            self.streams = {key: stream for key, stream in self.streams.items() if stream not in streams}
            self.verdicts = {stream: word for stream, word in self.verdicts.items() if stream not in streams}
            streams.clear()


def load_known(connection: sqlite3.Connection) -> Known:
    """What the file holds, as far as it matters to the next epoch. Raises sqlite3.Error."""
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


def epoch_ms(status: HostStatus) -> int:
    """When the epoch was, as the file has it."""
    return round(status.at * 1000)


def write_epoch(
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
    at_ms = epoch_ms(status)
    streams = _with_streams(connection, known.streams, status.vms)
    here = [(streams[_key(vm)], vm) for vm in status.vms]
    connection.execute("INSERT OR IGNORE INTO epochs VALUES (?)", (at_ms,))
    connection.executemany(
        _INSERT_SAMPLE,
        [(at_ms, stream, *_numbers(vm)) for stream, vm in here if vm.iops is not None],
    )
    verdicts = {stream: vm.verdict.value for stream, vm in here}
    connection.executemany(
        "INSERT OR REPLACE INTO verdicts (stream, at_ms, verdict, reason) VALUES (?, ?, ?, ?)",
        [
            (stream, at_ms, vm.verdict.value, storable(vm.reason))
            for stream, vm in here
            if known.verdicts.get(stream) != vm.verdict.value
        ],
    )
    connection.executemany(
        "INSERT INTO decisions (at_ms, device, reason) VALUES (?, ?, ?)",
        [(at_ms, *row) for device in status.devices for row in _new_reasons(device, known)],
    )
    told = _outcome_rows(status, outcomes)
    connection.executemany(
        "INSERT INTO outcomes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(at_ms, *row) for row in told if row not in known.outcomes],
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
        outcomes=frozenset(told),
        present=present,
        seen_at=seen_at,
    )


def _with_streams(
    connection: sqlite3.Connection, streams: dict[tuple[str, str], int], vms: Iterable[VmStatus]
) -> dict[tuple[str, str], int]:
    """`streams` itself, or a copy with those that are new."""
    new = {_key(vm) for vm in vms} - streams.keys()
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


def _key(vm: VmStatus) -> tuple[str, str]:
    return storable(vm.vm), storable(vm.device)


def _numbers(vm: VmStatus) -> list[float | None]:
    return [_number(value) for value in _FIELDS_OF(vm)]


def _value(value: SettingValue) -> SettingValue:
    return storable(value) if isinstance(value, str) else _number(value)


def _number(value: float | None) -> float | None:
    """As short as SQLite can store it, with more digits than anybody reads; no infinities."""
    if value is None or not math.isfinite(value):
        return None
    return round(value) if 100 <= value < 2**62 else round(value, 4)
