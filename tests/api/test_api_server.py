"""The API over its socket: replies and refusals, and how the client handles them."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import pwd
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slo_ctl.api.client import ApiClient
from slo_ctl.api.messages import RefusalError
from slo_ctl.api.server import MAX_CONNECTIONS, ApiServer
from slo_ctl.base.errors import SilentError, UnreachableError, UserError
from slo_ctl.config.settings import AccessConfig
from slo_ctl.host.bounded_server import BoundedServer
from slo_ctl.model.slo import Slo, SloUpdate
from slo_ctl.model.status import DevicePlan, DeviceStatus, Health, HostStatus, Plan, Verdict, VmSlo, VmStatus
from slo_ctl.model.status_json import from_json
from slo_ctl.record.history_reader import NotInHistoryError, Point, VmHistory
from slo_ctl.record.history_schema import HistoryError
from slo_ctl.record.metrics import Metrics

VM = VmStatus(
    "web/1", "ssd0", ("vda",), Slo(weight=3), "vm set", "running", "emulated SSD", Verdict.OK, "fine",
    iops=12.5, p99_read_us=1500.0,
)  # fmt: skip
STATUS = HostStatus(
    1e9, 10.0, 1.0, 42, 9e8, "", (DeviceStatus("ssd0", "emulated", "isolated OPS", "static", 10.0),), (VM,)
)


class FakeController:
    """A daemon that knows one VM, `web/1`."""

    def __init__(self) -> None:
        self.latest: HostStatus | None = STATUS
        self.fields: dict[str, float] = {}
        self.forced = False
        self.allowed = AccessConfig()

    def access(self) -> AccessConfig:
        return self.allowed

    def status(self) -> HostStatus | None:
        return self.latest

    def health(self) -> Health:
        return Health(42, "1", 9e8, 7, 0, 1e9, "")

    def slo(self, vm: str) -> VmSlo:
        if vm != "web/1":
            raise RefusalError(f"there is no VM {vm}", "see `vm list`", HTTPStatus.NOT_FOUND)
        return VmSlo(Slo(**self.fields), "vm set", vm=vm, vm_set=self.fields)

    def change_slos(
        self,
        vms: Sequence[str],
        change: SloUpdate,
        *,
        user: str = "",
        force: bool = False,
        dry_run: bool = False,
    ) -> tuple[VmSlo, ...]:
        assert user == pwd.getpwuid(os.getuid()).pw_name
        before = self.fields
        unchanged = {name: value for name, value in before.items() if name not in change.unset}
        self.fields, self.forced = {**unchanged, **change.fields}, force
        slos = tuple(self.slo(vm) for vm in vms)
        if dry_run:
            self.fields = before
        return slos

    def plan(self) -> Plan:
        return Plan(devices=(DevicePlan("ssd0", "static", ("3 blocks",), ("why",)),))

    def history(self, vm: str, since: float | None, until: float | None, limit: int) -> VmHistory:
        if vm == "broken":
            raise HistoryError("history: damaged", "move it away")
        if vm == "nobody":
            raise NotInHistoryError("VM nobody not found in the history", "there are: web")
        return VmHistory(vm, since or 0.0, until or 1.0, float(limit), (Point(1.0, "ssd0", 3),))

    def reload(self) -> str:
        return "slo-ctl.toml:3: bad"

    def announce(self, xml: str) -> tuple[str, bool]:
        return xml, True

    def metrics(self) -> bytes:
        return Metrics(self.status).text()


@dataclasses.dataclass
class Served:
    path: Path
    controller: FakeController
    client: ApiClient


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="slo-") as folder:
        controller, path = FakeController(), Path(folder) / "run" / "api.sock"
        server = ApiServer(controller, path, "no-such-group")
        try:
            yield Served(path, controller, ApiClient(path))
        finally:
            server.close()
        assert not path.exists()


def test_status_equals_the_dataclass(served: Served) -> None:
    assert from_json(served.client.get("/v1/status")) == STATUS
    served.controller.latest = None
    with pytest.raises(UserError, match="first epoch"):
        served.client.get("/v1/status")
    served.controller.latest = dataclasses.replace(STATUS, at=2e9)
    assert served.client.get("/v1/status")["at"] == 2e9
    served.controller.latest = STATUS
    assert served.client.get("/v1/health")["epochs"] == 7
    assert [vm["vm"] for vm in served.client.get("/v1/vms")["vms"]] == ["web/1"]


def test_slo_is_set_and_unset(served: Served) -> None:
    reply = served.client.put("/v1/vms/web/1/slo?force=true", {"fields": {"weight": 3, "p99": "5ms"}})
    assert reply["slo"]["weight"] == 3
    assert reply["vm_set"] == {"weight": 3.0, "p99_latency_us": 5000.0}
    assert served.controller.forced
    output = served.client.get("/v1/vms/web%2F1")
    assert output["slo_source"] == "vm set"
    assert output["devices"][0]["device"] == "ssd0"
    assert served.client.delete("/v1/vms/web/1/slo?fields=p99")["vm_set"] == {"weight": 3.0}
    assert served.client.delete("/v1/vms/web/1/slo")["vm_set"] == {}


def test_several_vms_are_changed_at_once(served: Served) -> None:
    body = {"vms": ["web/1", "web/1"], "fields": {"weight": 3, "p99": "5ms"}}
    (reply,) = served.client.patch("/v1/slos", body)["vms"]
    assert reply["vm_set"] == {"weight": 3.0, "p99_latency_us": 5000.0}
    checked = served.client.patch("/v1/slos", {**body, "fields": {"weight": 4}, "dry_run": True})
    assert checked["vms"][0]["slo"]["weight"] == 4.0
    assert served.controller.fields["weight"] == 3.0
    (reply,) = served.client.patch("/v1/slos", {**body, "fields": {"weight": None, "p99": None}})["vms"]
    assert reply["vm_set"] == {}


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("put", "/v1/vms/web/1/slo", {"fields": {"weight": -1}}, "VM web/1: weight=-1"),
        ("put", "/v1/vms/web/1/slo", {"fields": {"wieght": 1}}, "wieght"),
        ("put", "/v1/vms/web/1/slo", {"fields": {}}, "no fields to set"),
        ("put", "/v1/vms/web/1/slo", {"fields": {"weight": [1]}}, "weight"),
        ("put", "/v1/vms/web/1/slo", {"weight": 1}, "fields: missing"),
        ("put", "/v1/vms/web/1/slo", {"fields": {"weight": 1}, "dry": True}, "dry: unknown"),
        ("put", "/v1/vms/web/1/slo", [3], "body: not a JSON object"),
        ("put", "/v1/vms/nobody/slo", {"fields": {"weight": 1}}, "there is no VM nobody"),
        ("delete", "/v1/vms/web/1/slo?fields=colour", None, "colour"),
        # None of these may be interpreted as all fields, or as a change that is applied instead of checked.
        ("delete", "/v1/vms/web/1/slo?field=p99", None, "field: unknown"),
        ("delete", "/v1/vms/web/1/slo?fields=", None, "no fields to unset"),
        ("delete", "/v1/vms/web/1/slo?fields=p99&fields=min", None, "given twice"),
        ("put", "/v1/vms/web/1/slo?dry_run=true", {"fields": {"weight": 1}}, "dry_run: unknown"),
        ("patch", "/v1/slos?dry_run=true", {"vms": ["web/1"], "fields": {"weight": 1}}, "dry_run: unknown"),
        ("patch", "/v1/slos", {"fields": {"weight": 1}}, "vms"),
        ("patch", "/v1/slos", {"vms": [], "fields": {"weight": 1}}, "vms"),
        ("patch", "/v1/slos", {"vms": ["web/1"], "fields": {"class": 3}}, "class=3 is not the name"),
        (
            "patch",
            "/v1/slos",
            {"vms": ["web/1"], "fields": {"min": None, "min_iops": 3}},
            "both set and unset",
        ),
        ("get", "/v1/history/broken", None, "history: damaged"),
        ("get", "/v1/history/web?limit=0", None, "limit"),
        ("get", "/v1/history/web?since=nan", None, "since"),
        ("get", "/v1/history/web?since=-1e18", None, "since"),
        ("get", "/v2/status", None, "Not Found"),
        ("delete", "/v1/status", None, "Method Not Allowed"),
    ],
)
def test_bad_requests_are_refused(served: Served, method: str, path: str, body: Any, message: str) -> None:
    arguments = (path,) if body is None else (path, body)
    with pytest.raises(UserError) as error:
        getattr(served.client, method)(*arguments)
    assert message in error.value.message
    assert error.value.hint


@pytest.mark.parametrize(
    ("request_line", "status", "allow"),
    [
        ("POST /v1/status", 405, b"\r\nAllow: GET, HEAD\r\n"),
        ("GET /v1/vms/web/1/slo", 404, b""),
        ("OPTIONS /v1/slos", 405, b"\r\nAllow: PATCH\r\n"),
        ("DELETE /v1/nothing", 404, b""),
        ("HEAD /v1/status", 200, b""),
        ("HEAD /v1/nothing", 404, b""),
        ("GET /v1/history/nobody", 404, b""),
        ("GET http://[/", 400, b""),
    ],
)
def test_methods_are_those_of_http(served: Served, request_line: str, status: int, allow: bytes) -> None:
    """HEAD is GET without a body, and a refused method comes with those that the path has (RFC 9110)."""
    reply = _raw(served.path, f"{request_line} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = reply.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert allow in head + b"\r\n"
    assert (b"Allow:" in head) is bool(allow)
    assert (body == b"") is request_line.startswith("HEAD")


def _put_slo(served: Served, quoted_vm: bytes, body: bytes) -> bytes:
    """The reply to bytes that the client would not send."""
    head = b"PUT /v1/vms/%b/slo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (quoted_vm, len(body))
    return _raw(served.path, head + body)


def test_name_that_is_not_utf8_is_no_other_name(served: Served) -> None:
    """With `force` an SLO was stored for a VM with replacement characters in its name."""
    reply = _put_slo(served, b"%ED%A0%80", b'{"force": true, "fields": {"weight": 2}}')
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert b"is not UTF-8" in reply


def test_start_is_logged_with_the_name_that_it_has(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """Without libvirt the XML is not read: the log said `VM  starts`."""
    caplog.set_level("INFO")
    for xml in ("web", ""):
        assert served.client.post("/v1/starting", {"xml": xml})["vm"] == xml
    assert [each.getMessage() for each in caplog.records if "starts" in each.getMessage()] == [
        "VM web starts"
    ]


def test_field_given_twice_is_refused_as_a_parameter_is(served: Served) -> None:
    reply = _put_slo(served, b"web%2F1", b'{"fields": {"weight": 1, "weight": 9}}')
    assert reply.startswith(b"HTTP/1.1 422 ")
    assert b"weight is given twice" in reply


def test_hint_for_a_bad_body_is_a_good_one(served: Served) -> None:
    for path, method in (("/v1/vms/web/1/slo", "put"), ("/v1/slos", "patch")):
        with pytest.raises(UserError) as error:
            getattr(served.client, method)(path, {"weight": 1})
        example, _, _ = error.value.hint.removeprefix("such as ").partition("; ")
        assert json.loads(example)["fields"] == {"weight": 3}


def test_plan_history_reload_metrics(served: Served) -> None:
    assert served.client.get("/v1/plan")["devices"][0]["decided"] == ["3 blocks"]
    history = served.client.get("/v1/history/web/1?since=5&limit=7")
    assert (history["vm"], history["since"], history["bucket_s"]) == ("web/1", 5.0, 7.0)
    assert served.client.post("/v1/reload")["config_problem"] == "slo-ctl.toml:3: bad"
    text = _raw(served.path, b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").decode()
    assert 'slo_ctl_vm_iops{device="ssd0",vm="web/1"} 12.5' in text
    assert 'slo_ctl_vm_read_latency_p99_seconds{device="ssd0",vm="web/1"} 0.0015' in text
    assert 'slo_ctl_vm_verdict{device="ssd0",verdict="ok",vm="web/1"} 1.0' in text


def test_openapi_describes_real_routes(served: Served) -> None:
    text = _raw(served.path, b"GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    api = json.loads(text.partition(b"\r\n\r\n")[2])
    reply = api["paths"]["/v1/status"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    schemas = api["components"]["schemas"]
    status = schemas[reply["$ref"].rpartition("/")[2]]
    assert {field.name for field in dataclasses.fields(HostStatus)} == set(status["properties"])
    error = api["paths"]["/v1/status"]["get"]["responses"]["default"]["content"]["application/json"]["schema"]
    refused = _raw(served.path, b"GET /v1/absent HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    refusal = json.loads(refused.partition(b"\r\n\r\n")[2])
    assert refusal.keys() == error["properties"].keys()
    assert refusal["error"].keys() == error["properties"]["error"]["properties"].keys()
    assert schemas["Verdict"]["enum"] == [verdict.value for verdict in Verdict]
    assert {field.name for field in dataclasses.fields(VmStatus)} == set(schemas["VmStatus"]["properties"])


@pytest.mark.parametrize(
    ("method", "path", "request_path"),
    [
        ("get", "/v1/health", "/v1/health"),
        ("get", "/v1/vms", "/v1/vms"),
        ("get", "/v1/vms/{name}", "/v1/vms/web/1"),
        ("get", "/v1/plan", "/v1/plan"),
        ("get", "/v1/history/{name}", "/v1/history/web"),
        ("post", "/v1/reload", "/v1/reload"),
        ("delete", "/v1/vms/{name}/slo", "/v1/vms/web/1/slo"),
    ],
)
def test_replies_have_the_documented_fields(
    served: Served, method: str, path: str, request_path: str
) -> None:
    text = _raw(served.path, b"GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    api = json.loads(text.partition(b"\r\n\r\n")[2])
    content = api["paths"][path][method]["responses"]["200"]["content"]["application/json"]
    described = api["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]["properties"]
    assert set(getattr(served.client, method)(request_path)) == {"format_version", *described}


def test_socket_has_its_mode_and_refuses_a_second_server(served: Served) -> None:
    assert stat.S_IMODE(served.path.stat().st_mode) == 0o660
    with pytest.raises(UserError, match="address already in use"):
        ApiServer(FakeController(), served.path, "no-such-group")
    assert served.client.get("/v1/health")


def test_stale_socket_is_replaced(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="slo-") as folder:
        path = Path(folder) / "api.sock"
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        server = ApiServer(FakeController(), path, "no-such-group")
        assert ApiClient(path).get("/v1/health")
        server.close()
        (tmp_path / "file").touch()
        with pytest.raises(UserError, match="not a socket"):
            ApiServer(FakeController(), tmp_path / "file", "no-such-group")


def test_a_socket_that_cannot_be_removed_does_not_disturb_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a directory that has become read-only: the daemon reported it as a bug of slo-ctl."""

    def refuse(_path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with tempfile.TemporaryDirectory(prefix="slo-") as folder:
        path = Path(folder) / "api.sock"
        server = ApiServer(FakeController(), path, "no-such-group")
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", refuse)
            server.close()
        assert path.exists()
        ApiServer(FakeController(), path, "no-such-group").close()
        assert not path.exists()


def _raw(path: Path, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        client.connect(str(path))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.sendall(data)
        reply = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := client.recv(65536):
                reply += chunk
        return reply


def test_large_bodies_and_headers_are_refused(served: Served) -> None:
    body = b"x" * 2_000_000
    head = b"PUT /v1/vms/web/slo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    assert b"413" in _raw(served.path, head % len(body) + body)[:40]
    with pytest.raises(UserError, match="Too Large"):
        served.client.put("/v1/vms/web/1/slo", {"fields": {"weight": "x" * 4_000_000}})
    chunked = b"PUT /v1/vms/web/slo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert b"411" in _raw(served.path, chunked + b"2\r\n{}\r\n0\r\n\r\n")[:40]
    assert b"400" in _raw(served.path, head.replace(b"%d", b"-1"))[:40]
    assert b"200 OK" not in _raw(served.path, b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n")
    assert served.client.get("/v1/health")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300) | st.builds(lambda b: b"PUT /v1/vms/a/slo HTTP/1.1\r\n" + b, st.binary()))
def test_garbage_does_not_affect_other_clients(served: Served, garbage: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        client.connect(str(served.path))
        client.sendall(garbage)
    assert served.client.get("/v1/health")["pid"] == 42


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.sampled_from(["weight", "min_iops", "p99", "max_bandwidth", "x"]), json_values)
    | json_values
)
def test_any_json_is_accepted_or_refused(served: Served, body: Any) -> None:
    output = ""
    try:
        served.client.put("/v1/vms/web/1/slo", {"fields": body})
    except UserError as error:
        output = error.message
    assert "unexpected" not in output


