"""The only error of trace reading and writing: file, place, reason and hint, in one line."""

from __future__ import annotations

import os


class TraceError(Exception):
    """A trace file cannot be used, or a part of it.

    `str()` is one line: ``path:line: field: reason (hint)``; binary formats name the record and byte offset.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        reason: str,
        *,
        line: int | None = None,
        record: int | None = None,
        byte_offset: int | None = None,
        field: str | None = None,
        hint: str = "",
    ) -> None:
        self.path = os.fspath(path)
        self.reason = reason
        self.line = line
        self.record = record
        self.byte_offset = byte_offset
        self.field = field
        self.hint = hint
        super().__init__(self.message)

    def __reduce__(self) -> tuple[type[TraceError], tuple[str, str], dict[str, object]]:
        """Pickle it with all arguments: worker processes raise it, too."""
        return type(self), (self.path, self.reason), self.__dict__

    @property
    def message(self) -> str:
        """The line without the hint."""
        where = printable(self.path)
        if self.line is not None:
            where += f":{self.line}"
        if self.record is not None:
            where += f": record {self.record}"
        if self.byte_offset is not None:
            where += f" at byte {self.byte_offset}"
        field = f"{self.field}: " if self.field else ""
        return f"{where}: {field}{self.reason}"

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


def printable(text: str, limit: int = 200) -> str:
    """`text` for one line of a terminal: control characters escaped, cut at `limit` characters."""
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text[: limit + 1]
    )
    return shown if len(shown) <= limit else shown[:limit] + "..."
