"""One TOML file: read safely, parsed, every problem reported with file and line."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from bisect import bisect_right
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slo_ctl.base.errors import UserError

# On which line of a TOML file a key is: tomllib keeps no positions.

Location = tuple[str | int, ...]
"""Keys and indices that lead to a value, as in pydantic's errors."""

_SPACE = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_STRING = re.compile(
    r"""
      \"{3}(?:[^\\]|\\.)*?\"{3,5}    # several lines, with escapes
    | '{3}.*?'{3,5}                  # several lines
    | "(?:[^"\\\n]|\\.)*"            # with escapes
    | '[^'\n]*'
    """,
    re.DOTALL | re.VERBOSE,
)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}\n#]*")


def key_lines(text: str) -> dict[Location, int]:
    """The line, from 1, on which each key, table and element of an array is mentioned first.

    `text` is TOML that tomllib can read. Raises ValueError for other text, or says anything about it.
    """
    scanner = _Scanner(text.replace("\r\n", "\n"))
    scanner.document()
    return scanner.lines


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Location, int] = {}
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._array_lengths: dict[Location, int] = {}

    def document(self) -> None:
        """Every table and pair up to the end."""
        table: Location = ()
        self._skip_space()
        while self.at < len(self.text):
            if self.text.startswith("[[", self.at):
                table = self._array_header()
            elif self.text.startswith("[", self.at):
                table = self._header()
            else:
                self._pair(table)
            self._skip_space()

    def _array_header(self) -> Location:
        line = self._line()
        *outer, last = self._bracketed("[[", "]]")
        where = (*self._enter(outer, line), last)
        index = self._array_lengths.get(where, 0)
        self._array_lengths[where] = index + 1
        self._mention(where, line)
        self._mention((*where, index), line)
        return (*where, index)

    def _header(self) -> Location:
        line = self._line()
        return self._enter(self._bracketed("[", "]"), line)

    def _bracketed(self, opening: str, closing: str) -> list[str]:
        self.at += len(opening)
        keys = self._dotted()
        self._expect(closing)
        return keys

    def _enter(self, keys: list[str], line: int) -> Location:
        """Where a header leads: a key of an array of tables means the last of them."""
        where: Location = ()
        for key in keys:
            where = (*where, key)
            self._mention(where, line)
            if where in self._array_lengths:
                where = (*where, self._array_lengths[where] - 1)
        return where

    def _pair(self, table: Location) -> None:
        line = self._line()
        where = table
        for key in self._dotted():
            where = (*where, key)
            self._mention(where, line)
        self._expect("=")
        self._value(where)

    def _dotted(self) -> list[str]:
        keys = []
        while True:
            self._skip_space()
            quoted = self.text[self.at] in "\"'" if self.at < len(self.text) else False
            raw = self._take(_STRING if quoted else _BARE_KEY)
            keys.append(str(tomllib.loads(f"key = {raw}")["key"]) if quoted else raw)
            self._skip_space()
            if not self.text.startswith(".", self.at):
                return keys
            self.at += 1

    def _value(self, where: Location) -> None:
        self._skip_space()
        match self.text[self.at : self.at + 1]:
            case "[":
                self._array(where)
            case "{":
                self._inline_table(where)
            case '"' | "'":
                self._take(_STRING)
            case _:
                self._take(_SCALAR)

    def _array(self, where: Location) -> None:
        self._expect("[")
        index = 0
        while not self._closes("]"):
            element = (*where, index)
            self._mention(element, self._line())
            self._value(element)
            self._comma()
            index += 1

    def _inline_table(self, where: Location) -> None:
        self._expect("{")
        while not self._closes("}"):
            self._pair(where)
            self._comma()

    def _closes(self, bracket: str) -> bool:
        self._skip_space()
        if self.at >= len(self.text):
            raise ValueError(f"no {bracket} before the end")
        if self.text.startswith(bracket, self.at):
            self.at += 1
            return True
        return False

    def _comma(self) -> None:
        self._skip_space()
        if self.text.startswith(",", self.at):
            self.at += 1

    def _expect(self, what: str) -> None:
        self._skip_space()
        if not self.text.startswith(what, self.at):
            raise ValueError(f"no {what} on line {self._line()}")
        self.at += len(what)

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None or (not match[0] and pattern is not _SCALAR):
            raise ValueError(f"not understood: line {self._line()}")
        self.at = match.end()
        return match[0]

    def _skip_space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def _line(self) -> int:
        return bisect_right(self._starts, self.at)

    def _mention(self, where: Location, line: int) -> None:
        self.lines.setdefault(where, line)


