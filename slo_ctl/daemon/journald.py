"""Log lines as entries of systemd's journal, with fields to search by."""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Iterable, Iterator

SOCKET = "/run/systemd/journal/socket"
IDENTIFIER = "slo-ctl"
FIELDS = {"vm": "SLO_CTL_VM", "device": "SLO_CTL_DEVICE", "verdict": "SLO_CTL_VERDICT"}
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
