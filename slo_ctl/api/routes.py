"""Routes of the API by method and path, the interface to the daemon, and the OpenAPI description."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from slo_ctl.base.errors import UserError
from slo_ctl.base.text import printable
from slo_ctl.base.version import tool_version
from slo_ctl.config.settings import AccessConfig, Right
from slo_ctl.host.peer import Peer
from slo_ctl.model import HostStatus, VmStatus
from slo_ctl.model.slo import SLO_KEYS, SloError, SloUpdate, parse_change, update_text
from slo_ctl.model.status import Health, Plan, VmSlo
from slo_ctl.model.status_json import FORMAT_VERSION, plain, to_json
from slo_ctl.record.history_reader import MAX_POINTS, VmHistory
from slo_ctl.record.history_schema import HistoryError
from slo_ctl.record.metrics import CONTENT_TYPE


class RefusalError(UserError):
    """A refused request, with its HTTP status."""

    def __init__(self, message: str, hint: str = "", status: int = HTTPStatus.UNPROCESSABLE_ENTITY) -> None:
        super().__init__(message, hint)
        self.status = status


class Controller(Protocol):
    """Interface of the daemon for the API. Methods refuse with UserError, such as `RefusalError`."""

    def access(self) -> AccessConfig:
        """Rights of users."""

    def status(self) -> HostStatus | None:
        """Status of the last epoch; None before the first."""

    def health(self) -> Health:
        """Daemon health."""

    def slo(self, vm: str) -> VmSlo:
        """The SLO in force for a VM."""

    def change_slos(
        self,
        vms: Sequence[str],
        change: SloUpdate,
        *,
        user: str = "",
        force: bool = False,
        dry_run: bool = False,
    ) -> tuple[VmSlo, ...]:
        """Change the SLOs of all these VMs or, if one is refused, of none; in force from the next epoch.

        Without `force`, VMs that are not on the host and minimums above the capacity of a device are refused.
        `dry_run` only checks. `user` is for the log. Returns the SLOs after the change, in the order of
        `vms`.
        """

    def plan(self) -> Plan:
        """Changes that the next epoch would make. Waits for the present one."""

    def history(self, vm: str, since: float | None, until: float | None, limit: int) -> VmHistory:
        """History of a VM. Also raises HistoryError."""

    def reload(self) -> str:
        """Reload the configuration; returns why it was not accepted, or "". Waits for the present epoch."""

    def announce(self, xml: str) -> tuple[str, bool]:
        """Add a domain that libvirt is about to start; returns its name, and whether an epoch has seen it.

        Waits for less than a second.
        """

    def metrics(self) -> bytes:
        """Metrics in Prometheus's text format."""


DESCRIPTION = "/v1/openapi.json"
_JSON = "application/json"
_DEFAULT_POINTS = 500
_NOT_YET = RefusalError(
    "the first epoch is not complete yet", "try again in a moment", HTTPStatus.SERVICE_UNAVAILABLE
)

log = logging.getLogger("slo_ctl.api")

# Bodies and parameters of requests. Replies are dataclasses of the model, written by
# `model.status_json.plain`.


class SloBody(BaseModel):
    """Fields of an SLO to set; other fields are kept."""

    model_config = ConfigDict(extra="forbid")

    fields: dict[str, Any] = Field(
        description="Any of weight, min_iops, max_iops, max_bandwidth, p99 and class; null unsets one. "
        'Such as {"p99": "5ms"}.'
    )
    force: bool = Field(False, description="Accept unknown VMs, and minimums above the capacity of a device.")
    dry_run: bool = Field(False, description="Only check, without a change.")


class SlosBody(SloBody):
    """The same change for several VMs."""

    vms: list[str] = Field(min_length=1, description="Names of the VMs.")


class StartBody(BaseModel):
    """A domain that libvirt is about to start."""

    model_config = ConfigDict(extra="forbid")

    xml: str = Field(description="The XML that libvirt passes to its hooks.")


class SetQuery(BaseModel):
    """Parameters of a change."""

    force: bool = Field(False, description="As `force` in the body.")


