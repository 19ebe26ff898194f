"""A HostStatus as JSON and back: what the API, `status --json` and the history's reader all speak.

Fields are named as those of the dataclasses, enumerations by their value, tuples are arrays and None is null.
What a newer daemon adds is ignored, what an older one lacks gets the dataclass's default.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from slo_ctl.model import DeviceWaf, HostStatus, MoveStatus, Outcome, SettingValue, Slo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FORMAT_VERSION = 1

_T = TypeVar("_T")
_HINT_NAMES = {
    "DeviceWaf": DeviceWaf,
    "Slo": Slo,
    "MoveStatus": MoveStatus,
    "Outcome": Outcome,
    "SettingValue": SettingValue,
}
"""What the model imports for type checkers only."""
_AS_THEY_ARE = frozenset({str, int, bool, NoneType})


class StatusFormatError(Exception):
    """What came is no status of this format version; the message names the field."""


def to_json(status: HostStatus) -> dict[str, Any]:
    """`status` in plain JSON types. Numbers that JSON cannot write (infinite, not a number) become null."""
    return {"format_version": FORMAT_VERSION, **plain(status)}


def from_json(value: Mapping[str, Any]) -> HostStatus:
    """The status that `to_json` gave `value` for; StatusFormatError when it is none."""
    version = value.get("format_version")
    if version != FORMAT_VERSION:
        raise StatusFormatError(f"format_version is {version!r} and not {FORMAT_VERSION}")
    return from_plain(HostStatus, value)


def plain(value: Any) -> Any:
    """A dataclass of the model, or what one is made of, in plain JSON types."""
    # Ordered by how often each comes: a status of 500 VMs is made of some 20,000 values.
    kind: Any = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if kind is tuple:
        return [plain(each) for each in value]
    if issubclass(kind, Enum):
        return value.value
    return {name: plain(getattr(value, name)) for name in _names(kind)}


def from_plain(kind: type[_T], value: Any, where: str = "") -> _T:
    """The dataclass `kind` that `plain` gave `value` for; `where` leads to it in messages."""
    if not isinstance(value, dict):
        raise StatusFormatError(f"{where or kind.__name__} is {_brief(value)} and no object")
    arguments: dict[str, Any] = {}
    dataclass_: Any = kind
    for name, required, read in _readers(dataclass_):
        path = f"{where}.{name}" if where else name
        if name in value:
            arguments[name] = read(value[name], path)
        elif required:
            raise StatusFormatError(f"{path} is missing")
    return kind(**arguments)


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


@cache
def _readers(kind: Any) -> tuple[tuple[str, bool, Callable[[Any, str], Any]], ...]:
    """Of each field: name, whether it must be there, and how to read it."""
    hints = get_type_hints(kind, localns=_HINT_NAMES)
    return tuple(
        (each.name, each.default is MISSING and each.default_factory is MISSING, _reader(hints[each.name]))
        for each in fields(kind)
    )


def _reader(hint: Any) -> Callable[[Any, str], Any]:
    """How to read a value of type `hint`: (value, where) -> value."""
    if get_origin(hint) in (Union, UnionType):
        inner = {each for each in get_args(hint) if each is not NoneType}
        if inner == {float, str}:
            return _value
        read = _reader(*inner)
        return lambda value, where: None if value is None else read(value, where)
    if get_origin(hint) is tuple:
        read = _reader(get_args(hint)[0])
        return lambda value, where: tuple(
            read(each, f"{where}[{i}]") for i, each in enumerate(_expect(list, value, where))
        )
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value, where: from_plain(hint, value, where)
    if issubclass(hint, Enum):
        return lambda value, where: _member(hint, value, where)
    if hint is float:
        return _number
    return lambda value, where: _expect(hint, value, where)


def _expect(kind: type[_T], value: Any, where: str) -> _T:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise StatusFormatError(f"{where} is {_brief(value)}")
    return value


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise StatusFormatError(f"{where} is {_brief(value)} and no number")
    return float(value)


def _value(value: Any, where: str) -> SettingValue:
    return value if value is None or isinstance(value, str) else _number(value, where)


def _member(kind: type[Enum], value: Any, where: str) -> Enum:
    try:
        return kind(value)
    except ValueError:
        raise StatusFormatError(f"{where} is {_brief(value)}, which is not known") from None


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
