"""Dataclasses of the model from plain JSON types, without the time that pydantic takes to be imported.

Only what is exactly of the declared types is read here. Anything else is left to pydantic, which knows more
conversions and says which field is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

_MAX_EXACT_INT = 2**53
"""Integers up to this one are floats without rounding."""


class OtherTypeError(Exception):
    """A value is not of the declared type."""


def read(kind: Any, value: Any) -> Any:
    """The value of type `kind` that `value` is in plain types. Raises OtherTypeError.

    Fields that `kind` does not have are ignored; those that `value` lacks get their defaults.
    """
    if kind is NoneType and value is None:
        return None
    if kind is float and type(value) is int and abs(value) <= _MAX_EXACT_INT:
        return float(value)
    if kind in (str, int, float, bool) and type(value) is kind:
        return value
    if is_dataclass(kind) and isinstance(value, Mapping):
        return _read_dataclass(kind, value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _read_enum(kind, value)
    if get_origin(kind) in (Union, UnionType):
        return _read_union(get_args(kind), value)
    if get_origin(kind) is tuple and isinstance(value, list):
        item, *rest = get_args(kind)
        if rest == [...]:
            return tuple([read(item, each) for each in value])
    raise OtherTypeError


def _read_dataclass(kind: Any, value: Mapping[str, Any]) -> Any:
    read_fields = {}
    for name, field_type, required in _fields_of(kind):
        if name in value:
            read_fields[name] = read(field_type, value[name])
        elif required:
            raise OtherTypeError
    return kind(**read_fields)


@cache
def _fields_of(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    """Name, type and whether there is no default, of each field."""
    types = get_type_hints(kind)
    return tuple(
        (each.name, types[each.name], each.default is MISSING and each.default_factory is MISSING)
        for each in fields(kind)
        if each.init
    )


def _read_enum(kind: type[Enum], value: Any) -> Enum:
    try:
        return kind(value)
    except ValueError:
        raise OtherTypeError from None


def _read_union(kinds: tuple[Any, ...], value: Any) -> Any:
    """Of the type that the value has already, else of the first one that it can be read as."""
    if type(value) in kinds:
        return value
    for kind in kinds:
        try:
            return read(kind, value)
        except OtherTypeError:
            continue
    raise OtherTypeError
