"""Numbers and units for display; an unknown number is a dash, never a zero."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Number = TypeVar("Number", int, float)

UNKNOWN = "\u2013"
_BYTE_UNITS = ((2**50, "PiB"), (2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def count(value: float | None) -> str:
    """`12,345`; with one decimal below 10 unless it is whole."""
    if value is None:
        return UNKNOWN
    if abs(value) < 10 and value != int(value):
        return f"{value:.1f}"
    return f"{value:,.0f}"


def percent(share: float | None, digits: int = 1) -> str:
    """A share 0..1 as `12.3%`."""
    return UNKNOWN if share is None else f"{share * 100:.{digits}f}%"


def signed_percent(change: float | None) -> str:
    """A relative change such as `+3.2%`; a negative one has a minus sign (U+2212)."""
    if change is None:
        return UNKNOWN
    text = f"{abs(change) * 100:.1f}%"
    if float(f"{change * 100:.1f}") == 0:
        return text
    return ("+" if change > 0 else "\u2212") + text


def decimal(value: float | None, digits: int = 2) -> str:
    """A plain number such as a WAF."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def weight(value: float) -> str:
    """A weight in its shortest form, without an exponent."""
    return f"{value:.0f}" if float(value).is_integer() else f"{value:g}"


def size(size_bytes: float | None) -> str:
    """Bytes in the largest binary unit with a number of at least 1."""
    if size_bytes is None:
        return UNKNOWN
    for unit, name in _BYTE_UNITS:
        if size_bytes >= unit:
            return f"{_digits(size_bytes / unit)} {name}"
    return f"{size_bytes:.0f} B"


def bandwidth(bytes_s: float | None) -> str:
    """Bytes per second as MB/s (decimal)."""
    return UNKNOWN if bytes_s is None else f"{bytes_s / 1e6:,.1f} MB/s"


def latency(microseconds: float | None) -> str:
    """`813 µs`, `1.24 ms` or `1.25 s`."""
    if microseconds is None:
        return UNKNOWN
    if microseconds < 999.5:
        return f"{microseconds:.0f} µs"
    if microseconds < 999_500:
        return f"{_digits(microseconds / 1000)} ms"
    return f"{_digits(microseconds / 1e6)} s"


def duration(seconds: float) -> str:
    """`10 s`, `2 min`, `3.5 h` or `2 d`."""
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit_s or (seconds >= unit_s and seconds % unit_s == 0):
            return f"{_digits(seconds / unit_s, 2)} {unit}"
    return f"{_digits(seconds)} s"


def _digits(value: float, significant: int = 3) -> str:
    """With so many significant digits, or all of those of a whole number; never with an exponent."""
    return f"{value:.{significant}g}" if value < 10**significant - 0.5 else f"{value:,.0f}"


def max_known(values: Iterable[Number | None]) -> Number | None:
    """The greatest of the values that are not None; None when all are None."""
    return max((value for value in values if value is not None), default=None)


def weighted_mean(values: Iterable[tuple[float | None, float]]) -> float | None:
    """The mean of values with weights, without those that are None; None when no weight is left."""
    known = [(value, weight) for value, weight in values if value is not None]
    total_weight = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total_weight if total_weight else None


def sum_known(values: Iterable[Number | None]) -> Number | None:
    """The sum of the values that are not None; None when all are None."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
