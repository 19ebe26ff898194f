"""`slo-ctl try`: its output, and that it always cleans up."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from own_process import READY_S, default_signals
from serving import require

from slo_ctl.api.client import ApiClient
from slo_ctl.daemon.files import DaemonPlaces
from slo_ctl.host.cgroup import find_tree

DAEMON_STARTED = "the daemon has been started"


class Trying:
    """A run in a separate process that reports where it creates its files."""

    def __init__(self, *words: str) -> None:
        require("fio")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "slo_ctl.cli", "try", "--seconds", "40", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=default_signals,
        )
        self.messages = ""
        self.root = Path(re.split("all below ", self.until("all below "))[1].strip())

    def until(self, words: str) -> str:
        """Wait for a line on stderr."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.messages += line
            if words in line:
                return line
        raise AssertionError(f"it ended before it said {words!r}: {self.messages}")

    def end(self) -> str:
        """Wait for the end and return stdout."""
        out, stderr = self.process.communicate(timeout=READY_S)
        self.messages += stderr
        return out

    def left(self) -> list[str]:
        """Processes, cgroups and files that remain after a run."""
        own = str(self.root).encode()
        found = [each.parent.name for each in Path("/proc").glob("[0-9]*/cmdline") if own in _read(each)]
        tree = find_tree()
        group = tree.folder(f"/slo-try-{self.process.pid}") if tree else None
        return [*found, *(str(each) for each in (group, self.root) if each and each.exists())]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@contextmanager
def trying(*words: str) -> Iterator[Trying]:
    run = Trying(*words)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.terminate()
            run.end()


def test_try_shows_the_gain_and_cleans_up() -> None:
    result = _gained("--no-guests")
    web, *_ = result["vms"]
    # IOPS in proportion to the outstanding requests.
    assert web["before"]["share"] > 0.5, result
    assert {vm["client"] for vm in result["vms"]} == {"fio"}


def test_try_shows_the_gain_with_qemu_guests() -> None:
    require("cc", "qemu-system-x86_64")
    result = _gained("--guests")
    assert {vm["client"] for vm in result["vms"]} in ({"kvm"}, {"tcg"})


def _gained(*words: str) -> dict[str, Any]:
    """The result of a run that gave every VM its share and left nothing behind."""
    with trying("--json", *words) as run:
        output = run.end()
    assert output, run.messages
    result: dict[str, Any] = json.loads(output)
    before = {vm["vm"]: vm["before"] for vm in result["vms"]}
    after = {vm["vm"]: vm["after"] for vm in result["vms"]}
    # At least in the order of the weights.
    assert after["mail"]["share"] > after["db"]["share"] > after["web"]["share"], result
    assert after["mail"]["share"] > 2 * before["mail"]["share"]
    assert all(vm[key] > 0 for vm in (*before.values(), *after.values()) for key in ("iops", "p99_us"))
    assert result["gains"][0].startswith("Gained: ")
    missed = any(vm["verdict"] in ("insufficient", "unapplied") for vm in result["vms"])
    assert run.process.returncode == (3 if missed else 0), result
    assert run.left() == []
    return result


@pytest.mark.parametrize(
    ("when", "number", "words"),
    [
        ("preconditioning", signal.SIGINT, ("--no-guests",)),
        # Guests, if this host has KVM that works.
        ("of 3: without", signal.SIGHUP, ()),
        (DAEMON_STARTED, signal.SIGTERM, ("--no-guests",)),
    ],
)
def test_try_cleans_up_after_a_signal(when: str, number: signal.Signals, words: tuple[str, ...]) -> None:
    with trying(*words) as run:
        run.until(when)
        run.process.send_signal(number)
        run.end()
    assert run.process.returncode == 130, run.messages
    assert "stopped all processes and removed all files" in run.messages
    assert run.left() == []


def test_try_repeats_a_trace_and_reports_a_killed_daemon(tmp_path: Path) -> None:
    trace = tmp_path / "db.spc"
    trace.write_text("".join(f"0,{800 * page},8192,{'rw'[page % 2]},{page}.0\n" for page in range(100)))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with trying("--guests", "--page", str(port), "--trace", f"db={trace}") as run:
        run.until(f"db repeats 100 requests of {trace}")
        assert f"http://127.0.0.1:{port}/" in run.until(DAEMON_STARTED)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=READY_S) as reply:
            assert b"slo-ctl" in reply.read()
        status = ApiClient(DaemonPlaces(run.root).api_socket).get("/v1/status")
        (db,) = (row for row in status["vms"] if row["vm"] == "db")
        assert db["p99_read_us"] > 0, "only the trace has reads"
        assert "3 clients, 2 of them QEMU guests" in run.messages
        os.kill(status["daemon_pid"], signal.SIGKILL)
        run.end()
    assert run.process.returncode == 2
    assert "the daemon has ended with -9" in run.messages
    assert run.left() == []
