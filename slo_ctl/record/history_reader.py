"""Reading the history of a VM, over a separate read-only connection."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from slo_ctl.base.accounts import group_name, user_name
from slo_ctl.base.errors import UserError
from slo_ctl.base.files import move_command
from slo_ctl.base.keyvalue import near_or_listed
from slo_ctl.base.text import mention_of
from slo_ctl.model.setting import SettingValue
from slo_ctl.record.history_schema import (
    MINUTE_MS,
    RECORDED_FIELDS,
    WORST,
    HistoryError,
    has_tables,
    history_error,
)

_DEFAULT_SINCE_S = 3600.0
MAX_POINTS = 5000
_MAX_EVENTS = 1000
_FEW_MEANS = 2
"""Means of minutes that may be in shorter buckets, as at the begin of the last hour."""
_BUSY_TIMEOUT_S = 2.0
_BUCKETS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True)
class Point:
    """A VM on one device in one time bucket: means of all values, but maximums of percentiles."""

    at: float
    """Begin of the bucket, in seconds since 1970."""
    device: str
    samples: int
    """Number of epochs in the bucket."""
    iops: float | None = None
    bandwidth_bytes_s: float | None = None
    p99_read_us: float | None = None
    p99_write_us: float | None = None
    throttle_wait_us: float | None = None
    target_iops: float | None = None
    share: float | None = None
    target_share: float | None = None
    ops_blocks: float | None = None
    u: float | None = None
    waf: float | None = None


@dataclass(frozen=True, slots=True)
class PastVerdict:
    """A verdict and when it began."""

    at: float
    device: str
    verdict: str
    reason: str


@dataclass(frozen=True, slots=True)
class PastDecision:
    """A reason of a decision that mentions the VM."""

    at: float
    device: str
    reason: str


@dataclass(frozen=True, slots=True)
class PastOutcome:
    """A setting for the VM that was changed, restored, or could not be applied."""

    at: float
    knob: str
    value: SettingValue
    state: str
    before: SettingValue
    after: SettingValue
    why: str
    reason: str


@dataclass(frozen=True, slots=True)
class SloChange:
    """A change of the VM's SLO."""

    at: float
    user: str
    what: str
    """The change, such as `set weight=3`."""


@dataclass(frozen=True, slots=True)
class VmHistory:
    """History of one VM, each part in order of time."""

    vm: str
    since: float
    until: float
    bucket_s: float
    points: tuple[Point, ...] = ()
    verdicts: tuple[PastVerdict, ...] = ()
    """The first verdict of a device may be older than `since`, if it was in force then."""
    decisions: tuple[PastDecision, ...] = ()
    outcomes: tuple[PastOutcome, ...] = ()
    slo_changes: tuple[SloChange, ...] = ()
    """Changes by `vm set`, `vm unset` and the API while the daemon ran."""


class NotInHistoryError(UserError):
    """The history has nothing of a VM of this name."""


def read_vm(
    path: Path, name: str, since: float | None = None, until: float | None = None, limit: int = 500
) -> VmHistory:
    """History of a VM between two times (default: the last hour).

    What is recorded is in at most `limit` buckets. All verdicts, and the latest _MAX_EVENTS of other events.
    Raises NotInHistoryError for an unknown VM, UserError for an empty span, and HistoryError when the file
    cannot be read.
    """
    until = time.time() if until is None else until
    since = until - _DEFAULT_SINCE_S if since is None else since
    if since >= until:
        raise UserError("history: `since` is not before `until`", "name an earlier `since`")
    try:
        with closing(_connect(path)) as connection:
            streams = dict(
                connection.execute(
                    "SELECT id, device FROM streams WHERE vm = ?", (storable(name),)
                ).fetchall()
            )
            if not streams:
                hint = near_or_listed(
                    name,
                    _names(connection),
                    "there are no VMs in it yet; `slo-ctl vm list` shows VMs of the host",
                )
                raise NotInHistoryError(f"VM {name} not found in the history", hint)
            width_ms = bucket_ms(until - max(since, _first_s(connection, until)), limit)
            span, edge = (round(since * 1000), round(until * 1000)), _samples_from(connection)
            if width_ms < MINUTE_MS and _means_in(connection, span, edge) > _FEW_MEANS:
                width_ms = MINUTE_MS  # most of the shorter buckets would be empty
            return VmHistory(
                vm=name,
                since=since,
                until=until,
                bucket_s=width_ms / 1000,
                points=_points(connection, streams, span, width_ms, edge),
                verdicts=_verdicts(connection, streams, span),
                decisions=_decisions(connection, set(streams.values()), name, span),
                outcomes=_outcomes(connection, name, span),
                slo_changes=_slo_changes(connection, name, span),
            )
    except (sqlite3.Error, OSError) as error:
        raise history_error(error, path) from error


