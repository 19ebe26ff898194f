"""Which synthetic workloads there are and what each one's parameters may be.

The registry is `traces.synth.WORKLOADS`; this is the one place that knows its shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from slo_ctl.replay.fields import Fields, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["fraction", "number", "bytes"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """What one parameter of a workload accepts."""

    kind: Kind
    low: float
    """Least accepted value, inclusive."""
    high: float
    """Largest accepted value, inclusive."""


_READ = {"read": Parameter("fraction", 0.0, 1.0)}
_REQUEST = {**_READ, "bs": Parameter("bytes", 512, 64 * 2**20)}
_OPEN_UNIT = (1e-6, 1 - 1e-6)

_PARAMETERS: dict[str, dict[str, Parameter]] = {
    "uniform": _REQUEST,
    "zipf": {**_REQUEST, "theta": Parameter("number", 0.0, 4.0)},
    "hotcold": {**_REQUEST, "r": Parameter("fraction", *_OPEN_UNIT), "f": Parameter("fraction", *_OPEN_UNIT)},
    "sequential": _REQUEST,
    "financial": {},
    "msn": {},
    "exchange": {},
}

WORKLOAD_NAMES = tuple(_PARAMETERS)


def check_workload(fields: Fields, workload: str) -> dict[str, float]:
    """The parameters of `workload` among the keys of `fields` not asked for yet, validated.

    Sizes are in bytes, shares are 0..1. Raises UserError naming the key.
    """
    known = _PARAMETERS[workload]
    values: dict[str, float] = {}
    for key, parameter in known.items():
        value = _read(fields, key, parameter.kind)
        if value is None:
            continue
        if not parameter.low <= value <= parameter.high:
            fields.fail(
                key, "is out of range", f"{key} of {workload} is {parameter.low:g} to {parameter.high:g}"
            )
        values[key] = value
    return values


def _read(fields: Fields, key: str, kind: Kind) -> float | None:
    match kind:
        case "fraction":
            return fields.fraction(key)
        case "number":
            return fields.number(key)
        case "bytes":
            return fields.size(key)


def hint_for_workload(name: str) -> str:
    """The nearest workload's name, or all of them."""
    return did_you_mean(name, WORKLOAD_NAMES)


def texts(values: Mapping[str, float], workload: str) -> dict[str, str]:
    """The parameters as they are written on a command line."""
    from slo_ctl.replay.quantity import format_bytes_exact, format_number

    known = _PARAMETERS[workload]
    return {
        key: format_bytes_exact(int(value)) if known[key].kind == "bytes" else format_number(value)
        for key, value in values.items()
    }
