"""A HostStatus as JSON and back: what the API, `status --json` and the history's reader all speak.

Fields are named as those of the dataclasses, enumerations by their value, tuples are arrays and None is null.
What a newer daemon adds is ignored, what an older one lacks gets the dataclass's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from slo_ctl.model.status import HostStatus

if TYPE_CHECKING:
    from pydantic import TypeAdapter

FORMAT_VERSION = 1
"""Of the API."""
_MAX_EXACT_INT = 2**53
"""Integers up to this one are floats without rounding."""

_T = TypeVar("_T")


class StatusFormatError(Exception):
    """The reply is not a status of this format version; the message names the field."""


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
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value, inf_nan_mode="null")


def from_plain(kind: type[_T], value: Any) -> _T:
    """The dataclass `kind` that `plain` gave `value` for."""
    try:
        read: _T = _read(kind, value)
    except _OtherTypeError:
        return _converted(kind, value)
    return read


def _converted(kind: type[_T], value: Any) -> _T:
    """As `from_plain`, for what needs a conversion or has to be refused."""
    from pydantic import ValidationError

    from slo_ctl.base.json_store import problem_of

    # Not from text: names of cgroups may have bytes that are no UTF-8, which pydantic's own parser refuses.
    hashable: Any = kind
    try:
        read: _T = _adapter(hashable).validate_python(value)
    except ValidationError as error:
        raise StatusFormatError(problem_of(error)) from None
    return read


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


# What is exactly of the declared types is read without the time that pydantic takes to be imported. Anything
# else is left to pydantic, which knows more conversions and says which field is wrong.


class _OtherTypeError(Exception):
    """A value is not of the declared type."""


def _read(kind: Any, value: Any) -> Any:
    """The value of type `kind` that `value` is in plain types. Raises _OtherTypeError.

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
            return tuple([_read(item, each) for each in value])
    raise _OtherTypeError


def _read_dataclass(kind: Any, value: Mapping[str, Any]) -> Any:
    read_fields = {}
    for name, field_type, required in _fields_of(kind):
        if name in value:
            read_fields[name] = _read(field_type, value[name])
        elif required:
            raise _OtherTypeError
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
        raise _OtherTypeError from None


def _read_union(kinds: tuple[Any, ...], value: Any) -> Any:
    """Of the type that the value has already, else of the first one that it can be read as."""
    if type(value) in kinds:
        return value
    for kind in kinds:
        try:
            return _read(kind, value)
        except _OtherTypeError:
            continue
    raise _OtherTypeError
