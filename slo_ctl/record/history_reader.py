"""Reading the past of a VM. Opens a connection of its own, read-only, and closes it."""

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
from slo_ctl.model import SettingValue
from slo_ctl.record.history_schema import (
    FIELDS,
    VERSION,
    WORST,
    HistoryError,
    explained,
    version_of,
)
from slo_ctl.record.history_upkeep import MINUTE_MS

_DEFAULT_SINCE_S = 3600.0
MAX_POINTS = 5000
_MAX_EVENTS = 1000
_BUSY_TIMEOUT_S = 2.0
_BUCKETS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True)
class Point:
    """A VM on one device during one bucket of time: means, except the percentiles, which are the worst."""

    at: float
    """When the bucket begins, in seconds since 1970."""
    device: str
    samples: int
    """Epochs that it stands for."""
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
    """A verdict and the time it began."""

    at: float
    device: str
    verdict: str
    reason: str


@dataclass(frozen=True, slots=True)
class DecisionMade:
    """A sentence of a decision that names the VM."""

    at: float
    device: str
    reason: str


@dataclass(frozen=True, slots=True)
class OutcomeSeen:
    """A setting for the VM's sake that was changed, restored, or could not be applied."""

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
    """Fields of the VM's SLO were set or unset."""

    at: float
    user: str
    what: str
    """The change, such as `set weight=3`."""


@dataclass(frozen=True, slots=True)
class VmHistory:
    """The past of one VM, each part in order of time."""

    vm: str
    since: float
    until: float
    bucket_s: float
    points: tuple[Point, ...] = ()
    verdicts: tuple[PastVerdict, ...] = ()
    """The first of a device may lie before `since`: it held then."""
    decisions: tuple[DecisionMade, ...] = ()
    outcomes: tuple[OutcomeSeen, ...] = ()
    slo_changes: tuple[SloChange, ...] = ()
    """Changes by `vm set`, `vm unset` and the API while the daemon ran."""


def read_vm(
    path: Path, name: str, since: float | None = None, until: float | None = None, limit: int = 500
) -> VmHistory:
    """What `path` has of the VM between two moments (default: the last hour), in some `limit` buckets.

    Of each kind of events but verdicts, the latest _MAX_EVENTS. Raises UserError for a VM that it does not
    know, and HistoryError when it cannot be read.
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
                    "no VM has been seen yet; `slo-ctl vm list` shows those of the host",
                )
                raise UserError(f"history: no VM {name} is known", hint)
            width_ms = bucket_ms(until - since, limit)
            span = (round(since * 1000), round(until * 1000))
            return VmHistory(
                vm=name,
                since=since,
                until=until,
                bucket_s=width_ms / 1000,
                points=_points(connection, streams, span, width_ms),
                verdicts=_verdicts(connection, streams, span),
                decisions=_decisions(connection, set(streams.values()), name, span),
                outcomes=_outcomes(connection, name, span),
                slo_changes=_slo_changes(connection, name, span),
            )
    except (sqlite3.Error, OSError) as error:
        raise explained(error, path) from error


def names(path: Path) -> list[str]:
    """Every VM that the history knows; HistoryError when it cannot be read."""
    try:
        with closing(_connect(path)) as connection:
            return _names(connection)
    except (sqlite3.Error, OSError) as error:
        raise explained(error, path) from error


def bucket_ms(span_s: float, limit: int) -> int:
    """The shortest of the usual lengths with which `span_s` makes no more than `limit` buckets."""
    wanted = span_s / max(1, min(limit, MAX_POINTS))
    return 1000 * next((each for each in _BUCKETS_S if each >= wanted), -(-int(wanted) // 86400) * 86400)


def _check_readable(path: Path) -> None:
    """Raise HistoryError unless there is a file at `path` that this user may read."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise HistoryError(f"history: {path} not found", "the daemon makes it: slo-ctl daemon") from None
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
    """The group that may read a file, unless that is root's."""
    if not status.st_mode & stat.S_IRGRP or status.st_gid == 0:
        return ""
    return group_name(status.st_gid) or str(status.st_gid)


def _connect(path: Path) -> sqlite3.Connection:
    _check_readable(path)
    options = "mode=ro"
    if not (os.access(path.parent, os.W_OK) or path.with_name(path.name + "-wal").exists()):
        # SQLite would make files beside it, which this user may not. Nobody writes, or they would be there.
        options += "&immutable=1"
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True, timeout=_BUSY_TIMEOUT_S)
    try:
        version = version_of(connection, path)
        if version == 0:
            raise HistoryError(
                f"history: {path} is empty", "start the daemon, which fills it: slo-ctl daemon"
            )
        if version != VERSION:
            raise HistoryError(
                f"history: {path} has the older schema {version}",
                "start the daemon, which converts it: slo-ctl daemon",
            )
        # Several questions, one moment: the daemon writes meanwhile.
        connection.execute("BEGIN")
    except BaseException:
        connection.close()
        raise
    return connection