def names(path: Path) -> list[str]:
    """Names of all VMs in the history. Raises HistoryError when it cannot be read."""
    try:
        with closing(_connect(path)) as connection:
            return _names(connection)
    except (sqlite3.Error, OSError) as error:
        raise history_error(error, path) from error


def bucket_ms(span_s: float, limit: int) -> int:
    """The shortest bucket length that divides `span_s` into at most `limit` buckets, in ms."""
    wanted = span_s / max(1, min(limit, MAX_POINTS))
    return 1000 * next(
        (length for length in _BUCKETS_S if length >= wanted), -(-int(wanted) // 86400) * 86400
    )


def _check_readable(path: Path) -> None:
    """Raise HistoryError unless there is a file at `path` that this user may read."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise HistoryError(f"history: {path} not found", "the daemon creates it: slo-ctl daemon") from None
    except PermissionError:
        raise HistoryError(f"history: {_user()} may not read {path}", "run it with sudo") from None
    if not stat.S_ISREG(status.st_mode):
        raise HistoryError(f"history: {path} is not a file", f"move it away: {move_command(path)}")
    if not os.access(path, os.R_OK):
        group = _group_of(status)
        hint = f"run it with sudo, or as a member of the group {group}" if group else "run it with sudo"
        raise HistoryError(f"history: {_user()} may not read {path}", hint)


def _user() -> str:
    return f"user {user_name(os.geteuid()) or os.geteuid()}"


def _group_of(status: os.stat_result) -> str:
    """The group that may read a file; empty if there is none other than root's."""
    if not status.st_mode & stat.S_IRGRP or status.st_gid == 0:
        return ""
    return group_name(status.st_gid) or str(status.st_gid)


def _connect(path: Path) -> sqlite3.Connection:
    _check_readable(path)
    options = "mode=ro"
    if not (os.access(path.parent, os.W_OK) or path.with_name(path.name + "-wal").exists()):
        # SQLite would have to create files beside it. No process writes, because then they would exist.
        options += "&immutable=1"
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True, timeout=_BUSY_TIMEOUT_S)
    try:
        if not has_tables(connection, path):
            raise HistoryError(
                f"history: {path} is empty", "start the daemon, which fills it: slo-ctl daemon"
            )
        # One transaction, so that all queries see the same state.
        connection.execute("BEGIN")
    except BaseException:
        connection.close()
        raise
    return connection


