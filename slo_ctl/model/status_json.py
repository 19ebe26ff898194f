"""Conversion of HostStatus to and from JSON, for the API, `status --json` and the history.

Names are those of the dataclasses; enumerations become their values, tuples arrays and None null. Unknown
fields of a newer daemon are ignored; missing fields of an older one get their defaults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from slo_ctl.base.errors import ReplyFormatError
from slo_ctl.model.status import HostStatus

if TYPE_CHECKING:
    from pydantic import TypeAdapter

FORMAT_VERSION = 1
"""Format version of the API."""
_MAX_EXACT_INT = 2**53
"""Integers up to this one are exact as floats."""

_T = TypeVar("_T")


def to_json(status: HostStatus) -> dict[str, Any]:
    """`status` in plain JSON types; infinite numbers and NaN become null."""
    return {"format_version": FORMAT_VERSION, **plain(status)}


def to_text(status: HostStatus) -> bytes:
    """The text of `to_json`, made VM by VM: those of 500 in plain types take ten times its memory."""
    rest = to_json(replace(status, vms=()))
    del rest["vms"]
    vms = b", ".join([json.dumps(plain(vm)).encode() for vm in status.vms])
    return b'%s, "vms": [%s]}' % (json.dumps(rest)[:-1].encode(), vms)


def from_json(value: Mapping[str, Any]) -> HostStatus:
    """The inverse of `to_json`. Raises ReplyFormatError."""
    version = value.get("format_version")
    if version != FORMAT_VERSION:
        raise ReplyFormatError(f"format_version is {version!r} and not {FORMAT_VERSION}")
    return from_plain(HostStatus, value)


def plain(value: Any) -> Any:
    """A dataclass of the model, or a value of a field, in plain JSON types."""
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value, inf_nan_mode="null")


def from_plain(kind: type[_T], value: Any) -> _T:
    """The inverse of `plain` for the type `kind`. Raises ReplyFormatError."""
    try:
        read: _T = _read(kind, value)
    except _TypeMismatchError:
        return _converted(kind, value)
    return read


def _converted(kind: type[_T], value: Any) -> _T:
    """As `from_plain`, for values that need a conversion or are invalid."""
    from pydantic import ValidationError

    from slo_ctl.base.json_store import problem_of

    # Not from text: names of cgroups may contain bytes that are not UTF-8, which pydantic's parser refuses.
    hashable: Any = kind
    try:
        read: _T = _adapter(hashable).validate_python(value)
    except ValidationError as error:
        raise ReplyFormatError(problem_of(error)) from None
    return read


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


# Values of exactly the declared types are read without pydantic, whose import and schema take 0.1 s, half as
# long as `slo-ctl status`. Pydantic reads all others, as it has more conversions and names invalid fields.


class _TypeMismatchError(Exception):
    """A value is not of the declared type."""


def _read(kind: Any, value: Any) -> Any:
    """The value of type `kind` for a plain value. Raises _TypeMismatchError.

    Unknown fields are ignored; missing fields get their defaults.
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
            return tuple([_read(item, element) for element in value])
    raise _TypeMismatchError


def _read_dataclass(kind: Any, value: Mapping[str, Any]) -> Any:
    read_fields = {}
    for name, field_type, required in _fields_of(kind):
        if name in value:
            read_fields[name] = _read(field_type, value[name])
        elif required:
            raise _TypeMismatchError
    return kind(**read_fields)


@cache
def _fields_of(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    """Name and type of each field, and whether it is required."""
    types = get_type_hints(kind)
    return tuple(
        (item.name, types[item.name], item.default is MISSING and item.default_factory is MISSING)
        for item in fields(kind)
        if item.init
    )


def _read_enum(kind: type[Enum], value: Any) -> Enum:
    try:
        return kind(value)
    except ValueError:
        raise _TypeMismatchError from None


def _read_union(kinds: tuple[Any, ...], value: Any) -> Any:
    """The value itself if it has one of the types, else as the first type that accepts it."""
    if type(value) in kinds:
        return value
    for kind in kinds:
        try:
            return _read(kind, value)
        except _TypeMismatchError:
            continue
    raise _TypeMismatchError
