"""Patterns for names: `*` stands for any characters or none, `?` for one, everything else for itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache

_WILD = "*?"


def is_pattern(text: str) -> bool:
    """Whether the text has a wildcard."""
    return any(character in text for character in _WILD)


def matches(pattern: str, name: str) -> bool:
    """Whether `name` matches the pattern."""
    return _compiled(pattern).fullmatch(name) is not None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    first, *rest = [
        "".join("." if part == "?" else re.escape(part) for part in piece) for piece in pattern.split("*")
    ]
    if not rest:
        return re.compile(first, re.DOTALL)
    *middle, last = rest
    # The first place of each piece is as good as any later one: without (?>) all would be tried, for hours.
    pieces = "".join(f"(?>.*?{piece})" for piece in middle if piece)
    return re.compile(f"{first}{pieces}.*{last}", re.DOTALL)


def expand(
    words: Sequence[str],
    existing: Callable[[], Collection[str]],
    unmatched: Callable[[str, Collection[str]], Exception],
) -> list[str]:
    """Names given as words of a command line: patterns are replaced by the existing names that match.

    `existing` is called only if there is a pattern, or a list with commas. Raises `unmatched` of a pattern
    that matches no existing name; names without wildcards are not checked.
    """
    expanded: dict[str, None] = {}
    for word in _split_lists(words, existing):
        if not is_pattern(word):
            expanded[word] = None
            continue
        names = existing()
        matching = [word] if word in names else [name for name in names if matches(word, name)]
        if not matching:
            raise unmatched(word, names)
        expanded |= dict.fromkeys(matching)
    return list(expanded)


def _split_lists(words: Sequence[str], existing: Callable[[], Collection[str]]) -> Iterator[str]:
    """The words, and the parts of lists with commas that are not an existing name."""
    for word in words:
        parts = [part.strip() for part in word.split(",")]
        if len(parts) > 1 and all(parts) and word not in existing():
            yield from parts
        else:
            yield word


def specificity(pattern: str) -> int:
    """Number of characters that are not wildcards; of two matching patterns the more specific one wins."""
    return sum(character not in _WILD for character in pattern)


def common_name(first: str, second: str) -> str | None:
    """A name that matches both patterns; None when there is none."""
    names = {(0, 0): ""}
    waiting = [(0, 0)]
    while waiting:
        i, j = waiting.pop()
        a, b = first[i : i + 1], second[j : j + 1]
        if not a and not b:
            return names[i, j]
        # A star may end here, or both take one more character.
        steps = [((i + 1, j), "")] if a == "*" else []
        steps += [((i, j + 1), "")] if b == "*" else []
        if a and b and (a == b or a in _WILD or b in _WILD):
            character = next((literal for literal in (a, b) if literal not in _WILD), "x")
            steps.append(((i + (a != "*"), j + (b != "*")), character))
        for place, character in steps:
            if place not in names:
                names[place] = names[i, j] + character
                waiting.append(place)
    return None
