"""`slo-ctl device create|list|show|delete`, and refusals of `serve` before it serves."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from slo_ctl.cli.app import run
from slo_ctl.drives.attach import disk_xml
from slo_ctl.drives.control import ControlClient, ControlError
from slo_ctl.drives.places import places
from slo_ctl.drives.store import DeviceStore
from slo_ctl.host.processes import tcp_connections

SPEC = "name=ssd0,size=64MiB,op=30%,dies=2"


def device(root: Path, *words: str) -> int:
    return run(["device", *words, "--root", str(root)])


@pytest.fixture
def root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert (
        device(tmp_path, "create", SPEC, "--namespace", "name=vm1,weight=3", "--namespace", "name=vm2") == 0
    )
    assert "EMULATED" in capsys.readouterr().out
    return tmp_path


def test_list_and_show_label_emulated_devices(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert device(root, "list") == 0
    output = capsys.readouterr().out
    assert "ssd0" in output
    assert "EMULATED" in output
    assert device(root, "show", "ssd0") == 0
    output = capsys.readouterr().out
    assert "EMULATED" in output
    assert "nbd+unix:///vm1?socket=" in output


def test_device_commands_print_json(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert device(root, "list", "--json") == 0
    output = json.loads(capsys.readouterr().out)
    assert output["format_version"] == 1
    (only,) = output["devices"]
    assert (only["name"], only["emulated"], only["served"]) == ("ssd0", True, False)
    assert (only["allocated_bytes"], output["errors"]) == (0, [])
    assert device(root, "show", "ssd0", "--json") == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["format_version"], output["emulated"], output["served"]) == (1, True, False)
    assert output["size_bytes"] == 64 << 20
    assert [(each["name"], each["weight"]) for each in output["namespaces"]] == [("vm1", 3), ("vm2", 1)]
    assert output["namespaces"][0]["uri"].startswith("nbd+unix:///vm1?socket=")
    assert output["statistics"] is None


def test_an_empty_root_has_no_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert device(tmp_path, "list") == 0
    assert "no devices" in capsys.readouterr().out


def test_a_device_is_created_by_name_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("ssd1", "dies=2", "--size", "64MiB", "--op", "30%", "--preset", "fast15")
    assert device(tmp_path, "create", *words) == 0
    assert "created device ssd1 (EMULATED)" in capsys.readouterr().out
    assert device(tmp_path, "list", "--json") == 0
    (listed,) = json.loads(capsys.readouterr().out)["devices"]
    assert listed["spec"] == "name=ssd1,dies=2,preset=fast15,size=64MiB,op=30%"
    assert device(tmp_path, "create", "ssd2", "size=1GiB", "--size", "2GiB") == 2
    assert "size is given twice" in capsys.readouterr().err
    assert device(tmp_path, "create", "ssd2", "ssd3") == 2
    assert "ssd3 is a second name, or has no value" in capsys.readouterr().err


def test_a_damaged_device_does_not_hide_the_others(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert device(root, "create", "name=ssd1,size=64MiB,op=30%,dies=2") == 0
    (root / "devices" / "ssd0" / "device.toml").write_text("nonsense")
    assert device(root, "list") == 0
    shown = capsys.readouterr()
    assert "ssd1" in shown.out
    assert "ssd0" in shown.err
    assert device(root, "list", "--json") == 0
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert "ssd0" in error["message"]


@pytest.fixture
def other_user() -> Iterator[tuple[Path, Callable[[], AbstractContextManager[None]]]]:
    """A root that any user may enter, and a context in which this process may not enter others' devices."""
    folder = Path(tempfile.mkdtemp(prefix="slo-"))
    folder.chmod(0o755)

    @contextmanager
    def unprivileged() -> Iterator[None]:
        if os.geteuid() == 0:
            os.seteuid(pwd.getpwnam("nobody").pw_uid)
            try:
                yield
            finally:
                os.seteuid(0)
            return
        for each in (folder / "devices").iterdir():
            each.chmod(0)
        try:
            yield
        finally:
            for each in (folder / "devices").iterdir():
                each.chmod(0o700)

    yield folder, unprivileged
    shutil.rmtree(folder)


def test_a_device_of_another_user_is_named_and_no_crash(
    other_user: tuple[Path, Callable[[], AbstractContextManager[None]]], capsys: pytest.CaptureFixture[str]
) -> None:
    root, unprivileged = other_user
    assert device(root, "create", SPEC) == 0
    assert device(root, "list") == 0
    capsys.readouterr()
    with unprivileged():
        assert device(root, "list") == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"{root}/devices/ssd0/device.toml: Permission denied" in shown.err
    assert "unexpected" not in shown.err


