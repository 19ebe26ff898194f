"""What goes over the wire, for the OpenAPI description and for checking what comes in.

Replies are the dataclasses of the model, written by `show.status_json.plain`; their schemas are made from
those classes, so that neither is kept twice.
"""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from slo_ctl.api.controller import Health, Plan, Promised
from slo_ctl.model import DeviceWaf, HostStatus, Outcome, SettingValue, Slo, VmStatus
from slo_ctl.record.history_reader import VmHistory

FORMAT_VERSION = 1
_NAMES: dict[str, Any] = {
    "DeviceWaf": DeviceWaf,
    "Slo": Slo,
    "Outcome": Outcome,
    "SettingValue": SettingValue,
    "SloFields": dict[str, float],
}
"""What the model imports for type checkers only."""


class ErrorText(BaseModel):
    """What was wrong and what to do about it."""

    message: str
    hint: str


class ErrorReply(BaseModel):
    """Every reply with a status of 400 and above."""

    format_version: Literal[1] = 1
    error: ErrorText


class Reply(BaseModel):
    """Every other reply in JSON."""

    format_version: Literal[1] = 1


class SloFieldsBody(BaseModel):
    """Fields of an SLO; those left out stay as they are. Values may have units, such as "5ms"."""

    model_config = ConfigDict(extra="allow")

    weight: float | str | None = Field(None, description="Relative share among the VMs of a device.")
    min_iops: float | str | None = Field(None, description="Requests per second it gets at least.")
    max_iops: float | str | None = Field(None, description="Requests per second it gets at most.")
    max_bandwidth: float | str | None = Field(None, description='Bytes per second at most, or "100MiB".')
    p99: str | None = Field(None, description='99th percentile of the latency, such as "5ms".')

    def given(self) -> dict[str, object]:
        """What the client sent, of whatever spelling."""
        return self.model_dump(exclude_unset=True)


class SloBody(BaseModel):
    """What to promise."""

    model_config = ConfigDict(extra="forbid")

    fields: SloFieldsBody
    force: bool = Field(False, description="Even to a VM that is not here, or above what a device can do.")


@cache
def reply_of(kind: Any) -> type[BaseModel]:
    """The schema of a reply made of the fields of a dataclass."""
    return create_model(f"{kind.__name__}Reply", __base__=Reply, __doc__=kind.__doc__, **_fields(kind))


@cache
def _model_of(kind: Any) -> type[BaseModel]:
    return create_model(kind.__name__, __doc__=kind.__doc__, **_fields(kind))


def _fields(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, localns=_NAMES)
    found: dict[str, Any] = {}
    for each in fields(kind):
        default = each.default if each.default is not MISSING else ...
        if each.default_factory is not MISSING:
            default = each.default_factory()
        found[each.name] = (_type(hints[each.name]), default)
    return found


def _type(hint: Any) -> Any:
    if isinstance(hint, type) and is_dataclass(hint):
        return _model_of(hint)
    if get_origin(hint) in (Union, UnionType):
        inner = [each for each in get_args(hint) if each is not NoneType]
        return _type(inner[0]) | None if len(inner) == 1 else hint
    if get_origin(hint) is tuple:
        return list[_type(get_args(hint)[0])]  # type: ignore[misc]
    return hint


StatusReply, HealthReply, PlanReply = reply_of(HostStatus), reply_of(Health), reply_of(Plan)
HistoryReply, PromisedReply = reply_of(VmHistory), reply_of(Promised)
_VMS: Any = (_type(tuple[VmStatus, ...]), ...)
VmsReply = create_model("VmsReply", __base__=Reply, vms=_VMS)
VmReply = create_model(
    "VmReply",
    __base__=PromisedReply,
    __doc__="What a VM is promised, and how it goes on each device.",
    devices=_VMS,
)
ReloadReply = create_model(
    "ReloadReply",
    __base__=Reply,
    __doc__="Why the configuration stays as it was; empty when it was taken.",
    config_problem=(str, ...),
)
__all__ = [
    "ErrorReply",
    "HealthReply",
    "HistoryReply",
    "PlanReply",
    "PromisedReply",
    "ReloadReply",
    "SloBody",
    "StatusReply",
    "VmReply",
    "VmsReply",
]
