"""One TOML file: read safely, parsed, every problem told with file and line."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slo_ctl.config.locate import key_lines
from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from slo_ctl.config.locate import Location

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

    def fail(self, where: Location, problem: str, hint: str) -> UserError:
        """The error about what is at `where`."""
        return UserError(f"{self.path}:{self.line(where)}: {problem}", hint)


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
                raise UserError(f"{path}: is no regular file", "put a TOML file there, or nothing")
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        if path.is_symlink():
            raise UserError(f"{path}: is a link to nothing", "remove it or what it names") from None
        return None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder", "put a TOML file there, or nothing") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", "see who may read it, and its folder") from None
    if len(content) > MAX_BYTES:
        raise UserError(f"{path}: is larger than {MAX_BYTES >> 20} MiB", "split it over files in conf.d")
    return content


def _syntax(path: Path, text: str, message: str) -> UserError:
    found = _AT.search(message)
    line = found["line"] if found and found["line"] else str(len(text.splitlines()) or 1)
    problem = _AT.sub("", message)
    return UserError(f"{path}:{line}: {problem}", 'TOML has [table] and key = value; texts need "quotes"')