class UnsetQuery(BaseModel):
    """Parameters of a removal."""

    fields: str | None = Field(None, description="Fields to unset, separated by commas; default: all.")


class HistoryQuery(BaseModel):
    """Parameters of a history."""

    since: float | None = Field(None, allow_inf_nan=False, description="Seconds since 1970.")
    until: float | None = Field(None, allow_inf_nan=False, description="Seconds since 1970.")
    limit: int = Field(_DEFAULT_POINTS, ge=1, le=MAX_POINTS, description="Largest number of time buckets.")


class NoQuery(BaseModel):
    """No parameters."""


_Model = TypeVar("_Model", bound=BaseModel)

_ACTIONS = {
    Right.READ: "read the status",
    Right.SET_SLOS: "set SLOs",
    Right.MANAGE: "reload the configuration or announce VMs",
}
"""Actions that complete the sentence "USER may not ..."."""


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
        """Path without the query."""
        return urlsplit(self.target).path

    def query(self, kind: type[_Model]) -> _Model:
        """The parameters as `kind`. Raises RefusalError."""
        return _validated(kind, dict(parse_qsl(urlsplit(self.target).query)))

    def json(self, kind: type[_Model]) -> _Model:
        """The body as `kind`. Raises RefusalError."""
        try:
            return _validated(kind, json.loads(self.body))
        except (ValueError, RecursionError):
            raise RefusalError("body: is not valid JSON", f"see {DESCRIPTION}") from None


