"""One TOML file: read safely, parsed, every problem reported with file and line."""

from __future__ import annotations

import errno
import re
import tomllib
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftl_emul._core import toml_lines
from slo_ctl.base.errors import UserError
from slo_ctl.base.files import read_regular

Location = tuple[str | int, ...]
"""Keys and indices that lead to a value, as in pydantic's errors."""
MAX_BYTES = 1 << 20
"""Room for some ten thousand VMs in one file."""

_HINTS = {
    errno.EINVAL: "replace it with a TOML file, or remove it",
    errno.EFBIG: "split it into several files in conf.d",
}
_CHECK_PERMISSIONS = "check its permissions and those of its directory"
_AT = re.compile(r" \(at (?:line (?P<line>\d+), column \d+|end of document)\)$")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A parsed TOML file."""

    path: Path
    tables: dict[str, Any]
    lines: dict[Location, int]

    def line(self, where: Location) -> int:
        """Line of a key or element; without one, that of the nearest table or array around it."""
        while where and where not in self.lines:
            where = where[:-1]
        return self.lines.get(where, 1)

    def value(self, where: Location) -> Any:
        value: Any = self.tables
        for key in where:
            value = value[key]
        return value

    def without(self, locations: Iterable[Location]) -> ConfigFile:
        """The file without the values at these places; the rest keeps its line numbers."""
        tables, lines = deepcopy(self.tables), self.lines
        # The last elements of an array first, so that the indices before them stay valid.
        for *outer, last in sorted(
            set(locations), key=lambda where: [str(part).zfill(9) for part in where], reverse=True
        ):
            holder: Any = tables
            for key in outer:
                holder = holder[key]
            del holder[last]
            if isinstance(last, int):
                lines = _without_element(lines, tuple(outer), last)
        return ConfigFile(self.path, tables, lines)

    def fail(self, where: Location, problem: str, hint: str) -> UserError:
        """The error about the value at `where`."""
        return UserError(f"{self.path}:{self.line(where)}: {problem}", hint)


def _without_element(lines: dict[Location, int], array: Location, removed: int) -> dict[Location, int]:
    """Lines of keys after an element of an array was removed: the indices after it decrease by one."""
    left: dict[Location, int] = {}
    for where, line in lines.items():
        index = where[len(array)] if where[: len(array)] == array and len(where) > len(array) else None
        if isinstance(index, int) and index > removed:
            left[*array, index - 1, *where[len(array) + 1 :]] = line
        elif index != removed:
            left[where] = line
    return left


def key_lines(text: str) -> dict[Location, int]:
    """The line, from 1, on which each key, table and array element is first mentioned."""
    return {tuple(where): line for where, line in toml_lines(text)}


def read_file(path: Path) -> ConfigFile | None:
    """The parsed file; None when it does not exist. Raises UserError when it is unreadable or not TOML."""
    content = _content(path)
    if content is None:
        return None
    try:
        return parsed(path, content.decode())
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: is not UTF-8 text", "save the file as UTF-8") from None


def parsed(path: Path, text: str) -> ConfigFile:
    """The parsed text of a file. Raises UserError when it is not TOML."""
    if text.startswith("\ufeff"):
        raise UserError(f"{path}:1: starts with a byte order mark", "save the file as UTF-8 without one")
    try:
        return ConfigFile(path, tomllib.loads(text), key_lines(text))
    except tomllib.TOMLDecodeError as error:
        raise syntax_error(path, text, str(error)) from None
    except RecursionError:
        raise UserError(
            f"{path}:1: is nested too deeply", "no setting needs more than three levels"
        ) from None
    except ValueError as error:  # a number with thousands of digits
        raise UserError(
            f"{path}:1: cannot be read: {error}", "look for a number with too many digits"
        ) from None


def _content(path: Path) -> bytes | None:
    try:
        return read_regular(path, MAX_BYTES)
    except FileNotFoundError:
        if path.is_symlink():
            raise UserError(f"{path}: is a dangling link", "remove the link, or create its target") from None
        return None
    except OSError as error:
        raise UserError(
            f"{path}: {error.strerror}", _HINTS.get(error.errno or 0, _CHECK_PERMISSIONS)
        ) from None


def syntax_error(path: Path, text: str, message: str) -> UserError:
    """The error that text is not TOML; `message`: that of the parser."""
    found = _AT.search(message)
    line = found["line"] if found and found["line"] else str(len(text.splitlines()) or 1)
    problem, hint = _AT.sub("", message), 'TOML has [table] and key = value; texts need "quotes"'
    if twice := _DECLARED_TWICE.fullmatch(problem):
        name = ".".join(re.findall(r"'([^']*)'", twice["name"]))
        problem, hint = f"table {name} is defined twice", "put all its keys into one table"
    elif problem == "Cannot overwrite a value":
        problem, hint = "a key is given twice", "give each key once"
        if kind := _LIST_OF_TABLES.match(text.split("\n")[int(line) - 1]):
            problem = (
                f"[[{kind['name']}]] is in the same file as a table [{kind['name']}] or [{kind['name']}.NAME]"
            )
            hint = "write both in the same way, as in the documentation"
    return UserError(f"{path}:{line}: {problem}", hint)


_LIST_OF_TABLES = re.compile(r"\s*\[\[\s*(?P<name>[\w-]+)\s*\]\]")
_DECLARED_TWICE = re.compile(r"Cannot declare (?P<name>\(.*\)) twice")
