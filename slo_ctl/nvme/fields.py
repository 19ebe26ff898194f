"""Checked reading of nvme-cli's JSON: what a drive says is bounded and never trusted to have a type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slo_ctl.nvme.errors import NvmeSchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_128 = (1 << 128) - 1
_DIGITS = len(str(MAX_128))
_TEXT = 256
_ENTRIES = 4096


def parse_uint(value: object, largest: int = MAX_128) -> int | None:
    """A number from 0 to `largest`, written as JSON number or as string of decimal digits; None for others.

    Version 2.3 writes 128-bit counters as strings, 2.13 and 3.0 as numbers.
    """
    if isinstance(value, str):
        # Not int(): it takes signs, blanks, underscores and other scripts' digits.
        if not (value.isascii() and value.isdigit() and len(value) <= _DIGITS):
            return None
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= largest else None


class Fields:
    """One JSON object; `where` says which, in messages. Every method raises NvmeSchemaError."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where

    def has(self, *names: str) -> bool:
        """Whether one of these is there."""
        return any(name in self._values for name in names)

    def uint(self, *names: str, bits: int = 64, default: int | None = None) -> int:
        """The number under the first of `names` that is there, less than 2**bits."""
        for name in names:
            if name in self._values:
                value = parse_uint(self._values[name], (1 << bits) - 1)
                if value is None:
                    raise self._wrong(name, f"no number below 2**{bits}")
                return value
        if default is None:
            raise NvmeSchemaError(self._where, f"{names[0]} is missing")
        return default

    def wide(self, *names: str) -> int:
        """A 128-bit number that is split into `hi` and `lo`, or whole."""
        for name in names:
            if isinstance(self._values.get(name), dict):
                halves = Fields(self._values[name], f"{self._where}: {name}")
                return halves.uint("hi") << 64 | halves.uint("lo")
        return self.uint(*names, bits=128)

    def text(self, name: str, default: str | None = None) -> str:
        """A string without the blanks that pad it."""
        value = self._values.get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, "no text")
        if len(value) > _TEXT:
            raise self._wrong(name, f"longer than {_TEXT} characters")
        return value.strip()

    def each(self, name: str, default_empty: bool = False) -> Iterator[Fields]:
        """The objects of an array."""
        values = self._values.get(name, [] if default_empty else None)
        if not isinstance(values, list):
            raise self._wrong(name, "no array")
        if len(values) > _ENTRIES:
            raise self._wrong(name, f"longer than {_ENTRIES} entries")
        for index, value in enumerate(values):
            where = f"{self._where}: {name}[{index}]"
            if not isinstance(value, dict):
                raise NvmeSchemaError(where, "no object")
            yield Fields(value, where)

    def _wrong(self, name: str, problem: str) -> NvmeSchemaError:
        if name not in self._values:
            return NvmeSchemaError(self._where, f"{name} is missing")
        value = self._values[name]
        # What is nested is not shown: it may be deep.
        shown = type(value).__name__ if isinstance(value, dict | list) else repr(value)[:40]
        return NvmeSchemaError(self._where, f"{name} is {shown} and {problem}")
