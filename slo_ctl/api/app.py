"""The routes of the API."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from slo_ctl.api.body_limit import BodyLimit
from slo_ctl.api.controller import RefusalError
from slo_ctl.api.schema import (
    FORMAT_VERSION,
    ErrorReply,
    HealthReply,
    HistoryReply,
    PlanReply,
    PromisedReply,
    ReloadReply,
    SloBody,
    StatusReply,
    VmReply,
    VmsReply,
)
from slo_ctl.errors import UserError
from slo_ctl.promises import SloError, parse_fields
from slo_ctl.promises.check import field_named
from slo_ctl.record.history_errors import HistoryError
from slo_ctl.record.history_reader import MAX_POINTS
from slo_ctl.record.metrics import CONTENT_TYPE
from slo_ctl.show.status_json import plain, to_json
from slo_ctl.version import tool_version

if TYPE_CHECKING:
    from slo_ctl.api.controller import Controller
    from slo_ctl.model import HostStatus

_NOT_YET = RefusalError(
    "the first epoch is not over yet", "ask again in a moment", HTTPStatus.SERVICE_UNAVAILABLE
)
_DAEMON_LIMIT = 500
"""Buckets of a history unless asked for otherwise."""

Force = Annotated[bool, Query(description="As `force` in the body.")]
Moment = Annotated[float | None, Query(description="Seconds since 1970.", allow_inf_nan=False)]
Limit = Annotated[int, Query(ge=1, le=MAX_POINTS, description="Buckets of time at most.")]
Names = Annotated[str | None, Query(description="Take only these back, with commas between.")]


def make_app(controller: Controller) -> FastAPI:
    """The application, answering for `controller`."""
    app = FastAPI(
        title="slo-ctl",
        version=tool_version(),
        description="Status and promises of the VMs of this host. Times are seconds since 1970 (UTC).",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        responses={"4XX": {"model": ErrorReply}, "5XX": {"model": ErrorReply}},
    )
    app.add_middleware(BodyLimit)
    _add_refusals(app)
    _add_status(app, controller)
    _add_promises(app, controller)
    _add_work(app, controller)
    return app


def _add_status(app: FastAPI, controller: Controller) -> None:
    latest: tuple[HostStatus | None, bytes] = (None, b"")

    @app.get("/v1/health", response_model=HealthReply, summary="Whether the daemon gets on")
    async def health() -> Response:
        return _reply(plain(controller.health()))

    @app.get("/v1/status", response_model=StatusReply, summary="Everything, as of the last epoch")
    async def status() -> Response:
        nonlocal latest
        now = _status(controller)
        if now is not latest[0]:
            latest = (now, json.dumps(to_json(now)).encode())
        return Response(latest[1], media_type="application/json")

    @app.get("/v1/vms", response_model=VmsReply, summary="Every VM on every device")
    async def vms() -> Response:
        return _reply({"vms": plain(_status(controller).vms)})

    @app.get("/metrics", response_class=Response, summary="In Prometheus's text format")
    async def metrics() -> Response:
        return Response(controller.metrics(), media_type=CONTENT_TYPE)


def _add_promises(app: FastAPI, controller: Controller) -> None:
    # Names of VMs may have slashes, so the longer paths go first.
    @app.put("/v1/vms/{name:path}/slo", response_model=PromisedReply, summary="Promise fields of an SLO")
    def set_slo(name: str, body: SloBody, force: Force = False) -> Response:
        try:
            fields = parse_fields(body.fields.given())
        except SloError as error:
            raise RefusalError(f"VM {name}: {error.message}", error.hint) from None
        if not fields:
            raise RefusalError(f"VM {name}: nothing to promise", 'such as {"fields": {"weight": 3}}')
        return _reply(plain_with_fields(controller.set_slo(name, fields, force=force or body.force)))

    @app.delete("/v1/vms/{name:path}/slo", response_model=PromisedReply, summary="Take promises back")
    def unset_slo(name: str, fields: Names = None) -> Response:
        try:
            names = None if fields is None else {field_named(key) for key in fields.split(",")}
        except SloError as error:
            raise RefusalError(f"VM {name}: {error.message}", error.hint) from None
        return _reply(plain_with_fields(controller.unset_slo(name, names)))

    @app.get("/v1/vms/{name:path}", response_model=VmReply, summary="One VM")
    def vm(name: str) -> Response:
        promised = controller.promised(name)
        devices = [plain(each) for each in _status(controller).vms if each.vm == name]
        return _reply({**plain_with_fields(promised), "devices": devices})


def _add_work(app: FastAPI, controller: Controller) -> None:
    @app.get("/v1/plan", response_model=PlanReply, summary="What the next epoch would change")
    def plan() -> Response:
        return _reply(plain(controller.plan()))

    @app.get("/v1/history/{name:path}", response_model=HistoryReply, summary="The past of one VM")
    def history(
        name: str, since: Moment = None, until: Moment = None, limit: Limit = _DAEMON_LIMIT
    ) -> Response:
        return _reply(plain(controller.history(name, since, until, limit)))

    @app.post("/v1/reload", response_model=ReloadReply, summary="Read the configuration anew")
    def reload() -> Response:
        return _reply({"config_problem": controller.reload()})


def plain_with_fields(promised: Any) -> dict[str, Any]:
    """A Promised in JSON types: `plain` knows no dictionaries."""
    return {
        "vm": promised.vm,
        "slo": plain(promised.slo),
        "slo_source": promised.slo_source,
        "vm_set": dict(promised.vm_set),
        "conflicts": list(promised.conflicts),
        "notes": list(promised.notes),
    }


def _status(controller: Controller) -> HostStatus:
    status = controller.status()
    if status is None:
        raise _NOT_YET
    return status


def _reply(body: dict[str, Any], status: int = HTTPStatus.OK) -> Response:
    text = json.dumps({"format_version": FORMAT_VERSION, **body})
    return Response(text, status, media_type="application/json")


def _refusal(status: int, message: str, hint: str) -> Response:
    return _reply({"error": {"message": message, "hint": hint}}, status)


def _add_refusals(app: FastAPI) -> None:
    """Every error in one shape."""

    @app.exception_handler(UserError)
    async def refused(_request: Request, error: UserError) -> Response:
        status = error.status if isinstance(error, RefusalError) else HTTPStatus.UNPROCESSABLE_ENTITY
        return _refusal(status, error.message, error.hint)

    @app.exception_handler(HistoryError)
    async def no_history(_request: Request, error: HistoryError) -> Response:
        return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, error.reason, error.hint)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return _refusal(HTTPStatus.UNPROCESSABLE_ENTITY, f"{where}: {first['msg']}", "see /v1/openapi.json")

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        what = f"{request.method} {request.url.path}: {error.detail}"
        return _refusal(error.status_code, what, "see /v1/openapi.json")

    @app.exception_handler(Exception)
    async def unexpected(_request: Request, error: Exception) -> Response:
        told = f"unexpected {type(error).__name__}: {error}"
        return _refusal(
            HTTPStatus.INTERNAL_SERVER_ERROR, told, "the daemon's log says where; please report it"
        )
