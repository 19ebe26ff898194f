"""The tenant scheduler of a served emulated SSD: set, kept and restored, by command and by daemon."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from daemon_host import running
from serving import Server, make_device, served

from slo_ctl.act.ssd import TIMEOUT_S
from slo_ctl.cli.app import run

CONFIG = '[daemon]\nepoch = "200ms"\nwindow = "1s"\n[libvirt]\nuri = "none"\n[[device]]\nname = "d"\n'
READY_S = 300.0


def scheduler(server: Server) -> str:
    with server.control() as control:
        return str(control.statistics()["scheduler"])


def eventually(server: Server, wanted: str) -> None:
    deadline = time.monotonic() + READY_S
    while scheduler(server) != wanted:
        assert time.monotonic() < deadline, f"{scheduler(server)} and not {wanted}"
        time.sleep(0.05)


def make(root: Path) -> None:
    make_device(root, "name=d,size=48MiB,op=60%,dies=2,scheduler=fifo", "name=a", "name=b")
    (root / "slo-ctl.toml").write_text(CONFIG)


def test_device_policy_command_sets_and_undoes_the_scheduler(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(root)
    words = ["device", "policy", "d", "--root", str(root)]
    assert run([*words, "--apply"]) == 1, "it is not being served"
    assert "not being served" in capsys.readouterr().out
    with served(root, "d") as server:
        assert run([*words, "--apply"]) == 1
        assert "without latency" in capsys.readouterr().out
        assert scheduler(server) == "fifo"
    with served(root, "d", "--latency", "real") as server:
        assert run([*words, "--apply"]) == 0
        assert scheduler(server) == "wfq"
        assert run(words) == 0
        assert "scheduler wfq (now wfq)" in capsys.readouterr().out
        assert run([*words, "--undo"]) == 0
        assert scheduler(server) == "fifo"


def test_daemon_sets_and_restores_the_scheduler_of_a_served_device(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(root)
    with served(root, "d", "--latency", "real") as server:
        with running(root) as daemon:
            daemon.eventually("seen", lambda status: status.devices, READY_S)
            assert scheduler(server) == "fifo", "it was created so"
            for option, value in (("--apply", "wfq"), ("--undo", "keep")):
                assert run(["device", "policy", "d", option, "--root", str(root)]) == 2
                written = f'write scheduler = "{value}" in the [[device]] with name = "d" in slo-ctl.toml'
                assert written in capsys.readouterr().err
            (root / "slo-ctl.toml").write_text(CONFIG + 'scheduler = "auto"\n')
            assert daemon.api.post("/v1/reload")["config_problem"] == ""
            eventually(server, "wfq")
            with server.control() as control:
                control.set_scheduler("rr")
            eventually(server, "wfq")
            # A server that answers late, as on a busy machine, is waited for: there is no next interval.
            pid = server.pid()
            os.kill(pid, signal.SIGSTOP)
            continues = threading.Timer(2 * TIMEOUT_S, os.kill, (pid, signal.SIGCONT))
            continues.start()
        continues.join()
        assert scheduler(server) == "fifo", daemon.log()
