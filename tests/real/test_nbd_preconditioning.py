"""Preconditioning brings the placement of a device to its steady state and keeps its data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from nbd_client import NbdClient
from serving import READY_S, Server, make_device, require, run, served

from slo_ctl.cli import app

MIB = 1 << 20
PAGES = 64 * MIB // 4096


def device(root: Path, *words: str) -> int:
    return app.run(["device", *words, "--root", str(root)])


def preconditioned(root: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert device(root, "precondition", "d", "--json", "--quiet") == 0
    output: dict[str, Any] = json.loads(capsys.readouterr().out)
    return output


def test_preconditioned_device_collects_garbage_from_its_first_writes(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require("fio")
    make_device(root, "name=d,size=64MiB,op=20%,dies=2")
    with served(root, "d") as server, NbdClient(server.run.export("d"), "d") as client:
        client.write(5 * MIB, b"kept" * 1024)
        client.flush()
    output = preconditioned(root, capsys)
    assert (output["device"], output["emulated"], output["settled"]) == ("d", True, True)
    assert output["waf"] > 1.5
    image = root / "devices" / "d" / "d.img"
    assert image.stat().st_blocks * 512 <= 2 * 4096
    assert device(root, "show", "d", "--json") == 0
    assert json.loads(capsys.readouterr().out)["preconditioned"]["waf"] == output["waf"]
    with served(root, "d") as server:
        with server.control() as control:
            hello, before = control.hello(), control.statistics()["namespaces"][0]
            assert hello["placement"] == "as it was left"
            assert hello["preconditioned"]["waf"] == output["waf"]
            assert before["space"]["mapped_pages"] == PAGES
        with NbdClient(server.run.export("d"), "d") as client:
            assert client.read(5 * MIB, 4096) == b"kept" * 1024
            assert client.read(6 * MIB, 4096) == bytes(4096)
        options = ["--ioengine=nbd", f"--uri={server.uri()}", "--rw=randwrite", "--bs=4k", "--size=64M"]
        run("fio", "--name=x", *options, "--io_size=32M", "--iodepth=4")
        after = server.statistics()["namespaces"][0]
    host, moved = (
        after["flash"][key] - before["flash"][key] for key in ("host_page_writes", "gc_page_writes")
    )
    # fio writes with one size; the preconditioning wrote with several.
    assert (host + moved) / host == pytest.approx(output["waf"], rel=0.3)


def test_preconditioning_survives_a_crash_of_the_server_but_not_the_loss_of_the_placement(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_device(root, "name=d,size=64MiB,op=20%,dies=2")
    waf = preconditioned(root, capsys)["waf"]
    server = Server(root, "d")
    with NbdClient(server.run.export("d"), "d") as client:
        client.write(0, b"x" * MIB)
    server.kill()
    server.stop()
    with served(root, "d") as server, server.control() as control:
        assert control.hello()["placement"].startswith("from a checkpoint, 0 pages")
        assert control.hello()["preconditioned"]["waf"] == waf
        assert control.statistics()["namespaces"][0]["space"]["mapped_pages"] == PAGES
    (root / "devices" / "d" / "placement").unlink()
    with served(root, "d") as server, server.control() as control:
        assert control.hello()["preconditioned"] is None
    assert device(root, "show", "d", "--json") == 0
    assert json.loads(capsys.readouterr().out)["preconditioned"] is None


def test_kill_during_preconditioning_keeps_the_old_placement(root: Path) -> None:
    make_device(root, "name=d,size=16GiB,op=7%")
    with served(root, "d") as server, NbdClient(server.run.export("d"), "d") as client:
        client.write(0, b"x" * MIB)
    folder = root / "devices" / "d"
    before = (folder / "placement").read_bytes()
    command = [
        sys.executable,
        "-m",
        "slo_ctl.cli",
        "device",
        "precondition",
        "d",
        "--root",
        str(root),
        "--quiet",
    ]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + READY_S
    while not _children(process.pid):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with served_when_free(root) as server, server.control() as control:
        assert control.hello()["preconditioned"] is None
        assert control.hello()["placement"] == "as it was left"
        assert control.statistics()["namespaces"][0]["space"]["mapped_pages"] == MIB // 4096
    assert len(before) > 0
    assert not (folder / "preconditioned.json").exists()


def _children(pid: int) -> list[str]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:  # noqa: PTH123
        return file.read().split()


def served_when_free(root: Path) -> Any:
    """The preconditioning process detects the end of its parent when it next reports progress."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            server = Server(root, "d")
            break
        except AssertionError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    server.stop()
    return served(root, "d")


def test_served_device_cannot_be_preconditioned(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_device(root, "name=d,size=64MiB,op=20%,dies=2")
    with served(root, "d") as server:
        assert device(root, "precondition", "d", "--quiet") == 2
        assert "is being served" in capsys.readouterr().err
        with server.control() as control, pytest.raises(Exception, match="while it is served"):
            control.command("precondition")


def test_precondition_yes_preconditions_at_creation(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert device(root, "create", "name=d,size=64MiB,op=20%,dies=2,precondition=yes") == 0
    assert "steady state: WAF" in capsys.readouterr().out
    assert os.path.exists(root / "devices" / "d" / "preconditioned.json")  # noqa: PTH110
