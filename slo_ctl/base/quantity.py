"""Parsing and formatting of sizes, shares, durations and counts.

Every `parse_*` raises QuantityError, whose text completes the sentence "VALUE ...".
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_BINARY = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}
_SIZE = re.compile(
    r"(?P<number>[0-9]*\.?[0-9]+|[0-9]+\.)\s*(?P<prefix>[kmgtp]?)(?P<rest>i?b?)", re.IGNORECASE
)
_DURATION = re.compile(r"(?P<number>[0-9]*\.?[0-9]+|[0-9]+\.)\s*(?P<unit>x|ms|s|m|min|h)")
_TIME = re.compile(r"(?P<number>[0-9]*\.?[0-9]+|[0-9]+\.)\s*(?P<unit>us|ms|s|min|m|h|d)")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_MAX_BYTES = 2**63 - 1
_MOST_VIRTUAL_S = 18_446_744_073.0
"""Virtual time is counted in nanoseconds of 64 bits."""


class QuantityError(ValueError):
    """The text is not a valid quantity; the message completes the sentence "VALUE ..."."""


@dataclass(frozen=True, slots=True)
class Duration:
    """A length or a moment of a run, either in drive writes or in virtual seconds."""

    drive_writes: float | None = None
    """Host page writes / logical pages of the device."""
    virtual_s: float | None = None

    def __post_init__(self) -> None:
        if (self.drive_writes is None) == (self.virtual_s is None):
            raise ValueError("a duration is either drive writes or virtual seconds")

    @property
    def amount(self) -> float:
        """The number without its unit."""
        if self.drive_writes is not None:
            return self.drive_writes
        return self.virtual_s if self.virtual_s is not None else 0.0

    @property
    def timed(self) -> bool:
        """Whether it is in seconds, not in drive writes."""
        return self.virtual_s is not None

    def with_amount(self, amount: float) -> Duration:
        """Another length or moment in the same unit."""
        return Duration(virtual_s=amount) if self.timed else Duration(drive_writes=amount)

    def __str__(self) -> str:
        return format_number(self.amount) + ("s" if self.timed else "x")


def parse_bytes(text: str) -> int:
    """A size in bytes: `8GiB`, `512MiB`, `4k` (binary, as fio and qemu-img read it), `10GB` (decimal)."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise QuantityError("is not a size such as 8GiB, 512MiB, 4k or 10GB")
    prefix, rest = match["prefix"].lower(), match["rest"].lower()
    # "GB" and "kB" are powers of ten; a bare letter and the "i" forms are powers of two.
    unit = _DECIMAL if rest == "b" else _BINARY
    if rest.startswith("i") and not prefix:
        raise QuantityError("is not a size such as 8GiB, 512MiB, 4k or 10GB")
    value = float(match["number"]) * unit[prefix]
    if value > _MAX_BYTES:
        raise QuantityError("is more bytes than 64 bits can count")
    exact = int(match["number"]) * unit[prefix] if match["number"].isdigit() else round(value)
    if exact <= 0:
        raise QuantityError("is not more than 0")
    return exact


def parse_number(text: str) -> float:
    """A finite number, of any sign."""
    try:
        value = float(text)
    except ValueError:
        raise QuantityError("is not a number") from None
    if not math.isfinite(value):
        raise QuantityError("is not a finite number")
    return value


def parse_count(text: str) -> int:
    """A whole number, of any sign."""
    try:
        return int(text)
    except ValueError:
        raise QuantityError("is not a whole number") from None


def parse_fraction(text: str) -> float:
    """A share of something, as `15%` or `.15`; finite, of any sign and size."""
    stripped = text.strip()
    if stripped.endswith("%"):
        return parse_number(stripped[:-1]) / 100
    return parse_number(stripped)


def parse_duration(text: str) -> Duration:
    """`20x` full drive writes, or virtual time as `250ms`, `600s`, `5m`, `2h`; not negative."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise QuantityError("is not a duration such as 20x (full drive writes), 600s or 5m")
    number, unit = float(match["number"]), match["unit"]
    if unit == "x":
        if not math.isfinite(number):
            raise QuantityError("is not a finite number of drive writes")
        return Duration(drive_writes=number)
    if number * _SECONDS[unit] > _MOST_VIRTUAL_S:
        raise QuantityError("is longer than 584 years")
    return Duration(virtual_s=number * _SECONDS[unit])


def parse_time_s(text: str) -> float:
    """Real time in seconds, from `200us`, `5ms`, `1s`, `5m`, `2h` or `7d`; finite, not negative."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise QuantityError("is not a time such as 250ms, 1s, 5m, 2h or 7d")
    value = float(match["number"]) * _SECONDS[match["unit"]]
    if not math.isfinite(value):
        raise QuantityError("is not a finite time")
    return value


def format_number(value: float) -> str:
    """The shortest text that parses as `value` (or `inf`), without a trailing `.0` or an exponent."""
    if not math.isfinite(value):
        return repr(float(value))
    if value == int(value) and abs(value) < 2**53:
        return str(int(value))
    text = repr(float(value))
    return text if "e" not in text else f"{Decimal(text):f}"


def format_bytes_exact(size_bytes: int) -> str:
    """The shortest exact text in binary units: `8GiB`, `1536MiB`, `1000`."""
    for prefix in ("p", "t", "g", "m", "k"):
        if size_bytes and size_bytes % _BINARY[prefix] == 0:
            return f"{size_bytes // _BINARY[prefix]}{'Ki' if prefix == 'k' else prefix.upper() + 'i'}B"
    return str(size_bytes)
