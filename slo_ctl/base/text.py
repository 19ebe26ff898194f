"""Text for display: names made safe for a terminal, options in commands, counts and lists in sentences."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection
from pathlib import Path

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def printable(text: str) -> str:
    r"""`text` with every control, bidirectional and other unprintable character written as an escape.

    The result is one line: a name cannot move the cursor, change colours or reorder the line.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def mention_of(name: str) -> re.Pattern[str]:
    """Finds the name of a VM in a sentence: `web` is not in `web2` or `web-1`."""
    # Names may end in any character.
    return re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)")


def toml_key(name: str) -> str:
    """A name as a key of TOML, such as in `[vm.NAME]`: in quotes unless it needs none."""
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def root_option(root: Path | None) -> str:
    """` --root DIR` for the end of a command in a hint; empty without one."""
    return f" --root {shlex.quote(str(root))}" if root is not None else ""


def cut(text: str) -> str:
    """At most 60 characters."""
    return text if len(text) <= 60 else text[:57] + "..."


def counted(number: int, noun: str) -> str:
    """`1 setting`, `2 settings`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def and_list(words: Collection[str], *, in_order: bool = False) -> str:
    """`a, b and c`, sorted unless `in_order`."""
    *first, last = (words if in_order else sorted(words)) or ("nobody",)
    return f"{', '.join(first)} and {last}" if first else last
