"""The daemon's log: a line for each event, to stderr or with fields to systemd's journal."""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from slo_ctl.base.text import counted, printable
from slo_ctl.daemon.status import VerdictChange
from slo_ctl.model.decision import Decision
from slo_ctl.model.setting import FTL_LEVERS, Outcome, OutcomeState, change_of, value_text

# Text of decisions and outcomes, for logs and plans.


def decision_lines(decision: Decision) -> Iterator[str]:
    """A line for each change that a policy decided."""
    for move in decision.moves:
        blocks = counted(move.blocks, "OPS block")
        yield f"{blocks} from {move.source or 'spare'} to {move.target or 'spare'}"
    for vm, limit in decision.limits_iops.items():
        yield f"{vm}: no limit" if limit is None else f"{vm}: limit {limit:,.0f} IOPS"
    for vm, weight in decision.scheduler_weights.items():
        yield f"{vm}: scheduler weight {weight:.3g}"


def outcome_line(outcome: Outcome) -> str:
    """The state of a setting after it was applied."""
    setting = outcome.setting
    name = f"{setting.vm}: {setting.knob}" if setting.vm else str(setting.knob)
    reason = f": {outcome.reason}" if outcome.reason else ""
    match outcome.state:
        case OutcomeState.UNAPPLIED:
            return f"{name} = {value_text(setting.value)}: unapplied{reason}"
        case OutcomeState.UNCHANGED:
            return f"{name} stays {value_text(outcome.after)}{reason}"
        case _:
            before = value_text(change_of(outcome.before, setting.value)[0])
            after = value_text(change_of(outcome.after, setting.value)[0])
            return f"{name}: {before} -> {after} ({outcome.state}; {setting.reason}){reason}"


def journal_fields(outcome: Outcome) -> dict[str, str]:
    """Fields of a line about an outcome, for `extra` of the logger."""
    return {"vm": outcome.setting.vm}


# Events of epochs, each logged once.

_FEW_SENTENCES = 5
MANY_SENTENCES = 200
"""Number of sentences that are not repeated, about all devices and VMs."""


class RecentSentences:
    """The last different sentences of a log."""

    def __init__(self, length: int = _FEW_SENTENCES) -> None:
        self._recent: deque[str] = deque(maxlen=length)
        self._current: frozenset[str] = frozenset()
        self._unended: frozenset[str] = frozenset()
        """Those of the current sentences that were new."""
        self.ended: list[str] = []
        """New sentences that are no longer true since this epoch."""

    def add(self, sentences: Iterable[str]) -> list[str]:
        """Set the sentences of an epoch. Returns those that are neither current nor recent."""
        current = list(dict.fromkeys(sentences))
        begun = [sentence for sentence in current if sentence not in self._current]
        new = [sentence for sentence in begun if sentence not in self._recent]
        self._current = frozenset(current)
        self.ended = sorted(self._unended - self._current)
        self._unended = (self._unended & self._current) | frozenset(new)
        for sentence in begun:
            if sentence in self._recent:
                self._recent.remove(sentence)
            self._recent.append(sentence)
        return new

    @property
    def recent(self) -> tuple[str, ...]:
        """The last sentences, oldest first."""
        return tuple(self._recent)


log = logging.getLogger("slo_ctl.daemon")


