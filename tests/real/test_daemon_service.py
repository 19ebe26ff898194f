"""The daemon as a process: notifications, signals, `--once`. Needs no root, libvirt or device."""

from __future__ import annotations

import grp
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from daemon_host import DaemonProcess, row_of, running, with_listener
from own_process import READY_S
from waiting import until

from slo_ctl.api.client import ApiClient
from slo_ctl.base.errors import SilentError, UserError
from slo_ctl.cli import app

CONFIG = '[daemon]\nepoch = "200ms"\nwindow = "1s"\n[libvirt]\nuri = "none"\n'


@pytest.fixture
def notified(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The notification socket of systemd."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(root / "notify"))
        listener.settimeout(READY_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(root / "notify"))
        yield listener


def _all(listener: socket.socket) -> list[str]:
    listener.setblocking(False)
    output = []
    while True:
        try:
            output += listener.recv(65536).decode().splitlines()
        except BlockingIOError:
            listener.settimeout(READY_S)
            return output


def _until(listener: socket.socket, line: str, times: int = 1) -> list[str]:
    """All notifications up to and including `line`."""
    output: list[str] = []
    while output.count(line) < times:
        output += listener.recv(65536).decode().splitlines()
    return output


def _stopped(pid: int) -> None:
    """Wait until all threads are stopped: each handles SIGSTOP at a different time."""
    deadline = time.monotonic() + READY_S
    while any(" T " not in each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/stat")):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _run(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "slo_ctl.cli", "daemon", "--root", str(root), *options]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=READY_S)


def test_systemd_is_notified_of_ready_reload_watchdog_and_stop(root: Path, notified: socket.socket) -> None:
    (root / "slo-ctl.toml").write_text(CONFIG)
    with running(root) as daemon:
        output = _all(notified)
        assert output.index("WATCHDOG=1") < output.index("READY=1")
        _until(notified, "WATCHDOG=1", times=3)  # one in each epoch
        daemon.process.send_signal(signal.SIGHUP)
        output = _until(notified, "READY=1")
        assert output.index("RELOADING=1") < output.index("READY=1")
        # A daemon that hangs sends no watchdog notification.
        missed = daemon.api.get("/v1/health")["missed_epochs"]
        daemon.process.send_signal(signal.SIGSTOP)
        _stopped(daemon.process.pid)
        _all(notified)
        time.sleep(0.6)
        assert _all(notified) == []
        continued_at = time.time()
        daemon.process.send_signal(signal.SIGCONT)
        daemon.eventually("epochs continue", lambda s: s.at > continued_at)
        # The epoch that was under way when it stopped has missed nothing.
        daemon.eventually("missed", lambda _: daemon.api.get("/v1/health")["missed_epochs"] > missed)
        assert daemon.stop() == 0
        assert "STOPPING=1" in _all(notified)
    assert not (root / "run" / "api.sock").exists()
    assert "epochs skipped" in daemon.log()
    # The log has no line per epoch; it may say that epochs were late, as on any busy machine.
    assert len([line for line in daemon.log().splitlines() if "epochs skipped" not in line]) < 12


def test_sighup_with_an_invalid_configuration_keeps_the_last_one(root: Path) -> None:
    (root / "slo-ctl.toml").write_text(CONFIG)
    with running(root) as daemon:
        (root / "slo-ctl.toml").write_text(CONFIG + "[vm.web]\nweight = 0\n")
        daemon.process.send_signal(signal.SIGHUP)
        status = daemon.eventually("problem", lambda s: s.config_problem)
        assert "slo-ctl.toml:7" in status.config_problem
        (root / "slo-ctl.toml").write_text(CONFIG.replace("200ms", "100ms"))
        daemon.process.send_signal(signal.SIGHUP)
        status = daemon.eventually("taken", lambda s: not s.config_problem)
        assert status.epoch_s == 0.1
        # Also if the next epoch is far away: the change is in force at once.
        (root / "slo-ctl.toml").write_text(CONFIG.replace("200ms", "10m").replace('"1s"', '"10m"'))
        daemon.process.send_signal(signal.SIGHUP)
        daemon.eventually("taken", lambda s: s.epoch_s == 600)


def test_another_group_of_the_socket_is_in_force_after_a_reload(root: Path) -> None:
    """It was that of the start until the next one: a group that was removed could still change SLOs."""
    names = [grp.getgrgid(number).gr_name for number in (os.getegid(), _another_group())]
    group_line = '[api]\ngroup = "{}"\n'
    (root / "slo-ctl.toml").write_text(CONFIG + group_line.format(names[1]))
    with running(root) as daemon:
        path = root / "run" / "api.sock"
        assert path.group() == names[1]
        for name, group in ((names[0], names[0]), (names[1], names[1]), ("no-such-group", names[0])):
            (root / "slo-ctl.toml").write_text(CONFIG + group_line.format(name))
            assert daemon.api.post("/v1/reload")["config_problem"] == ""
            until(partial(_has_group, path, group), f"{name} may connect")
            assert path.stat().st_mode & 0o777 == 0o660


def _has_group(path: Path, name: str) -> bool:
    return path.group() == name


def _another_group() -> int:
    """A group that this process may give files to."""
    own = os.getegid()
    if os.geteuid() == 0:
        return next(each.gr_gid for each in grp.getgrall() if each.gr_gid != own)
    return next((number for number in os.getgroups() if number != own), own)


def test_vm_set_takes_effect_at_once(root: Path) -> None:
    """Not at the next epoch ten minutes later; and a burst of changes does not cause a burst of epochs."""
    (root / "slo-ctl.toml").write_text(
        CONFIG.replace("200ms", "10m").replace('"1s"', '"10m"') + "[vm.web]\nweight = 1\n"
    )
    with running(root) as daemon:
        began_s, epochs = time.monotonic(), daemon.api.get("/v1/health")["epochs"]
        for weight in range(2, 32):
            daemon.api.put("/v1/vms/web/slo", {"fields": {"weight": weight}})
        daemon.eventually("weight", lambda s: row_of(s, "web").slo.weight == 31)
        elapsed_s = time.monotonic() - began_s
        assert 1 <= daemon.api.get("/v1/health")["epochs"] - epochs <= elapsed_s / 0.2 + 1
        daemon.api.delete("/v1/vms/web/slo")
        daemon.eventually("taken back", lambda s: row_of(s, "web").slo.weight == 1)


def test_socket_in_use_is_refused(root: Path) -> None:
    (root / "slo-ctl.toml").write_text(CONFIG)
    (root / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(root / "run" / "api.sock"))
        other.listen()
        done = _run(root)
    assert done.returncode == 2
    assert "address already in use" in done.stderr
    with running(root) as daemon:  # the other daemon has ended
        daemon.kill()
    with running(root) as daemon:  # also after `kill -9`
        assert daemon.api.get("/v1/health")


def test_a_daemon_whose_run_directory_was_removed_is_reached_again(root: Path) -> None:
    """The daemon ran on but could not be reached, and a second daemon could start."""
    (root / "slo-ctl.toml").write_text(CONFIG)
    with running(root) as daemon:
        shutil.rmtree(root / "run")
        until(lambda: (root / "run" / "api.sock").is_socket(), "the socket exists again")
        assert daemon.api.get("/v1/health")["pid"] == daemon.process.pid
        second = _run(root)
        assert second.returncode == 2
        assert "daemon already running" in second.stderr


def test_daemon_refuses_to_start_with_an_invalid_configuration(root: Path) -> None:
    (root / "slo-ctl.toml").write_text("[daemon]\nepoch = 1\n")
    done = _run(root)
    assert (done.returncode, "slo-ctl.toml:2" in done.stderr) == (2, True)
    (root / "slo-ctl.toml").write_text(CONFIG + '[metrics]\nlisten = "127.0.0.1:1"\n')
    if _run(root, "--once").returncode == 0:  # `--once` does not listen.
        assert not (root / "run" / "api.sock").exists()


def test_dry_run_and_once_run_one_epoch(root: Path) -> None:
    (root / "slo-ctl.toml").write_text(CONFIG)
    before = sorted(root.iterdir())
    done = _run(root, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    assert sorted(root.iterdir()) == before
    assert _run(root, "--once").returncode == 0
    assert (root / "history.db").exists()


def test_metrics_are_served_over_tcp(root: Path) -> None:
    daemon, address = with_listener(root, CONFIG, "metrics")
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=READY_S) as reply:
            assert b"slo_ctl_epoch_cpu_seconds" in reply.read()
    finally:
        daemon.stop()


def test_slos_survive_a_crash(root: Path) -> None:
    (root / "slo-ctl.toml").write_text(CONFIG)
    with running(root) as daemon:
        with pytest.raises(UserError, match="VM ghost not found"):
            daemon.api.put("/v1/vms/ghost/slo", {"fields": {"weight": 3}})
        daemon.api.put("/v1/vms/ghost/slo", {"fields": {"weight": 3}, "force": True})
        daemon.kill()
    with running(root) as daemon:
        row = daemon.vm("ghost")
        assert (row.slo.weight, row.verdict, row.slo_source) == (3.0, "unknown-vm", "vm set")


def test_a_change_that_its_client_gave_up_is_not_made_later(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "slo-ctl.toml").write_text(CONFIG)
    with running(root) as daemon:
        impatient = ApiClient(daemon.api.socket_path, timeout_s=0.5)
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            _stopped(daemon.process.pid)
            for weight in (3, 4):
                with pytest.raises(SilentError, match=r"no answer for 0\.5 s"):
                    impatient.put("/v1/vms/ghost/slo", {"fields": {"weight": weight}, "force": True})
            # The command stores the SLO without the daemon.
            assert app.run(["vm", "set", "ghost", "weight=5", "--force", "--root", str(root)]) == 0
            assert "the daemon runs, but does not answer, so this takes effect when it goes on" in (
                capsys.readouterr().err
            )
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        daemon.eventually("the stored SLO", lambda s: any(vm.vm == "ghost" for vm in s.vms))
        assert daemon.epochs_in(1) > 0
        assert daemon.vm("ghost").slo.weight == 5.0
        assert "set weight" not in daemon.log()


def test_a_second_signal_stops_at_once(root: Path) -> None:
    (root / "slo-ctl.toml").write_text(CONFIG)
    daemon = DaemonProcess(root)
    try:
        daemon.process.send_signal(signal.SIGSTOP)
        for number in (signal.SIGTERM, signal.SIGINT):
            daemon.process.send_signal(number)
        daemon.process.send_signal(signal.SIGCONT)
        assert daemon.process.wait(READY_S) in (0, 1)
    finally:
        daemon.stop()
