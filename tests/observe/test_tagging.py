"""Assignment of streams to namespaces."""

from __future__ import annotations

from pathlib import Path

import pytest

from slo_ctl.drives.places import ExportPaths
from slo_ctl.model.host import Disk, Stream, Tenant
from slo_ctl.observe.streams import assign_namespaces

WEB = Tenant("ssd0", "web")


@pytest.fixture
def exports(tmp_path: Path) -> ExportPaths:
    (tmp_path / "real").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "real")
    return ExportPaths(tmp_path / "run")


@pytest.mark.parametrize("folder", ["run", "real"])
def test_namespace_is_read_from_the_disk_source(exports: ExportPaths, tmp_path: Path, folder: str) -> None:
    def of(source: str) -> Tenant | None:
        return exports.tenant_of_source(source.replace("RUN", str(tmp_path / folder)))

    assert of("nbd+unix:///web?socket=RUN/ssd0/exports/web.sock") == WEB
    assert of("nbd+unix:///?socket=RUN/ssd0/exports/web.sock") == WEB
    assert of("nbd+unix:///web?socket=RUN/ssd0/all.sock") == WEB
    assert of("nbd+unix:///?socket=RUN/ssd0/all.sock") is None
    assert of("nbd+unix:///web?socket=RUN/ssd0/control.sock") is None
    assert of("nbd+unix:///web?socket=/elsewhere/ssd0/exports/web.sock") is None
    assert of("RUN/ssd0/exports/web.sock") is None
    assert of("RUN/ssd0/vhost-user/web.sock") == WEB
    assert of("nbd+unix:///web?socket=RUN/ssd1/../ssd0/exports/web.sock") == WEB
    assert of("/elsewhere/ssd0/vhost-user/web.sock") is None
    assert exports.is_export(f"{tmp_path / folder}/ssd0/vhost-user/web.sock".encode())


def test_disk_before_socket_before_configuration(exports: ExportPaths, tmp_path: Path) -> None:
    disk = Disk("vda", "network", f"nbd+unix:///web?socket={tmp_path}/run/ssd0/exports/web.sock")
    streams = [Stream("a", disk, "/a", None), Stream("b", None, "/b", None)]
    path = f"{tmp_path}/real/ssd0/exports/{{}}.sock"
    connected = {"/a": {path.format("web").encode()}, "/b": {path.format("b1").encode()}}
    notes: list[str] = []
    found = assign_namespaces(
        streams,
        exports,
        connected,
        {"c": ["ssd1/x", "ssd1"]},
        {"a": "/a", "b": "/b", "c": None},
        notes.append,
    )
    assert [(s.vm, s.disk, s.tenant) for s in found] == [
        ("a", disk, WEB),
        ("b", None, None),
        ("b", None, Tenant("ssd0", "b1")),
        ("c", None, Tenant("ssd1", "x")),
    ]
    assert notes == []


def test_two_vms_on_one_namespace_are_reported(exports: ExportPaths) -> None:
    notes: list[str] = []
    names = {"a": ["ssd0/web"], "b": ["ssd0/web"]}
    assign_namespaces([], exports, {}, names, {"a": None, "b": None}, notes.append)
    assert notes == ["ssd0/web is used by 2 VMs (a, b): their I/O cannot be distinguished"]