def test_hint_names_the_server_that_has_to_be_stopped(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with DeviceStore(places(root)).locked("ssd0"):
        for command in (("delete", "ssd0", "--yes"), ("precondition", "ssd0")):
            assert device(root, *command) == 2
            shown = capsys.readouterr().err
            assert f"hint: stop `slo-ctl device serve ssd0 --root {root}` first\n" in shown


def test_delete_asks_for_confirmation(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert device(root, "delete", "ssd0") == 2
    assert "--yes" in capsys.readouterr().err
    with DeviceStore(places(root)).locked("ssd0"):
        assert device(root, "delete", "ssd0", "--yes") == 2
    assert "is being served" in capsys.readouterr().err
    assert device(root, "delete", "ssd0", "--yes") == 0
    assert list((root / "devices").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("create", SPEC), "already exists"),
        (("create", "size=1GiB"), "name is missing"),
        (("show", "ssd1"), "device ssd1 not found"),
        (("delete", "ssd1", "--yes"), "device ssd1 not found"),
        (("serve", "ssd1"), "device ssd1 not found"),
        (("serve", "../ssd0"), "not a valid name"),
        (("serve", "ssd0", "--latency", "slow"), "--latency: slow"),
        (("serve", "ssd0", "--time-scale", "0"), "--time-scale"),
        (("serve", "ssd0", "--time-scale", "2"), "--time-scale has no effect without --latency"),
        (("serve", "ssd0", "--latency", "real", "--poll", "0"), "--poll has no effect with --latency real"),
        (("serve", "ssd0", "--group", "no-such-group"), "--group"),
        (("serve", "ssd0", "--nvme-tcp", "0.0.0.0:4420"), "--nvme-tcp"),
        (("serve", "ssd0", "--tls-verify-peer"), "--tls-verify-peer"),
        (("serve", "ssd0", "--nvme-hosts", "nqn.2026-11.org.example:a"), "--nvme-hosts"),
    ],
)
def test_errors_are_one_line_and_a_hint(
    words: tuple[str, ...],
    message: str,
    root: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (root / "server").touch()
    monkeypatch.setenv("SLO_CTL_SERVER", str(root / "server"))
    capsys.readouterr()
    assert device(root, *words) == 2
    output, hint = capsys.readouterr().err.splitlines()
    assert message in output
    assert hint.startswith("hint: ")


def test_missing_argument_is_named(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLO_CTL_SERVER", str(root / "nosuch"))
    assert device(root, "serve", "ssd0") == 2
    assert f"SLO_CTL_SERVER: file {root / 'nosuch'} not found" in capsys.readouterr().err


def test_socket_in_use_is_not_replaced(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "server").touch()
    monkeypatch.setenv("SLO_CTL_SERVER", str(root / "server"))
    run_places = places(root).run_of("ssd0")
    run_places.exports.mkdir(parents=True)
    monkeypatch.chdir(run_places.folder)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind("control.sock")
        other.listen()
        if len(str(run_places.control)) < 100:
            assert device(root, "serve", "ssd0") == 2
            assert "address already in use" in capsys.readouterr().err
            assert run_places.control.is_socket()


def test_paths_too_long_for_sockets_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    assert device(deep, "create", SPEC) == 0
    (deep / "server").touch()
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLO_CTL_SERVER", str(deep / "server"))
        assert device(deep, "serve", "ssd0") == 2
    assert "too long for a socket" in capsys.readouterr().err


def test_namespace_in_use_is_removed_only_with_force(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "slo-ctl.toml").write_text('[libvirt]\nuri = "none"\n[vm.web]\nnamespaces = ["ssd0/vm1"]\n')
    assert device(root, "remove", "ssd0/vm1", "--yes") == 2
    assert "namespace ssd0/vm1 is used by VM web" in capsys.readouterr().err
    export = places(root).run_of("ssd0").export("vm2")
    export.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(export))
        server.listen()
        client.connect(str(export))
        connection, _ = server.accept()
        with connection:
            assert device(root, "remove", "ssd0/vm2", "--yes") == 2
            shown = capsys.readouterr().err
    assert "namespace ssd0/vm2 is in use: 1 client connection" in shown
    assert "--force" in shown
    exports = places(root).run_of("ssd0").all_exports
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(exports))
        server.listen()
        client.connect(str(exports))
        connection, _ = server.accept()
        with connection:
            assert device(root, "remove", "ssd0/vm2", "--yes") == 2
            shown = capsys.readouterr().err
    assert "namespace ssd0/vm2 may be in use: 1 client connection to all namespaces of ssd0" in shown
    assert device(root, "remove", "ssd0/vm1", "--yes", "--force") == 0
    assert device(root, "remove", "ssd0/vm2", "--yes") == 0


