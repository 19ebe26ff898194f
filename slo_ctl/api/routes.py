"""Routes of the API by method and path, the interface to the daemon, and the OpenAPI description."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import unquote

from pydantic import BaseModel, TypeAdapter

from slo_ctl import tool_version
from slo_ctl.api.messages import (
    DESCRIPTION_PATH,
    JSON_TYPE,
    HistoryQuery,
    NoQuery,
    RefusalError,
    ReloadReply,
    Reply,
    Request,
    SetQuery,
    SloBody,
    SlosBody,
    SlosReply,
    StartBody,
    StartReply,
    UnsetQuery,
    VmReply,
    VmsReply,
    json_reply,
    refusal,
)
from slo_ctl.base.errors import UserError
from slo_ctl.base.text import printable
from slo_ctl.config.settings import AccessConfig, Right
from slo_ctl.model.slo import SLO_KEYS, SloError, SloUpdate, parse_change
from slo_ctl.model.status import Health, HostStatus, Plan, VmSlo
from slo_ctl.model.status_json import plain, to_text
from slo_ctl.record.history_reader import NotInHistoryError, VmHistory
from slo_ctl.record.history_schema import HistoryError
from slo_ctl.record.metrics import CONTENT_TYPE


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


_NO_STATUS = RefusalError(
    "the first epoch is not complete yet", "try again in a moment", HTTPStatus.SERVICE_UNAVAILABLE
)

log = logging.getLogger("slo_ctl.api")

_ACTIONS = {
    Right.READ: "read the status",
    Right.SET_SLOS: "set SLOs",
    Right.MANAGE: "reload the configuration or announce VMs",
}
"""Actions that complete the sentence "USER may not ..."."""


_STARTING = "Announce a VM that libvirt is about to start"


@dataclass(frozen=True, slots=True)
class Route:
    """A method of a path."""

    method: str
    path: str
    """`{name}` stands for the name of a VM, which may have slashes."""
    summary: str
    answer: Callable[[Request, str], Any]
    """Returns the reply for a request and the name in the path, empty if there is none: a `Reply`, or what
    is sent as JSON, of the type `reply`."""
    reply: Any = None
    """Type of the reply without `format_version`; None: not described."""
    query: type[BaseModel] = NoQuery
    body: type[BaseModel] | None = None
    right: Right = Right.READ
    """Right that the sender needs."""

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.path).replace(r"\{name\}", "(?P<name>.+)"))


class Api:
    """Answers requests through `controller`. Thread-safe."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._cached_status: tuple[HostStatus | None, bytes] = (None, b"")
        """The last status that was sent, and its JSON."""
        setting, managing = partial(Route, right=Right.SET_SLOS), partial(Route, right=Right.MANAGE)
        # Names of VMs may contain slashes, so longer paths must come before their prefixes.
        self._routes = (
            Route("GET", "/v1/health", "Daemon health", self._health, Health),
            Route("GET", "/v1/status", "Status of the host in the last epoch", self._status, HostStatus),
            Route("GET", "/v1/vms", "Every VM on every device", self._vms, VmsReply),
            setting("PUT", "/v1/vms/{name}/slo", "Set fields of an SLO", self._set, VmSlo, SetQuery, SloBody),
            setting("DELETE", "/v1/vms/{name}/slo", "Unset fields", self._unset, VmSlo, UnsetQuery),
            setting("PATCH", "/v1/slos", "Change SLOs, all or none", self._change, SlosReply, body=SlosBody),
            Route("GET", "/v1/vms/{name}", "One VM and its devices", self._vm, VmReply),
            Route("GET", "/v1/plan", "Changes that the next epoch would make", self._plan, Plan),
            Route("GET", "/v1/history/{name}", "History of one VM", self._history, VmHistory, HistoryQuery),
            managing("POST", "/v1/reload", "Reload the configuration", self._reload, ReloadReply),
            managing("POST", "/v1/starting", _STARTING, self._start, StartReply, body=StartBody),
            Route("GET", "/metrics", "Metrics in Prometheus's text format", self._metrics),
            Route("GET", DESCRIPTION_PATH, "This description", self._describe),
        )
        self._patterns = tuple((route.pattern, route) for route in self._routes)

    def answer(self, request: Request) -> Reply:
        """The reply, which may be a refusal."""
        try:
            route, name = self._find_route(request)
            self._check_right(route.right, request)
            request.query(route.query)
            found = route.answer(request, name)
            return found if isinstance(found, Reply) else json_reply(plain(found))
        except RefusalError as error:
            return refusal(error.status, error.message, error.hint, error.allow)
        except NotInHistoryError as error:
            return refusal(HTTPStatus.NOT_FOUND, error.message, error.hint)
        except HistoryError as error:
            return refusal(HTTPStatus.SERVICE_UNAVAILABLE, error.message, error.hint)
        except UserError as error:
            return refusal(HTTPStatus.UNPROCESSABLE_ENTITY, error.message, error.hint)
        except Exception as error:
            log.exception("%s %s", request.method, printable(request.target))
            message = f"unexpected {type(error).__name__}: {error}"
            return refusal(
                HTTPStatus.INTERNAL_SERVER_ERROR, message, "see the daemon's log; please report it"
            )

    def _find_route(self, request: Request) -> tuple[Route, str]:
        """The route of a request, and the name in its path. Raises RefusalError."""
        try:
            path = unquote(request.path, errors="strict")
        except UnicodeDecodeError:
            hint = "encode the name of a VM as UTF-8, then with %XX"
            raise RefusalError(f"{request.path}: is not UTF-8", hint, HTTPStatus.BAD_REQUEST) from None
        matches = [(match, route) for pattern, route in self._patterns if (match := pattern.fullmatch(path))]
        method = "GET" if request.method == "HEAD" else request.method
        for match, route in matches:
            if route.method == method:
                return route, match.groupdict().get("name", "")
        status = HTTPStatus.METHOD_NOT_ALLOWED if matches else HTTPStatus.NOT_FOUND
        message = f"{request.method} {request.path}: {status.phrase}"
        methods = {route.method for _, route in matches}
        allow = ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
        raise RefusalError(message, f"see {DESCRIPTION_PATH}", status, allow)

    def _check_right(self, right: Right, request: Request) -> None:
        access, peer = self._controller.access(), request.peer
        if access.allows(right, peer, os.geteuid()):
            return
        key = access.key_of(right)
        rule = f"[access] {key}, {access.sources[key]}"
        log.warning(
            "refused: %s may not %s (%s): %s %s",
            peer.name,
            _ACTIONS[right],
            rule,
            request.method,
            printable(request.path),
        )
        entries = json.dumps([*access.entries(right), peer.entry])
        raise RefusalError(
            f"user {peer.entry} may not {_ACTIONS[right]} ({rule})",
            f"to allow it, write {right} = {entries} in [access] of slo-ctl.toml; then, as root: "
            "slo-ctl config reload",
            HTTPStatus.FORBIDDEN,
        )

    # Status.

    def _current_status(self) -> HostStatus:
        status = self._controller.status()
        if status is None:
            raise _NO_STATUS
        return status

    def _health(self, _request: Request, _name: str) -> Health:
        return self._controller.health()

    def _status(self, _request: Request, _name: str) -> Reply:
        status, (cached_status, body) = self._current_status(), self._cached_status
        if status is not cached_status:
            body = to_text(status)
            self._cached_status = status, body
        return Reply(HTTPStatus.OK, JSON_TYPE, body)

    def _vms(self, _request: Request, _name: str) -> VmsReply:
        return VmsReply(self._current_status().vms)

    def _vm(self, _request: Request, name: str) -> VmReply:
        slo = self._controller.slo(name)
        devices = tuple([vm for vm in self._current_status().vms if vm.vm == name])
        return VmReply(**{each.name: getattr(slo, each.name) for each in fields(VmSlo)}, devices=devices)

    def _metrics(self, _request: Request, _name: str) -> Reply:
        return Reply(HTTPStatus.OK, CONTENT_TYPE, self._controller.metrics())

    # SLOs.

    def _set(self, request: Request, name: str) -> VmSlo:
        body = request.json(SloBody)
        body.force = body.force or request.query(SetQuery).force
        return self._change_slos(request, [name], body)[0]

    def _change(self, request: Request, _name: str) -> SlosReply:
        body = request.json(SlosBody)
        return SlosReply(self._change_slos(request, list(dict.fromkeys(body.vms)), body))

    def _unset(self, request: Request, name: str) -> VmSlo:
        names = request.query(UnsetQuery).fields
        if names is not None and not names.strip():
            raise RefusalError(f"VM {name}: no fields to unset", "leave fields out for all of them")
        unset = dict.fromkeys(SLO_KEYS if names is None else names.split(","))
        return self._change_slos(request, [name], SloBody(fields=unset, force=False, dry_run=False))[0]

    def _change_slos(self, request: Request, vms: Sequence[str], body: SloBody) -> tuple[VmSlo, ...]:
        names = ", ".join(vms)
        try:
            change = parse_change(body.fields)
        except SloError as error:
            raise RefusalError(f"VM {names}: {error.message}", error.hint) from None
        if not change.is_set and not change.unset:
            raise RefusalError(f"VM {names}: no fields to set", 'such as {"fields": {"weight": 3}}')
        return self._controller.change_slos(
            vms, change, user=request.user, force=body.force, dry_run=body.dry_run
        )

    # The daemon's loop and history.

    def _plan(self, _request: Request, _name: str) -> Plan:
        return self._controller.plan()

    def _history(self, request: Request, name: str) -> VmHistory:
        query = request.query(HistoryQuery)
        return self._controller.history(name, query.since, query.until, query.limit)

    def _reload(self, request: Request, _name: str) -> ReloadReply:
        log.info("reload of the configuration, by %s", request.user)
        return ReloadReply(self._controller.reload())

    def _start(self, request: Request, _name: str) -> StartReply:
        name, seen = self._controller.announce(request.json(StartBody).xml)
        if name:  # empty: the daemon does not use libvirt
            log.info("VM %s starts", printable(name), extra={"vm": (name,)})
        return StartReply(name, seen)

    # The description.

    def _describe(self, _request: Request, _name: str) -> Reply:
        return Reply(HTTPStatus.OK, JSON_TYPE, self._description)

    @cached_property
    def _description(self) -> bytes:
        return json.dumps(_openapi(self._routes)).encode()