def _names(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT DISTINCT vm FROM streams ORDER BY vm")]


def _points(
    connection: sqlite3.Connection, streams: dict[int, str], span: tuple[int, int], width_ms: int
) -> tuple[Point, ...]:
    fields = ", ".join(
        f"max({name})"
        if name in WORST
        else f"sum({name} * samples) / sum(CASE WHEN {name} IS NOT NULL THEN samples END)"
        for name in FIELDS
    )
    columns = ", ".join(FIELDS)
    found: list[Point] = []
    edge = _samples_from(connection)
    for stream, device in streams.items():
        # CROSS JOIN keeps SQLite from scanning the rows of every VM: moments first, then one row for each.
        rows = connection.execute(
            f"SELECT at_ms / :width * :width AS bucket, sum(samples), {fields} FROM ("  # noqa: S608 - our own names
            f"SELECT at_ms, samples, {columns} FROM minute_marks CROSS JOIN minutes USING (at_ms)"
            " WHERE stream = :stream AND at_ms > :since - 60000 AND at_ms <= :until AND at_ms < :edge"
            f" UNION ALL SELECT at_ms, 1.0, {columns} FROM epochs CROSS JOIN samples USING (at_ms)"
            " WHERE stream = :stream AND at_ms >= :since AND at_ms <= :until AND at_ms >= :edge"
            ") GROUP BY bucket ORDER BY bucket",
            {"width": width_ms, "stream": stream, "since": span[0], "until": span[1], "edge": edge},
        )
        found += [Point(bucket / 1000, device, int(count), *values) for bucket, count, *values in rows]
    return tuple(sorted(found, key=lambda point: (point.at, point.device)))


def _samples_from(connection: sqlite3.Connection) -> int:
    """From which moment on samples are taken, and means of a minute before: each counts once."""
    (oldest,) = connection.execute("SELECT min(at_ms) FROM epochs").fetchone()
    if oldest is None:
        return 2**62
    minute = oldest // MINUTE_MS * MINUTE_MS
    # Of the oldest minute some epochs may be deleted already; then its means are what is complete.
    marked = connection.execute(
        "SELECT epochs > (SELECT count(*) FROM epochs WHERE at_ms < ?1 + ?2)"
        " FROM minute_marks WHERE at_ms = ?1",
        (minute, MINUTE_MS),
    ).fetchone()
    return int(minute + MINUTE_MS if marked and marked[0] else minute)


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
    return tuple(sorted(found, key=lambda each: (each.at, each.device)))


def _decisions(
    connection: sqlite3.Connection, devices: set[str], name: str, span: tuple[int, int]
) -> tuple[DecisionMade, ...]:
    # `web` must not find `web2`, nor `web-1`; names are the users' and end in anything.
    named = re.compile(rf"(?<![\w.-]){re.escape(storable(name))}(?![\w-]|\.\w)")
    found: list[DecisionMade] = []
    for at_ms, device, reason in connection.execute(
        "SELECT at_ms, device, reason FROM decisions WHERE at_ms >= ? AND at_ms <= ? AND instr(reason, ?)"
        " ORDER BY at_ms DESC",
        (*span, storable(name)),
    ):
        if device in devices and named.search(reason):
            found.append(DecisionMade(at_ms / 1000, device, reason))
            if len(found) == _MAX_EVENTS:
                break
    return tuple(reversed(found))


def _outcomes(connection: sqlite3.Connection, name: str, span: tuple[int, int]) -> tuple[OutcomeSeen, ...]:
    rows = connection.execute(
        "SELECT at_ms, lever, place, device, name, value, state, before, after, why, reason FROM outcomes"
        " WHERE at_ms >= ? AND at_ms <= ? AND vm = ? ORDER BY at_ms DESC LIMIT ?",
        (*span, storable(name), _MAX_EVENTS),
    ).fetchall()
    return tuple(
        OutcomeSeen(at_ms / 1000, " ".join(part for part in knob if part), *rest)
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
    """Names of files and cgroups can hold bytes that are no text, which SQLite does not take: escaped."""
    if name.isascii():
        return name
    return re.sub("[\ud800-\udfff]", lambda match: match[0].encode("unicode_escape").decode("ascii"), name)