def test_a_device_that_the_configuration_names_is_deleted_only_with_force(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = root / "slo-ctl.toml"
    config.write_text('[libvirt]\nuri = "none"\n[vm.web]\nnamespaces = ["ssd0/vm1", "ssd1/vm2"]\n')
    assert device(root, "delete", "ssd0", "--yes") == 2
    problem, hint = capsys.readouterr().err.splitlines()
    assert problem == "slo-ctl: ssd0/vm1 is a namespace of VM web (slo-ctl.toml:3)"
    assert hint == "hint: remove it from the configuration first, or add --force"
    config.write_text('[libvirt]\nuri = "none"\n[[device]]\nname = "ssd0"\npolicy = "static"\n')
    assert device(root, "delete", "ssd0", "--yes") == 2
    assert "device ssd0 is in the configuration (slo-ctl.toml:3)" in capsys.readouterr().err
    assert device(root, "delete", "ssd0", "--yes", "--force") == 0


@pytest.mark.parametrize("runstate", [1, 5])
def test_a_disk_of_a_vm_of_libvirt_is_removed_only_with_force(
    root: Path, runstate: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of a VM that does not run: it could not start afterwards."""
    pytest.importorskip("libvirt")
    disk = disk_xml(places(root).run_of("ssd0").export("vm1"), "vm1", "vdb", "virtio")
    node = root / "node.xml"
    node.write_text(
        "<node><domain type='test' xmlns:test='http://libvirt.org/schemas/domain/test/1.0'>"
        f"<test:runstate>{runstate}</test:runstate>"
        "<name>my web</name><memory>8192</memory><os><type>hvm</type></os>"
        f"<devices>{disk}</devices></domain></node>"
    )
    (root / "slo-ctl.toml").write_text(f'[libvirt]\nuri = "test://{node}"\n')
    for words in (("delete", "ssd0"), ("remove", "ssd0/vm1")):
        assert device(root, *words, "--yes") == 2
        error = capsys.readouterr().err
        assert "my web" in error
        assert f"slo-ctl vm detach 'my web' vdb --root {root}" in error
    assert device(root, "remove", "ssd0/vm2", "--yes") == 0
    node.unlink()
    assert device(root, "delete", "ssd0", "--yes") == 0
    assert "note: it is not known whether a VM of libvirt names ssd0: " in capsys.readouterr().err


def test_connections_of_nvme_hosts_are_counted_at_the_port_of_the_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert tcp_connections(port) == 0
        with socket.create_connection(("127.0.0.1", port)):
            connection, _ = server.accept()
            with connection:
                assert tcp_connections(port) == 1


def test_hints_of_a_device_name_the_root(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert device(root, "show", "ssd0") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"served no (slo-ctl device serve ssd0 --root {root})" in shown


def test_slow_server_is_not_reported_as_unreachable(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        with ControlClient(path, timeout_s=0.01) as client, pytest.raises(ControlError) as late:
            client.statistics()
    assert late.value.code == "late"
    assert "has not answered for 0.01 s" in late.value.message


def test_capacity_of_a_removed_namespace_is_free(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert device(root, "add", "ssd0", "--namespace", "name=vm3") == 2
    assert "no space for a namespace" in capsys.readouterr().err
    assert device(root, "remove", "ssd0/vm2", "--yes") == 0
    assert device(root, "add", "ssd0", "--namespace", "name=vm3") == 0
    assert "added ssd0/vm3: 32MiB" in capsys.readouterr().out


def test_settings_of_a_later_version_are_not_called_damaged(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = places(root).device("ssd0") / "settings.json"
    settings.write_text('{"format_version": 1, "namespaces": {"vm1": {"colour": 7}}}')
    assert device(root, "show", "ssd0") == 2
    error = capsys.readouterr().err
    assert f"{settings}: namespaces.vm1.colour is not known to this version of slo-ctl" in error
    assert "damaged:" not in error
    assert "hint: use the slo-ctl that wrote it" in error


TERMINATED = """
import os, signal, sys, time
from slo_ctl.cli import app
from slo_ctl.drives import store

def run(command, lock_fd, progress):
    try:
        os.kill(os.getpid(), signal.{signal})
        time.sleep(60)
    finally:
        print("the server is stopped")

store._run = run
signal.signal(signal.{signal}, signal.SIG_DFL)  # tests may run under nohup, which ignores SIGHUP
sys.exit(app.run(["device", "precondition", "ssd0", "--root", sys.argv[1]]))
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_preconditioning_that_is_terminated_stops_its_server(name: str, root: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", TERMINATED.format(signal=name), str(root)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (130, "the server is stopped\n")
    assert "slo-ctl: interrupted" in result.stderr
