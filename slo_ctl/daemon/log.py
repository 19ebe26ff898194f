"""The daemon's log: each event as a line, once, to stderr or with fields to systemd's journal."""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from slo_ctl.base.text import counted, printable
from slo_ctl.daemon.status import VerdictChange
from slo_ctl.model import Decision, Outcome, OutcomeState
from slo_ctl.model.decision import change_of, value_text

# Decisions and outcomes as sentences, for logs and plans.


def decided(decision: Decision) -> Iterator[str]:
    """One sentence for each thing that a policy wants changed."""
    for move in decision.moves:
        blocks = counted(move.blocks, "OPS block")
        yield f"{blocks} from {move.source or 'spare'} to {move.target or 'spare'}"
    for vm, limit in decision.limits_iops.items():
        yield f"{vm}: no limit" if limit is None else f"{vm}: limit {limit:,.0f} IOPS"
    for vm, weight in decision.scheduler_weights.items():
        yield f"{vm}: scheduler weight {weight:.3g}"


def outcome_line(outcome: Outcome) -> str:
    """State of a setting after it was applied."""
    setting = outcome.setting
    what = f"{setting.vm}: {setting.knob}" if setting.vm else str(setting.knob)
    reason = f": {outcome.reason}" if outcome.reason else ""
    match outcome.state:
        case OutcomeState.UNAPPLIED:
            return f"{what} = {value_text(setting.value)}: unapplied{reason}"
        case OutcomeState.UNCHANGED:
            return f"{what} stays {value_text(outcome.after)}{reason}"
        case _:
            before = value_text(change_of(outcome.before, setting.value)[0])
            after = value_text(change_of(outcome.after, setting.value)[0])
            return f"{what}: {before} -> {after} ({outcome.state}; {setting.reason}){reason}"


def fields_of(outcome: Outcome) -> dict[str, str]:
    """Journal fields of a line: `extra` of the log."""
    return {"vm": outcome.setting.vm}


# Sentences that are reported once, though they hold for many epochs.

_KEPT = 5


class RecentReasons:
    """Recent decisions, and which of them are new."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._recent: deque[str] = deque(maxlen=kept)
        self._holding: frozenset[str] = frozenset()
        self.ended: list[str] = []
        """Sentences of the previous epoch that are no longer true."""

    def add(self, sentences: Iterable[str]) -> list[str]:
        """Those of one epoch; returns the new ones, neither in force already nor reported recently."""
        now = list(dict.fromkeys(sentences))
        begun = [sentence for sentence in now if sentence not in self._holding]
        new = [sentence for sentence in begun if sentence not in self._recent]
        self.ended = sorted(self._holding - set(now))
        self._holding = frozenset(now)
        for sentence in begun:
            if sentence in self._recent:
                self._recent.remove(sentence)
            self._recent.append(sentence)
        return new

    @property
    def recent(self) -> tuple[str, ...]:
        """The last few, oldest first."""
        return tuple(self._recent)


# What is new of an epoch is logged, once.

log = logging.getLogger("slo_ctl.daemon")

REMEMBERED = 200
"""Sentences, where devices or VMs may be many."""


class EpochLog:
    """Remembers what was said."""

    def __init__(self) -> None:
        self._said = RecentReasons(REMEMBERED)
        self._fields: dict[str, dict[str, str]] = {}
        """Journal fields of the sentences of the previous epoch."""
        self._reasons: dict[str, RecentReasons] = {}

    def wrong(self, problems: Mapping[str, str], outcomes: Iterable[Outcome]) -> None:
        """Problems by device, and settings that could not be applied; and which of them are over."""
        sentences = {
            f"device {name}: {problem.removeprefix(f'{name}: ')}": {"device": name}
            for name, problem in problems.items()
        }
        sentences |= {
            outcome_line(each): fields_of(each) for each in outcomes if each.state is OutcomeState.UNAPPLIED
        }
        for line in self._said.add(sentences):
            log.warning("%s", line, extra=sentences[line])
        for line in self._said.ended:
            log.info("over: %s", line, extra=self._fields[line])
        self._fields = sentences

    def verdicts(self, changes: Iterable[VerdictChange]) -> None:
        """SLOs that are not kept any more, and that are kept again; the history has all changes."""
        for change in changes:
            if not (change.is_degraded or change.was_degraded):
                continue
            where = f"{change.vm} on {change.device}" if change.device else change.vm
            log.log(
                logging.WARNING if change.is_degraded else logging.INFO,
                "VM %s: %s: %s",
                printable(where),
                change.verdict,
                printable(change.reason),
                extra={"vm": change.vm, "device": change.device, "verdict": change.verdict.value},
            )

    def decided(self, device: str, reasons: Iterable[str], kept: int | None = None) -> None:
        """Log new decisions of a device with reasons; the last `kept` are not repeated."""
        known = self._reasons.setdefault(device, RecentReasons() if kept is None else RecentReasons(kept))
        for reason in known.add(reasons):
            log.info("device %s: %s", device, reason, extra={"device": device})

    def recent(self, device: str) -> tuple[str, ...]:
        """Recent decisions for a device."""
        reasons = self._reasons.get(device)
        return reasons.recent if reasons is not None else ()


# Log lines as entries of systemd's journal, with fields to search by.


SOCKET = "/run/systemd/journal/socket"
IDENTIFIER = "slo-ctl"
FIELDS = {"vm": "VM", "device": "DEVICE", "verdict": "VERDICT"}
"""By key of a log line's `extra`. A sequence of texts becomes a field with several values."""

_TIMEOUT_S = 1.0
_LENGTH = struct.Struct("<Q")


def is_journal(descriptor: int, stream: str | None) -> bool:
    """Whether a descriptor is the journal's, whose `$JOURNAL_STREAM` is `DEVICE:INODE`."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return stream == f"{found.st_dev}:{found.st_ino}"


class JournalHandler(logging.Handler):
    """Sends each line as one datagram, in the journal's native protocol; else hands it on."""

    def __init__(self, otherwise: logging.Handler, path: str = SOCKET) -> None:
        super().__init__()
        self._otherwise = otherwise
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(_TIMEOUT_S)

    def emit(self, record: logging.LogRecord) -> None:
        """Send it."""
        try:
            # Not connected, so that a journal that was started again is found again.
            self._socket.sendto(self._entry(record), self._path)
        except OSError:
            self._otherwise.handle(record)
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """No line after this."""
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
    """One field. A text of several lines has its length in front: none of them is taken for a field."""
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
    """The syslog priority."""
    if level >= logging.ERROR:
        return "3"
    if level >= logging.WARNING:
        return "4"
    return "6" if level >= logging.INFO else "7"


_STDERR = 2


def log_events() -> None:
    """One line for each event: to systemd's journal where stderr is that, else to stderr, with times."""
    handler: logging.Handler = logging.StreamHandler()
    if is_journal(_STDERR, os.environ.get("JOURNAL_STREAM")):
        handler = JournalHandler(otherwise=handler)
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger("slo_ctl")
    root.addHandler(handler)
    root.setLevel(logging.INFO)