def test_idle_connections_do_not_block_new_ones(served: Served) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    clients = []
    for _ in range(3 * MAX_CONNECTIONS):
        client = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):
            client.connect(str(served.path))
        clients.append(client)
    # The sockets of the clients, and a bounded number of the server.
    limit = len(clients) + MAX_CONNECTIONS + 20
    deadline = time.monotonic() + 30
    while (open_files := _stable_open_files() - before) >= limit:
        assert time.monotonic() < deadline, f"{open_files} ends, not below {limit}"
    for client in clients:
        client.close()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with contextlib.suppress(Exception):
            served.client.get("/v1/health")
            return
    pytest.fail("no answer after all clients had disconnected")


def test_the_server_waits_while_the_process_may_open_no_more_files() -> None:
    """accept() failed at once, again and again: a CPU was busy until other connections had ended."""

    class Full(socket.socket):
        calls = 0

        def accept(self) -> NoReturn:
            self.calls += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with tempfile.TemporaryDirectory(prefix="slo-") as folder, socket.socket(socket.AF_UNIX) as client:
        path = f"{folder}/full.sock"
        listening = Full(socket.AF_UNIX)
        listening.bind(path)
        listening.listen()
        server = BoundedServer(listening, BaseHTTPRequestHandler, 1, "full")
        server.start()
        client.connect(path)
        time.sleep(0.5)
        server.stop()
    assert 0 < listening.calls < 20