class EpochLog:
    """Logs problems, decisions and verdicts when they begin and end."""

    def __init__(self) -> None:
        self._problems = RecentSentences(MANY_SENTENCES)
        self._lines: dict[str, tuple[str, dict[str, str]]] = {}
        """Lines about the problems of the previous epoch, with their journal fields."""
        self._reasons: dict[str, RecentSentences] = {}
        self._corrections = RecentSentences(MANY_SENTENCES)

    def log_problems(self, problems: Mapping[str, str], outcomes: Iterable[Outcome]) -> None:
        """Log new and ended problems of devices, and settings that could not be applied.

        One with another value is the same problem: limits that protect others change in every window.
        """
        lines = {
            f"{name}: {problem}": (f"device {name}: {problem}", {"device": name})
            for name, problem in problems.items()
        }
        lines |= {
            f"{outcome.setting.knob}: {outcome.reason}": (outcome_line(outcome), journal_fields(outcome))
            for outcome in outcomes
            if outcome.state is OutcomeState.UNAPPLIED
        }
        for key in self._problems.add(lines):
            line, fields = lines[key]
            log.warning("%s", printable(line), extra=fields)
        for key in self._problems.ended:
            line, fields = self._lines[key]
            log.info("over: %s", printable(line), extra=fields)
        self._lines = lines

    def log_corrections(self, outcomes: Iterable[Outcome]) -> None:
        """Log settings that others had made or changed; the last are not repeated if that happens again."""
        lines: dict[str, Outcome] = {}
        for outcome in outcomes:
            # A server that was restarted has the settings of its last checkpoint.
            if outcome.is_correction and outcome.setting.knob.lever not in FTL_LEVERS:
                lines[f"set again: {outcome_line(outcome)}"] = outcome
            elif outcome.is_replacement:
                before = f"{value_text(outcome.before)}, which slo-ctl had not set, is restored later"
                lines[f"replaced: {outcome_line(outcome)}; {before}"] = outcome
        for line in self._corrections.add(lines):
            log.warning("%s", printable(line), extra=journal_fields(lines[line]))

    def log_verdicts(self, changes: Iterable[VerdictChange]) -> None:
        """Log SLOs that are no longer met, and SLOs that are met again; the history has all changes."""
        for change in changes:
            if not (change.is_degraded or change.was_degraded):
                continue
            name = f"{change.vm} on {change.device}" if change.device else change.vm
            log.log(
                logging.WARNING if change.is_degraded else logging.INFO,
                "VM %s: %s: %s",
                printable(name),
                change.verdict,
                printable(change.reason),
                extra={"vm": change.vm, "device": change.device, "verdict": change.verdict.value},
            )

    def log_decisions(self, device: str, reasons: Iterable[str], length: int = _FEW_SENTENCES) -> None:
        """Log new decisions about a device; the last `length` are not repeated."""
        recent = self._reasons.get(device)
        if recent is None:
            recent = self._reasons[device] = RecentSentences(length)
        for reason in recent.add(reasons):
            log.info("device %s: %s", device, printable(reason), extra={"device": device})

    def keep(self, devices: Collection[str]) -> None:
        """Forget the decisions about all other devices."""
        self._reasons = {name: recent for name, recent in self._reasons.items() if name in devices}

    def recent(self, device: str) -> tuple[str, ...]:
        """Recent decisions about a device."""
        reasons = self._reasons.get(device)
        return reasons.recent if reasons is not None else ()


# Entries of systemd's journal.

SOCKET = "/run/systemd/journal/socket"
IDENTIFIER = "slo-ctl"
FIELDS = {"vm": "VM", "device": "DEVICE", "verdict": "VERDICT"}
"""Journal fields by key of `extra`. A sequence of texts becomes a field with several values."""

_TIMEOUT_S = 1.0
_LENGTH = struct.Struct("<Q")


def is_journal(descriptor: int, stream: str | None) -> bool:
    """Whether a descriptor leads to the journal; `stream`: `$JOURNAL_STREAM`, which is `DEVICE:INODE`."""
    try:
        file = os.fstat(descriptor)
    except OSError:
        return False
    return stream == f"{file.st_dev}:{file.st_ino}"


class JournalHandler(logging.Handler):
    """Sends each line as a datagram in the journal's native protocol."""

    def __init__(self, fallback: logging.Handler, path: str = SOCKET) -> None:
        """`fallback`: used while the journal is not reachable."""
        super().__init__()
        self._fallback = fallback
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(_TIMEOUT_S)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            # The socket is not connected, so that it still works after a restart of the journal.
            self._socket.sendto(self._entry(record), self._path)
        except OSError:
            self._fallback.handle(record)
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        self._socket.close()
        super().close()

    def _entry(self, record: logging.LogRecord) -> bytes:
        fields = [
            ("MESSAGE", self.format(record)),
            ("PRIORITY", _priority(record.levelno)),
            ("SYSLOG_IDENTIFIER", IDENTIFIER),
            ("CODE_FILE", record.pathname),
            ("CODE_LINE", str(record.lineno)),
            ("CODE_FUNC", record.funcName or ""),
        ]
        fields += [(name, text) for key, name in FIELDS.items() for text in _texts(getattr(record, key, ()))]
        return b"".join(encoded(name, text) for name, text in fields if text)


def encoded(name: str, text: str) -> bytes:
    """A field of an entry; text of several lines is preceded by its length."""
    try:
        value = text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        value = text.encode(errors="backslashreplace")
    if b"\n" not in value:
        return b"%s=%s\n" % (name.encode(), value)
    return b"%s\n%s%s\n" % (name.encode(), _LENGTH.pack(len(value)), value)


def _texts(values: str | Iterable[str]) -> Iterator[str]:
    if isinstance(values, str):
        yield values
    else:
        yield from values


def _priority(level: int) -> str:
    if level >= logging.ERROR:
        return "3"
    if level >= logging.WARNING:
        return "4"
    return "6" if level >= logging.INFO else "7"


_STDERR = 2


@contextmanager
def events_logged() -> Iterator[None]:
    """Log to systemd's journal if stderr leads to it, else to stderr with times."""
    handler: logging.Handler = logging.StreamHandler()
    if is_journal(_STDERR, os.environ.get("JOURNAL_STREAM")):
        handler = JournalHandler(fallback=handler)
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger("slo_ctl")
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        # Another command in this process may have another stderr.
        root.setLevel(level)
        root.removeHandler(handler)
        handler.close()