MAX_BYTES = 1 << 20
"""Room for some ten thousand VMs in one file."""

_AT = re.compile(r" \(at (?:line (?P<line>\d+), column \d+|end of document)\)$")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file that is TOML."""

    path: Path
    tables: dict[str, Any]
    lines: dict[Location, int]

    def line(self, where: Location) -> int:
        """Of a key or element, or else of the nearest thing around it that has a line."""
        while where and where not in self.lines:
            where = where[:-1]
        return self.lines.get(where, 1)

    def value(self, where: Location) -> Any:
        """The value at `where`, as it is written."""
        value: Any = self.tables
        for key in where:
            value = value[key]
        return value

    def without(self, places: Iterable[Location]) -> ConfigFile:
        """The file as if what is at these places were not in it; what is left keeps its lines."""
        tables, lines = deepcopy(self.tables), self.lines
        # The last elements of a list first: those before them keep their places.
        for *outer, last in sorted(
            set(places), key=lambda where: [str(part).zfill(9) for part in where], reverse=True
        ):
            holder: Any = tables
            for key in outer:
                holder = holder[key]
            del holder[last]
            if isinstance(last, int):
                lines = _without_element(lines, tuple(outer), last)
        return ConfigFile(self.path, tables, lines)

    def fail(self, where: Location, problem: str, hint: str) -> UserError:
        """The error about what is at `where`."""
        return UserError(f"{self.path}:{self.line(where)}: {problem}", hint)


def _without_element(lines: dict[Location, int], array: Location, removed: int) -> dict[Location, int]:
    """Lines of keys by their places once an element of the array is gone: those after it move up."""
    left: dict[Location, int] = {}
    for where, line in lines.items():
        index = where[len(array)] if where[: len(array)] == array and len(where) > len(array) else None
        if isinstance(index, int) and index > removed:
            left[*array, index - 1, *where[len(array) + 1 :]] = line
        elif index != removed:
            left[where] = line
    return left


def read_file(path: Path) -> ConfigFile | None:
    """The file, None when there is none. Raises UserError when it cannot be read or is no TOML."""
    content = _content(path)
    if content is None:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: is not UTF-8 text", "save the file as UTF-8") from None
    if text.startswith("\ufeff"):
        raise UserError(f"{path}:1: starts with a byte order mark", "save the file as UTF-8 without one")
    try:
        return ConfigFile(path, tomllib.loads(text), key_lines(text))
    except tomllib.TOMLDecodeError as error:
        raise _syntax(path, text, str(error)) from None
    except RecursionError:
        raise UserError(
            f"{path}:1: is nested too deeply", "no setting needs more than three levels"
        ) from None
    except ValueError as error:  # a number of thousands of digits
        raise UserError(f"{path}:1: cannot be read: {error}", "look for a value far too long") from None


def _content(path: Path) -> bytes | None:
    try:
        # Non-blocking: a FIFO in the place of a file must not stop us.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UserError(f"{path}: is not a regular file", "replace it with a TOML file, or remove it")
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        if path.is_symlink():
            raise UserError(f"{path}: is a dangling link", "remove the link, or create its target") from None
        return None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory", "replace it with a TOML file, or remove it") from None
    except OSError as error:
        raise UserError(
            f"{path}: {error.strerror}", "check its permissions and those of its directory"
        ) from None
    if len(content) > MAX_BYTES:
        raise UserError(
            f"{path}: is larger than {MAX_BYTES >> 20} MiB", "split it into several files in conf.d"
        )
    return content


def _syntax(path: Path, text: str, message: str) -> UserError:
    found = _AT.search(message)
    line = found["line"] if found and found["line"] else str(len(text.splitlines()) or 1)
    problem = _AT.sub("", message)
    return UserError(f"{path}:{line}: {problem}", 'TOML has [table] and key = value; texts need "quotes"')
