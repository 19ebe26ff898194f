"""Requests and replies of the API, and the types of their JSON.

Replies are dataclasses of the model, written by `model.status_json.plain`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, ClassVar, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slo_ctl.base.accounts import Peer
from slo_ctl.base.errors import UserError
from slo_ctl.model.slo import CONFIG_KEYS
from slo_ctl.model.status import VmSlo, VmStatus
from slo_ctl.model.status_json import FORMAT_VERSION
from slo_ctl.record.history_reader import MAX_POINTS

DESCRIPTION_PATH = "/v1/openapi.json"
JSON_TYPE = "application/json"
_DEFAULT_POINTS = 500
_REASONS = {"missing": "missing", "extra_forbidden": "unknown", "model_type": "not a JSON object"}
"""By pydantic's kinds of errors, in place of its sentences."""


_Model = TypeVar("_Model", bound=BaseModel)


class RefusalError(UserError):
    """A refused request, with its HTTP status."""

    def __init__(
        self,
        message: str,
        hint: str = "",
        status: int = HTTPStatus.UNPROCESSABLE_ENTITY,
        allow: str = "",
    ) -> None:
        """`allow`: methods that the path has, if this is not one of them."""
        super().__init__(message, hint)
        self.status = status
        self.allow = allow


@dataclass(frozen=True, slots=True)
class Request:
    """A request and its sender."""

    method: str
    target: str
    body: bytes
    peer: Peer

    @property
    def user(self) -> str:
        """Name of the sender for the log and the history."""
        return self.peer.name

    @property
    def path(self) -> str:
        """Path without the query. Raises RefusalError."""
        return self._parts.path

    @property
    def _parts(self) -> SplitResult:
        try:
            return urlsplit(self.target)
        except ValueError:  # such as of `http://[/`
            raise RefusalError(
                f"{self.target}: is not the target of a request",
                f"see {DESCRIPTION_PATH}",
                HTTPStatus.BAD_REQUEST,
            ) from None

    def query(self, kind: type[_Model]) -> _Model:
        """The parameters as `kind`. Raises RefusalError."""
        # An empty value is not the default, which may mean all.
        pairs = parse_qsl(self._parts.query, keep_blank_values=True)
        parameters = dict(pairs)
        if len(parameters) < len(pairs):
            raise RefusalError("a parameter is given twice", f"see {DESCRIPTION_PATH}")
        return _validated(kind, parameters)

    def json(self, kind: type[_Model]) -> _Model:
        """The body as `kind`. Raises RefusalError."""
        try:
            return _validated(kind, json.loads(self.body, object_pairs_hook=_object))
        except (ValueError, RecursionError):
            raise RefusalError("body: is not valid JSON", f"see {DESCRIPTION_PATH}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Raises RefusalError for a field that is given twice, of which JSON takes the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise RefusalError(f"body: {twice} is given twice", f"see {DESCRIPTION_PATH}")
    return found


def _validated(kind: type[_Model], value: object) -> _Model:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        reason = _REASONS.get(first["type"]) or first["msg"]
        example = f"such as {kind.EXAMPLE}; " if issubclass(kind, SloBody) else ""
        raise RefusalError(f"{where}: {reason}", f"{example}see {DESCRIPTION_PATH}") from None


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply."""

    status: int
    content_type: str
    body: bytes
    allow: str = ""
    """Methods that the path has, if the request had another one."""


def refusal(status: int, message: str, hint: str, allow: str = "") -> Reply:
    """Reply for an error."""
    return replace(json_reply({"error": {"message": message, "hint": hint}}, status), allow=allow)


def json_reply(body: Mapping[str, Any], status: int = HTTPStatus.OK) -> Reply:
    """Reply with one JSON object."""
    return Reply(status, JSON_TYPE, json.dumps({"format_version": FORMAT_VERSION, **body}).encode())


# Bodies and parameters of requests.


class SloBody(BaseModel):
    """Fields of an SLO to set; other fields are kept."""

    EXAMPLE: ClassVar = '{"fields": {"weight": 3}}'
    model_config = ConfigDict(extra="forbid")

    fields: dict[str, Any] = Field(
        description=f"Any of {', '.join(CONFIG_KEYS)}, class and group; null unsets one. "
        'Such as {"p99": "5ms"}.'
    )
    force: bool = Field(False, description="Accept unknown VMs, and minimums above the capacity of a device.")
    dry_run: bool = Field(False, description="Only check, without a change.")


class SlosBody(SloBody):
    """The same change for several VMs."""

    EXAMPLE: ClassVar = '{"vms": ["web", "db"], "fields": {"weight": 3}}'
    vms: list[str] = Field(min_length=1, description="Names of the VMs.")


class StartBody(BaseModel):
    """A domain that libvirt is about to start."""

    model_config = ConfigDict(extra="forbid")

    xml: str = Field(description="The XML that libvirt passes to its hooks.")


class Query(BaseModel):
    """Parameters of a request; one that is not known is refused."""

    model_config = ConfigDict(extra="forbid")


class SetQuery(Query):
    """Parameters of a change."""

    force: bool = Field(False, description="As `force` in the body.")


class UnsetQuery(Query):
    """Parameters of a removal."""

    fields: str | None = Field(None, description="Fields to unset, separated by commas; default: all.")


_MOST_S = 1e12
"""Longest time before or after 1970, 30,000 years."""


class HistoryQuery(Query):
    """Parameters of a history."""

    since: float | None = Field(None, ge=-_MOST_S, le=_MOST_S, description="Seconds since 1970.")
    until: float | None = Field(None, ge=-_MOST_S, le=_MOST_S, description="Seconds since 1970.")
    limit: int = Field(_DEFAULT_POINTS, ge=1, le=MAX_POINTS, description="Largest number of time buckets.")


class NoQuery(Query):
    """No parameters."""


# Replies.


@dataclass(frozen=True, slots=True)
class VmsReply:
    """Status of every VM on every device."""

    vms: tuple[VmStatus, ...]


@dataclass(frozen=True, slots=True)
class SlosReply:
    """The SLOs after a change."""

    vms: tuple[VmSlo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VmReply(VmSlo):
    """The SLO of a VM, and its status on each device."""

    devices: tuple[VmStatus, ...]


@dataclass(frozen=True, slots=True)
class ReloadReply:
    """Why the configuration was not accepted; empty if it was."""

    config_problem: str


@dataclass(frozen=True, slots=True)
class StartReply:
    """Name of the domain, and whether an epoch has seen it."""

    vm: str
    seen: bool