_ERROR = {
    "description": "An error: what was refused or failed, and what to do about it.",
    "content": {
        JSON_TYPE: {
            "schema": {
                "type": "object",
                "required": ["format_version", "error"],
                "properties": {
                    "format_version": {"type": "integer"},
                    "error": {
                        "type": "object",
                        "required": ["message", "hint"],
                        "properties": {"message": {"type": "string"}, "hint": {"type": "string"}},
                    },
                },
            }
        }
    },
}
"""OpenAPI's description of `refusal`."""


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
            ok["content"] = {JSON_TYPE: {"schema": schemas[route.reply, "serialization"]}}
        operation: dict[str, Any] = {"summary": route.summary, "responses": {"200": ok, "default": _ERROR}}
        names = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
        operation["parameters"] = names if "{name}" in route.path else []
        for name, schema in route.query.model_json_schema().get("properties", {}).items():
            operation["parameters"].append({"name": name, "in": "query", "schema": schema})
        if route.body is not None:
            content = {JSON_TYPE: {"schema": schemas[route.body, "serialization"]}}
            operation["requestBody"] = {"required": True, "content": content}
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "slo-ctl",
            "version": tool_version(),
            "description": "Status and SLOs of the VMs of this host. Times are seconds since 1970 (UTC). "
            "JSON replies also have a field format_version.",
        },
        "paths": paths,
        "components": {"schemas": shared.get("$defs", {})},
    }