def _validated(kind: type[_Model], value: object) -> _Model:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise RefusalError(f"{where}: {first['msg']}", f"see {DESCRIPTION}") from None


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply."""

    status: int
    content_type: str
    body: bytes


def refusal(status: int, message: str, hint: str) -> Reply:
    """Reply for an error."""
    return _reply({"error": {"message": message, "hint": hint}}, status)


def _reply(body: Mapping[str, Any], status: int = HTTPStatus.OK) -> Reply:
    return Reply(status, _JSON, json.dumps({"format_version": FORMAT_VERSION, **body}).encode())


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


@dataclass(frozen=True, slots=True)
class Route:
    """A method of a path."""

    method: str
    path: str
    """`{name}` stands for the name of a VM, which may have slashes."""
    summary: str
    answer: Callable[[Request, str], Reply]
    """Returns the reply for a request and the name in the path, empty if there is none."""
    reply: Any = None
    """Type of the reply without `format_version`; None: not described."""
    query: type[BaseModel] = NoQuery
    body: type[BaseModel] | None = None
    right: Right = Right.READ
    """Right that the sender needs."""

    @property
    def pattern(self) -> re.Pattern[str]:
        """Pattern of the path."""
        return re.compile(re.escape(self.path).replace(r"\{name\}", "(?P<name>.+)"))


class Api:
    """Answers requests through `controller`. Thread-safe."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._latest: tuple[HostStatus | None, bytes] = (None, b"")
        # Names of VMs may contain slashes, so longer paths must come before their prefixes.
        self._routes = (
            Route("GET", "/v1/health", "Daemon health", self._health, Health),
            Route("GET", "/v1/status", "Status of the host in the last epoch", self._status, HostStatus),
            Route("GET", "/v1/vms", "Every VM on every device", self._vms, VmsReply),
            Route(
                "PUT",
                "/v1/vms/{name}/slo",
                "Set fields of an SLO",
                self._set,
                VmSlo,
                SetQuery,
                SloBody,
                right=Right.SET_SLOS,
            ),
            Route(
                "DELETE",
                "/v1/vms/{name}/slo",
                "Unset fields",
                self._unset,
                VmSlo,
                UnsetQuery,
                right=Right.SET_SLOS,
            ),
            Route(
                "PATCH",
                "/v1/slos",
                "Change several SLOs or none",
                self._change,
                SlosReply,
                body=SlosBody,
                right=Right.SET_SLOS,
            ),
            Route("GET", "/v1/vms/{name}", "One VM and its devices", self._vm, VmReply),
            Route("GET", "/v1/plan", "Changes that the next epoch would make", self._plan, Plan),
            Route("GET", "/v1/history/{name}", "History of one VM", self._history, VmHistory, HistoryQuery),
            Route(
                "POST",
                "/v1/reload",
                "Reload the configuration",
                self._reload,
                ReloadReply,
                right=Right.MANAGE,
            ),
            Route(
                "POST",
                "/v1/starting",
                "Announce a VM that libvirt is about to start",
                self._start,
                StartReply,
                body=StartBody,
                right=Right.MANAGE,
            ),
            Route("GET", "/metrics", "Metrics in Prometheus's text format", self._metrics),
            Route("GET", DESCRIPTION, "This description", self._describe),
        )
        self._patterns = tuple((route.pattern, route) for route in self._routes)

    def answer(self, request: Request) -> Reply:
        """The reply, which may be a refusal."""
        try:
            route, name = self._route(request)
            self._check_right(route.right, request)
            return route.answer(request, name)
        except RefusalError as error:
            return refusal(error.status, error.message, error.hint)
        except UserError as error:
            return refusal(HTTPStatus.UNPROCESSABLE_ENTITY, error.message, error.hint)
        except HistoryError as error:
            return refusal(HTTPStatus.SERVICE_UNAVAILABLE, error.reason, error.hint)
        except Exception as error:
            log.exception("%s %s", request.method, printable(request.target))
            message = f"unexpected {type(error).__name__}: {error}"
            return refusal(
                HTTPStatus.INTERNAL_SERVER_ERROR, message, "see the daemon's log; please report it"
            )

    def _route(self, request: Request) -> tuple[Route, str]:
        path = unquote(request.path)
        found = [(match, route) for pattern, route in self._patterns if (match := pattern.fullmatch(path))]
        for match, route in found:
            if route.method == request.method:
                return route, match.groupdict().get("name", "")
        status = HTTPStatus.METHOD_NOT_ALLOWED if found else HTTPStatus.NOT_FOUND
        what = f"{request.method} {request.path}: {status.phrase}"
        raise RefusalError(what, f"see {DESCRIPTION}", status)

    def _check_right(self, right: Right, request: Request) -> None:
        access, peer = self._controller.access(), request.peer
        if access.allows(right, peer, os.geteuid()):
            return
        key = access.key_of(right)
        where = f"[access] {key}, {access.sources[key]}"
        log.warning(
            "refused: %s may not %s (%s): %s %s",
            peer.name,
            _ACTIONS[right],
            where,
            request.method,
            printable(request.path),
        )
        entries = json.dumps([*access.entries(right), peer.entry])
        raise RefusalError(
            f"user {peer.entry} may not {_ACTIONS[right]} ({where})",
            f"to allow it, write {right} = {entries} in [access] of slo-ctl.toml; then, as root: "
            "slo-ctl config reload",
            HTTPStatus.FORBIDDEN,
        )

    # Status.

    def _current_status(self) -> HostStatus:
        status = self._controller.status()
        if status is None:
            raise _NOT_YET
        return status

    def _health(self, _request: Request, _name: str) -> Reply:
        return _reply(plain(self._controller.health()))

    def _status(self, _request: Request, _name: str) -> Reply:
        status, latest = self._current_status(), self._latest
        if status is not latest[0]:
            latest = self._latest = (status, json.dumps(to_json(status)).encode())
        return Reply(HTTPStatus.OK, _JSON, latest[1])

    def _vms(self, _request: Request, _name: str) -> Reply:
        return _reply({"vms": plain(self._current_status().vms)})

    def _vm(self, _request: Request, name: str) -> Reply:
        slo = self._controller.slo(name)
        devices = plain([vm for vm in self._current_status().vms if vm.vm == name])
        return _reply({**plain(slo), "devices": devices})

    def _metrics(self, _request: Request, _name: str) -> Reply:
        return Reply(HTTPStatus.OK, CONTENT_TYPE, self._controller.metrics())

    # SLOs.

    def _set(self, request: Request, name: str) -> Reply:
        body = request.json(SloBody)
        body.force = body.force or request.query(SetQuery).force
        return _reply(plain(self._change_slos(request, [name], body)[0]))

    def _change(self, request: Request, _name: str) -> Reply:
        body = request.json(SlosBody)
        return _reply({"vms": plain(self._change_slos(request, list(dict.fromkeys(body.vms)), body))})

    def _unset(self, request: Request, name: str) -> Reply:
        names = request.query(UnsetQuery).fields
        fields = dict.fromkeys(SLO_KEYS if names is None else names.split(","))
        body = SloBody(fields=fields, force=False, dry_run=False)
        return _reply(plain(self._change_slos(request, [name], body)[0]))

    def _change_slos(self, request: Request, vms: Sequence[str], body: SloBody) -> tuple[VmSlo, ...]:
        names = ", ".join(vms)
        try:
            change = parse_change(body.fields)
        except SloError as error:
            raise RefusalError(f"VM {names}: {error.message}", error.hint) from None
        if not change.is_set and not change.unset:
            raise RefusalError(f"VM {names}: no fields to set", 'such as {"fields": {"weight": 3}}')
        slos = self._controller.change_slos(
            vms, change, user=request.user, force=body.force, dry_run=body.dry_run
        )
        if not body.dry_run:
            log.info(
                "VM %s: %s %s", printable(names), request.user, update_text(change), extra={"vm": tuple(vms)}
            )
        return slos

    # Work of the daemon's loop.

    def _plan(self, _request: Request, _name: str) -> Reply:
        return _reply(plain(self._controller.plan()))

    def _history(self, request: Request, name: str) -> Reply:
        query = request.query(HistoryQuery)
        return _reply(plain(self._controller.history(name, query.since, query.until, query.limit)))

    def _reload(self, request: Request, _name: str) -> Reply:
        log.info("reload of the configuration, by %s", request.user)
        return _reply({"config_problem": self._controller.reload()})

    def _start(self, request: Request, _name: str) -> Reply:
        name, seen = self._controller.announce(request.json(StartBody).xml)
        log.info("VM %s starts", printable(name), extra={"vm": (name,)})
        return _reply({"vm": name, "seen": seen})

    # The description.

    def _describe(self, _request: Request, _name: str) -> Reply:
        return Reply(HTTPStatus.OK, _JSON, self._description)

    @cached_property
    def _description(self) -> bytes:
        return json.dumps(_openapi(self._routes)).encode()


