"""Parsing of `key=value` lists and tables; every error names the place and the key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from typing import NoReturn, TypeVar

from slo_ctl.base.errors import UserError
from slo_ctl.base.quantity import (
    Duration,
    QuantityError,
    parse_bytes,
    parse_count,
    parse_duration,
    parse_fraction,
    parse_number,
    parse_time_s,
)

T = TypeVar("T")


def _nearest(word: str, names: Sequence[str]) -> str:
    """`did you mean web?` with the name most like `word`, or up to three that are equally; else empty."""
    near = get_close_matches(word, names)
    likeness = [SequenceMatcher(None, name, word).ratio() for name in near]
    best = sorted(name for name, ratio in zip(near, likeness, strict=True) if ratio == likeness[0])
    if not best:
        return ""
    *others, last = best
    first = f"{', '.join(others)} or " if others else ""
    return f"did you mean {first}{last}?"


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint for a word that is not in `known`: the nearest of them, else `otherwise` or all of them."""
    names = sorted(known)
    listed = otherwise or (f"known: {', '.join(names)}" if names else "there are none")
    return _nearest(word.casefold(), names) or listed


def near_or_listed(word: str, known: Iterable[str], none: str) -> str:
    """A hint for a name that is not in `known`: the nearest, or the first ten; `none` when it is empty."""
    names = sorted(known)
    more = ", ..." if len(names) > 10 else ""
    listed = f"there are: {', '.join(names[:10])}{more}" if names else none
    return _nearest(word, names) or listed


def split_pairs(where: str, text: str) -> dict[str, str]:
    """`a=1,b=2` as a mapping; a comma inside a value is written twice, as in virt-install.

    Raises UserError for a part without `=`, an empty key, or a key given twice.
    """
    comma = "\0"
    pairs: dict[str, str] = {}
    for part in text.replace(",,", comma).split(","):
        word = part.replace(comma, ",")
        key, equals, value = word.partition("=")
        key = key.strip().casefold()
        if not equals or not key:
            nothing = "there is nothing between two commas" if text else "the value is empty"
            problem = f'"{word}" is not key=value' if word else nothing
            raise UserError(f"{where}: {problem}", "write key=value,key=value; double a comma inside a value")
        if key in pairs:
            raise UserError(f"{where}: {key} is given twice", "give each key once")
        pairs[key] = value.strip()
    return pairs


def join_pairs(pairs: Mapping[str, str]) -> str:
    """The inverse of `split_pairs`."""
    return ",".join(f"{key}={value.replace(',', ',,')}" for key, value in pairs.items())


class Fields:
    """The values of one table by key; `finish` refuses keys that were never read."""

    def __init__(
        self, where: str, values: Mapping[str, object], places: Mapping[str, str] | None = None
    ) -> None:
        """`where`: the table. `places`: those of its keys that are elsewhere, such as on lines below."""
        self.where = where
        self._places = places or {}
        self._values = {key: _as_text(self.place(key), key, value) for key, value in values.items()}
        self._read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def place(self, key: str) -> str:
        """Where a key is, or would be."""
        return self._places.get(key, self.where)

    def fail(self, key: str, problem: str, hint: str = "") -> NoReturn:
        """Raise UserError about the value of `key`: `WHERE: key=value PROBLEM`."""
        raise UserError(f"{self.place(key)}: {key}={self._values.get(key, '')} {problem}", hint)

    def text(self, key: str) -> str | None:
        """The value as text; None when absent."""
        self._read.add(key)
        value = self._values.get(key)
        if value == "":
            self.fail(key, "has no value", f"write {key}=VALUE or leave {key} out")
        return value

    def choice(self, key: str, known: Iterable[str]) -> str | None:
        value = self.text(key)
        names = tuple(known)
        if value is not None and value not in names:
            self.fail(key, "is not known", did_you_mean(value, names))
        return value

    def size(self, key: str) -> int | None:
        """A size in bytes, at least 1."""
        return self._parse(key, parse_bytes)

    def duration(self, key: str) -> Duration | None:
        """A duration or a moment, not negative."""
        return self._parse(key, parse_duration)

    def time_s(self, key: str) -> float | None:
        """A time with its unit, in seconds, more than 0."""
        return self._bounded(key, parse_time_s, 0, None)

    def number(
        self, key: str, above: float | None = None, least: float | None = None, most: float | None = None
    ) -> float | None:
        """A finite number more than `above`, or at least `least`; and at most `most`."""
        value = self._bounded(key, parse_number, above, least)
        if value is not None and most is not None and value > most:
            self.fail(key, f"is more than {most:,.0f}", f"write {key}={most:.0f} or less")
        return value

    def count(self, key: str, least: int = 1, most: int | None = None) -> int | None:
        """A whole number from `least` to `most`."""
        value = self._parse(key, parse_count)
        if value is not None and (value < least or (most is not None and value > most)):
            limit = f"from {least} to {most}" if most is not None else f"{least} or more"
            self.fail(key, "is out of range", f"{key} must be {limit}")
        return value

    def fraction(self, key: str) -> float | None:
        """A share more than 0, as a percentage or a number."""
        return self._bounded(key, parse_fraction, 0, None)

    def flag(self, key: str) -> bool | None:
        """yes or no."""
        value = self.choice(key, ("yes", "no", "true", "false", "on", "off"))
        return None if value is None else value in ("yes", "true", "on")

    def rest(self) -> dict[str, str]:
        """The values that were not read yet; they count as read from now on."""
        left = {key: value for key, value in self._values.items() if key not in self._read}
        self._read.update(left)
        return left

    def finish(self) -> None:
        """Raise UserError for a key that was never read."""
        for key in self._values:
            if key not in self._read:
                raise UserError(f"{self.place(key)}: unknown key {key}", did_you_mean(key, self._read))

    def _parse(self, key: str, parse: Callable[[str], T]) -> T | None:
        value = self.text(key)
        if value is None:
            return None
        try:
            return parse(value)
        except QuantityError as error:
            self.fail(key, str(error), _EXAMPLES.get(parse.__name__, ""))

    def _bounded(
        self, key: str, parse: Callable[[str], float], above: float | None, least: float | None
    ) -> float | None:
        value = self._parse(key, parse)
        if value is not None and above is not None and value <= above:
            self.fail(key, f"is not more than {above:g}", _USUAL.get(key, f"write {key}=1 or more"))
        if value is not None and least is not None and value < least:
            self.fail(key, f"is less than {least:g}", f"write {key}={least:g} or more")
        return value


_USUAL = {
    "op": "such as op=15%",
    "p99": "such as p99=5ms",
    "scale": "such as scale=2, twice as fast",
    "weight": "such as weight=3",
}
_EXAMPLES = {
    "parse_bytes": "k, M, G, T and KiB, MiB, GiB, TiB are powers of two; kB, MB, GB, TB are powers of ten",
    "parse_duration": "20x is twenty full drive writes; 600s, 5m and 2h are virtual time",
    "parse_fraction": "write a percentage such as 15% or a number such as .15",
    "parse_number": "write a plain number such as 3 or 0.5",
    "parse_count": "write a whole number such as 4",
}


def _as_text(where: str, key: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | str):
        return str(value)
    raise UserError(f"{where}: {key} must be a single value", f'write {key} = "..." or a number')
