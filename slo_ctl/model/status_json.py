"""A HostStatus as JSON and back: what the API, `status --json` and the history's reader all speak.

Fields are named as those of the dataclasses, enumerations by their value, tuples are arrays and None is null.
What a newer daemon adds is ignored, what an older one lacks gets the dataclass's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from slo_ctl.model import plain_values
from slo_ctl.model.status import HostStatus

if TYPE_CHECKING:
    from pydantic import TypeAdapter

FORMAT_VERSION = 1

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
        read: _T = plain_values.read(kind, value)
    except plain_values.OtherTypeError:
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