def _openapi(routes: tuple[Route, ...]) -> dict[str, Any]:
    """OpenAPI 3.1 description, with schemas generated from the types."""
    kinds = {kind: None for route in routes for kind in (route.reply, route.query, route.body) if kind}
    adapters = [(kind, "serialization", TypeAdapter(kind)) for kind in kinds]
    schemas, shared = TypeAdapter.json_schemas(
        adapters,  # type: ignore[arg-type]
        ref_template="#/components/schemas/{model}",
    )
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        ok: dict[str, Any] = {"description": route.summary}
        if route.reply is not None:
            ok["content"] = {_JSON: {"schema": schemas[route.reply, "serialization"]}}
        operation: dict[str, Any] = {"summary": route.summary, "responses": {"200": ok}}
        names = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
        operation["parameters"] = names if "{name}" in route.path else []
        for name, schema in route.query.model_json_schema().get("properties", {}).items():
            operation["parameters"].append({"name": name, "in": "query", "schema": schema})
        if route.body is not None:
            content = {_JSON: {"schema": schemas[route.body, "serialization"]}}
            operation["requestBody"] = {"required": True, "content": content}
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "slo-ctl",
            "version": tool_version(),
            "description": "Status and SLOs of the VMs of this host. Times are seconds since 1970 (UTC). "
            "JSON replies also have a field format_version; errors are "
            '{"format_version": 1, "error": {"message": ..., "hint": ...}}.',
        },
        "paths": paths,
        "components": {"schemas": shared.get("$defs", {})},
    }
