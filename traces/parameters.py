"""Typed parameters of workloads, from numbers or from the strings of a command line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal

Kind = Literal["float", "int", "bytes", "sizes", "mix"]
Value = float | int | str
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}
_DECIMAL_UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "pb": 10**15}
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([kmgtp]?)(i?b)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: name, allowed values, default."""

    name: str
    kind: Kind
    default: Value
    description: str
    low: float = -inf
    high: float = inf

    def parse(self, value: object) -> Value:
        """The value in its type. Raises ValueError, one line that names the parameter."""
        try:
            parsed = self._typed(value)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{self.name}: {error}") from None
        if not isinstance(parsed, str):
            if not isfinite(parsed):
                raise ValueError(f"{self.name}: '{value}' is not a finite number")
            if not self.low <= parsed <= self.high:
                raise ValueError(f"{self.name}: {value} is not in {self.bounds}")
        return parsed

    @property
    def bounds(self) -> str:
        """The range in words."""
        if self.high == inf:
            return f"{self.low:g} or more"
        return f"{self.low:g} .. {self.high:g}"

    def _typed(self, value: object) -> Value:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"a {type(value).__name__} is not a valid {self.kind}")
        match self.kind:
            case "float":
                return _number(value)
            case "int":
                number = _number(value)
                if isfinite(number) and number != int(number):
                    raise ValueError(f"'{value}' is not a whole number")
                return int(number) if isfinite(number) else number
            case "bytes":
                return size_bytes(value)
            case "sizes" | "mix":
                return str(value)


def _number(value: str | float) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"'{value}' is not a valid number") from None


def size_bytes(value: str | float) -> int:
    """Bytes, from a number or from text like 4096, 4KiB, 4k, 1.5GiB (powers of 1024) or 4KB (of 1000)."""
    if not isinstance(value, str):
        if not isfinite(value) or value != int(value):
            raise ValueError(f"{value} is not a valid size in bytes")
        return int(value)
    match = _SIZE.fullmatch(value.strip())
    if not match:
        raise ValueError(f"'{value}' is not a valid size (like 4096, 64KiB or 8GiB)")
    number, prefix, suffix = match[1], match[2].lower(), (match[3] or "").lower()
    unit = _DECIMAL_UNITS[f"{prefix}b"] if prefix and suffix == "b" else _UNITS[prefix]
    size = float(number) * unit if "." in number else int(number) * unit
    if size != int(size):
        raise ValueError(f"'{value}' is not a whole number of bytes")
    return int(size)


def weighted(text: str, what: str) -> list[tuple[str, float]]:
    """Parts and weights from ``a:3+b:1``; a part without a weight weighs 1. Raises ValueError."""
    parts: list[tuple[str, float]] = []
    for part in text.split("+"):
        name, colon, weight_text = part.strip().partition(":")
        weight = _number(weight_text) if colon else 1.0
        if not name:
            raise ValueError(f"'{text}' is not a list of {what} like a:3+b:1")
        if not isfinite(weight) or weight <= 0:
            raise ValueError(f"the weight '{weight_text}' of '{name}' is not positive")
        parts.append((name, weight))
    return parts
