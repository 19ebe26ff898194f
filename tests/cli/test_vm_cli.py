"""`slo-ctl vm list`: table, JSON, refusals."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from slo_ctl.cli import app
from slo_ctl.host.libvirt import LibvirtError
from slo_ctl.model.host import FoundBy, Stream, Tenant, Vm
from slo_ctl.observe.streams import Inventory
from slo_ctl.show.vms import inventory_json

SCOPE = r"machine.slice/machine-qemu\x2d1\x2dweb.scope"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "cgroup"
    (root / SCOPE).mkdir(parents=True)
    (root / "cgroup.controllers").write_text("io\n")
    (root / SCOPE / "io.stat").write_text("8:0 rbytes=4096 wbytes=1048576 rios=1 wios=2\n")
    (root / "fio").mkdir()
    return root


@pytest.fixture
def no_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(uri: str) -> None:
        raise LibvirtError(f"no connection to {uri}", "start libvirtd")

    monkeypatch.setattr("slo_ctl.host.libvirt.connect", connect)


def listed(*words: str) -> int:
    return app.run(["vm", "list", *words])


def test_vm_list_prints_a_table(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed("--no-libvirt", "--cgroup-root", str(root), "--cgroup", "fio") == 0
    shown = capsys.readouterr()
    assert f"cgroup v2 at {root}, without libvirt" in shown.out
    web = next(line for line in shown.out.splitlines() if line.startswith("web"))
    assert all(cell in web for cell in ("\u2013", "8:0", "4 KiB", "1 MiB", "/machine.slice/"))
    assert any(line.startswith("/fio") for line in shown.out.splitlines())
    assert shown.err == ""


def test_vm_that_is_named_by_its_namespaces_is_listed(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slo-ctl.toml").write_text(
        '[vm.db]\nnamespaces = ["ssd0/db"]\n[vm.web]\nnamespaces = ["ssd0/a", "ssd0/b"]\n'
    )
    assert listed("--no-libvirt", "--cgroup-root", str(root), "--root", str(tmp_path)) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(row[0], row[4]) for row in rows if row and row[0] in ("db", "web")] == [
        ("db", "ssd0/db"),
        ("web", "8:0"),
        ("web", "ssd0/a"),
        ("web", "ssd0/b"),
    ]


def test_vm_list_prints_json(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed("--json", "--no-libvirt", "--cgroup-root", str(root)) == 0
    output: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert output["format_version"] == 1
    assert output["cgroup"] == {"version": 2, "root": str(root), "io_controller": True}
    assert output["libvirt_uri"] is None
    (vm,) = output["vms"]
    assert (vm["name"], vm["found_by"], vm["libvirt_id"], vm["disks"]) == ("web", "cgroup name", 1, [])
    (stream,) = output["streams"]
    assert stream == {
        "vm": "web",
        "disk": None,
        "source": None,
        "cgroup": f"/{SCOPE}",
        "device": "8:0",
        "tenant": None,
        "counters": {
            "read_bytes": 4096,
            "written_bytes": 1048576,
            "reads": 1,
            "writes": 2,
            "discarded_bytes": None,
            "discards": None,
            "cost_usage_us": None,
        },
    }


def test_json_has_the_bytes_of_namespaces_as_the_table() -> None:
    stream = Stream("db", None, None, None, None, Tenant("ssd0", "db"))
    inventory = Inventory(None, None, (Vm("db", FoundBy.OPTION),), (stream,))
    for transferred, bytes_ in (({Tenant("ssd0", "db"): (4096, 8192)}, (4096, 8192)), ({}, None)):
        (found,) = inventory_json(inventory, transferred)["streams"]
        counters = found["counters"]
        assert (counters and (counters["read_bytes"], counters["written_bytes"])) == bytes_


@pytest.mark.usefixtures("no_daemon")
def test_without_a_daemon_cgroups_still_show_vms(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed("--cgroup-root", str(root)) == 0
    shown = capsys.readouterr()
    assert "web" in shown.out
    assert shown.err == ("note: no connection to qemu:///system; only VMs found by their cgroups are known\n")


@pytest.mark.usefixtures("no_daemon")
def test_libvirt_of_connect_must_answer(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed("--cgroup-root", str(root), "--connect", "qemu:///session") == 2
    assert capsys.readouterr().err == "slo-ctl: no connection to qemu:///session\nhint: start libvirtd\n"


def test_hint_for_a_missing_file_of_libvirts_test_driver_names_it(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("libvirt")
    assert listed("--cgroup-root", str(root), "--connect", "test:///no/such/node.xml") == 2
    hint = "see whether /no/such/node.xml exists and describes a host of libvirt's test driver"
    assert capsys.readouterr().err.splitlines()[-1] == f"hint: {hint}"


def test_names_are_escaped(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "machine.slice" / r"machine-qemu\x2d2\x2d\x1b[2J[red]\xff.scope").mkdir()
    (root / "machine.slice" / "machine-qemu\\x2d3\\x2d\u202e\n.scope").mkdir()
    assert listed("--no-libvirt", "--cgroup-root", str(root)) == 0
    shown = capsys.readouterr().out
    assert r"\x1b[2J[red]\udcff" in shown
    assert r"\u202e\n" in shown
    assert "\x1b" not in shown
    assert listed("--json", "--no-libvirt", "--cgroup-root", str(root)) == 0
    names = [vm["name"] for vm in json.loads(capsys.readouterr().out)["vms"]]
    assert "\x1b[2J[red]\udcff" in names


def test_json_has_the_notes_of_the_table(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slo-ctl.toml").write_text('[vm.db]\ncgroup = "/nosuch"\n')
    words = ("--no-libvirt", "--cgroup-root", str(root), "--root", str(tmp_path))
    note = (
        f"VM db (slo-ctl.toml:1): cgroup /nosuch not found ({root}/nosuch), so its I/O is neither counted "
        "nor limited: start its client in that cgroup, or correct cgroup = in [vm.db]"
    )
    assert listed(*words) == 0
    assert note in capsys.readouterr().err
    assert listed(*words, "--json") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["notes"] == [note]
    assert shown.err == ""


def test_vm_list_without_vms_is_reported(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed("--no-libvirt", "--cgroup-root", str(root / SCOPE)) == 2
    assert "no cgroup tree" in capsys.readouterr().err
    (root / SCOPE / "io.stat").unlink()
    (root / SCOPE).rmdir()
    words = ("--no-libvirt", "--cgroup-root", str(root), "--root", str(root / "slo-ctl"))
    assert listed(*words) == 0
    assert "no VMs found: start VMs" in capsys.readouterr().out
    (root / "slo-ctl").mkdir()
    (root / "slo-ctl" / "slo-ctl.toml").write_text("oops")
    assert listed(*words) == 0
    assert "no VMs found, but VMs of this host may be missing" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ("--no-libvirt", "--cgroup", "nope"),
        ("--no-libvirt", "--cgroup", "../.."),
        ("--no-libvirt", "--connect", "test:///default"),
        ("--jsonn",),
    ],
)
def test_bad_vm_commands_are_refused(
    root: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert listed("--cgroup-root", str(root), *words) == 2
    shown = capsys.readouterr()
    output, hint = shown.err.splitlines()
    assert output.startswith("slo-ctl: ")
    assert hint.startswith("hint: ")
    assert shown.out == ""


@pytest.mark.parametrize(("namespace", "key"), [("db", "db"), ("db.1", '"db.1"')])
def test_clients_without_a_vm_are_reported(
    namespace: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slo-ctl.toml").write_text('[libvirt]\nuri = "none"\n')
    export = tmp_path / "run" / "ssd0" / "exports" / f"{namespace}.sock"
    export.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(export))
        server.listen()
        client.connect(str(export))
        accepted, _ = server.accept()
        with accepted:
            assert app.run(["vm", "list", "--root", str(tmp_path)]) == 0
    assert (
        f"note: ssd0/{namespace} is used by no known VM: add [vm.{key}] with "
        f'namespaces = ["ssd0/{namespace}"] to {tmp_path}/slo-ctl.toml'
    ) in capsys.readouterr().err.splitlines()