def _stable_open_files() -> int:
    """Number of open files of this process, for server and clients, after it has become stable."""
    before = -1
    while (now := len(os.listdir("/proc/self/fd"))) != before:  # noqa: PTH208
        before = now
        time.sleep(0.3)
    return now


def test_many_clients_are_served_at_once(served: Served) -> None:
    failures: list[BaseException] = []

    def send_requests() -> None:
        try:
            for _ in range(10):
                served.client.get("/v1/status")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=send_requests) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@contextmanager
def answering(reply: bytes) -> Iterator[ApiClient]:
    with tempfile.TemporaryDirectory(prefix="slo-") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = Path(folder) / "api.sock"
        listener.bind(str(path))
        listener.listen(1)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(reply)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):  # the rest of the request: closing before it would reset
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield ApiClient(path, timeout_s=5)
        thread.join(5)


def http(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def test_client_returns_answers_and_refusals() -> None:
    with answering(http("200 OK", b'{"format_version": 1, "vms": []}')) as client:
        assert client.get("/v1/vms") == {"format_version": 1, "vms": []}
    refusal = b'{"format_version": 1, "error": {"message": "there is no VM web", "hint": "see `vm list`"}}'
    with answering(http("404 Not Found", refusal)) as client, pytest.raises(UserError) as error:
        client.put("/v1/vms/web/slo", {"weight": 3})
    assert (error.value.message, error.value.hint) == ("there is no VM web", "see `vm list`")


@pytest.mark.parametrize("body", [b"", b"[1]", b"<html>", b'{"error": "text"}', b'{"error": null}'])
def test_error_of_another_server_is_reported(body: bytes) -> None:
    with answering(http("500 Oops", body)) as client, pytest.raises(UserError, match="500"):
        client.get("/v1/status")


def test_other_format_version_is_refused() -> None:
    with (
        answering(http("200 OK", b'{"format_version": 2}')) as client,
        pytest.raises(UserError, match="format_version 2, not 1"),
    ):
        client.get("/v1/status")


def test_unreachable_daemon_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="No such file"):
        ApiClient(tmp_path / "none.sock").get("/v1/status")
    with answering(b"\x00garbage\r\n") as client, pytest.raises(UnreachableError, match="no HTTP"):
        client.get("/v1/status")


def test_a_daemon_that_closes_the_connection_runs() -> None:
    """With too many connections `vm set` reported that the daemon was not running."""
    with answering(b"") as client, pytest.raises(SilentError, match="too many at a time"):
        client.get("/v1/status")