def _names(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT DISTINCT vm FROM streams ORDER BY vm")]


def _points(
    connection: sqlite3.Connection, streams: dict[int, str], span: tuple[int, int], width_ms: int, edge: int
) -> tuple[Point, ...]:
    """The points of a span. `edge`: see `_samples_from`."""
    fields = ", ".join(
        f"max({name})"
        if name in WORST
        else f"sum({name} * samples) / sum(CASE WHEN {name} IS NOT NULL THEN samples END)"
        for name in RECORDED_FIELDS
    )
    columns = ", ".join(RECORDED_FIELDS)
    found: list[Point] = []
    for stream, device in streams.items():
        # CROSS JOIN keeps SQLite from scanning the rows of all VMs: it selects times first, then one row
        # each.
        rows = connection.execute(
            f"SELECT at_ms / :width * :width AS bucket, sum(samples), {fields} FROM ("  # noqa: S608 - fixed names
            f"SELECT at_ms, samples, {columns} FROM minute_marks CROSS JOIN minutes USING (at_ms)"
            " WHERE stream = :stream AND at_ms > :since - 60000 AND at_ms <= :until AND at_ms < :edge"
            f" UNION ALL SELECT at_ms, 1.0, {columns} FROM epochs CROSS JOIN samples USING (at_ms)"
            " WHERE stream = :stream AND at_ms >= :since AND at_ms <= :until AND at_ms >= :edge"
            ") GROUP BY bucket ORDER BY bucket",
            {"width": width_ms, "stream": stream, "since": span[0], "until": span[1], "edge": edge},
        )
        found += [Point(bucket / 1000, device, int(count), *values) for bucket, count, *values in rows]
    return tuple(sorted(found, key=lambda point: (point.at, point.device)))


def _first_s(connection: sqlite3.Connection, until: float) -> float:
    """Time of the first epoch before `until`, or of means; `until` without any."""
    (first,) = connection.execute(
        "SELECT min(at_ms) FROM"
        " (SELECT min(at_ms) AS at_ms FROM epochs UNION ALL SELECT min(at_ms) FROM minute_marks)"
    ).fetchone()
    return until - 1.0 if first is None else min(first / 1000, until - 1.0)


def _samples_from(connection: sqlite3.Connection) -> int:
    """Time in ms from which samples are used; before it, means of minutes are used."""
    (oldest,) = connection.execute("SELECT min(at_ms) FROM epochs").fetchone()
    if oldest is None:
        return 2**62
    minute = oldest // MINUTE_MS * MINUTE_MS
    # Some epochs of the oldest minute may be deleted already; then only its means are complete.
    marked = connection.execute(
        "SELECT epochs > (SELECT count(*) FROM epochs WHERE at_ms < ?1 + ?2)"
        " FROM minute_marks WHERE at_ms = ?1",
        (minute, MINUTE_MS),
    ).fetchone()
    return int(minute + MINUTE_MS if marked and marked[0] else minute)


def _means_in(connection: sqlite3.Connection, span: tuple[int, int], edge: int) -> int:
    """Number of means of minutes in a span. `edge`: see `_samples_from`."""
    (means,) = connection.execute(
        "SELECT count(*) FROM minute_marks WHERE at_ms > ? - 60000 AND at_ms <= ? AND at_ms < ?",
        (*span, edge),
    ).fetchone()
    return int(means)


def _verdicts(
    connection: sqlite3.Connection, streams: dict[int, str], span: tuple[int, int]
) -> tuple[PastVerdict, ...]:
    found = [
        PastVerdict(at_ms / 1000, device, verdict, reason)
        for stream, device in streams.items()
        for at_ms, verdict, reason in connection.execute(
            "SELECT at_ms, verdict, reason FROM verdicts WHERE stream = ?1 AND at_ms <= ?3 AND at_ms >="
            " coalesce((SELECT max(at_ms) FROM verdicts WHERE stream = ?1 AND at_ms <= ?2), ?2)",
            (stream, *span),
        )
    ]
    return tuple(sorted(found, key=lambda verdict: (verdict.at, verdict.device)))


def _decisions(
    connection: sqlite3.Connection, devices: set[str], name: str, span: tuple[int, int]
) -> tuple[PastDecision, ...]:
    named = mention_of(storable(name))
    found: list[PastDecision] = []
    for at_ms, device, reason in connection.execute(
        "SELECT at_ms, device, reason FROM decisions WHERE at_ms >= ? AND at_ms <= ? AND instr(reason, ?)"
        " ORDER BY at_ms DESC",
        (*span, storable(name)),
    ):
        if device in devices and named.search(reason):
            found.append(PastDecision(at_ms / 1000, device, reason))
            if len(found) == _MAX_EVENTS:
                break
    return tuple(reversed(found))


def _outcomes(connection: sqlite3.Connection, name: str, span: tuple[int, int]) -> tuple[PastOutcome, ...]:
    rows = connection.execute(
        "SELECT at_ms, lever, place, device, name, value, state, before, after, why, reason FROM outcomes"
        " WHERE at_ms >= ? AND at_ms <= ? AND vm = ? ORDER BY at_ms DESC LIMIT ?",
        (*span, storable(name), _MAX_EVENTS),
    ).fetchall()
    return tuple(
        PastOutcome(at_ms / 1000, " ".join(part for part in knob if part), *rest)
        for at_ms, *knob_and_rest in reversed(rows)
        for knob, rest in [(knob_and_rest[:4], knob_and_rest[4:])]
    )


def _slo_changes(connection: sqlite3.Connection, name: str, span: tuple[int, int]) -> tuple[SloChange, ...]:
    rows = connection.execute(
        "SELECT at_ms, user, what FROM slo_changes WHERE at_ms >= ? AND at_ms <= ? AND vm = ?"
        " ORDER BY at_ms DESC LIMIT ?",
        (*span, storable(name), _MAX_EVENTS),
    ).fetchall()
    return tuple(SloChange(at_ms / 1000, user, what) for at_ms, user, what in reversed(rows))


def storable(name: str) -> str:
    """A name with bytes that are not text escaped, which SQLite would refuse."""
    if name.isascii():
        return name
    return re.sub("[\ud800-\udfff]", lambda match: match[0].encode("unicode_escape").decode("ascii"), name)
