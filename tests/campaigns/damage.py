"""Campaign `damage`: any file of a device or the daemon; programs name it and say what to do, or work on."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from serving import Server

import slo_ctl.cli.device
import slo_ctl.cli.plan
import slo_ctl.daemon.loop
import slo_ctl.daemon.service
import slo_ctl.record.history_reader  # noqa: F401
from slo_ctl.cli import main
from slo_ctl.drives.places import places
from slo_ctl.drives.store import DeviceStore

from .faults import READY_S, Tally, check, succeed
from .load import NAMES
from .server_kill import make_drive

CASES = 5
"""In a round."""
_TIMEOUT_S = 60
_CONFIG = """
[daemon]
epoch = "100ms"
window = "1s"
[libvirt]
uri = "none"
"""
_FORK = multiprocessing.get_context("fork")
DEVICE_FILES = (
    "device.toml",
    "settings.json",
    "placement",
    "serving",
    "preconditioned.json",
    "lock",
    "a.img",
)
DAEMON_FILES = ("slo-ctl.toml", "slos.json", "journal.json", "history.db", "mappings.json")
LOCKS = ("run/daemon.lock", ".slos.json.lock")


def _truncate(path: Path, random: Random) -> None:
    os.truncate(path, random.randrange(max(1, path.stat().st_size)))


def _zeroes(path: Path, random: Random) -> None:
    del random
    path.write_bytes(bytes(path.stat().st_size))


def _noise(path: Path, random: Random) -> None:
    path.write_bytes(random.randbytes(max(16, path.stat().st_size)))


def _bit(path: Path, random: Random) -> None:
    content = bytearray(path.read_bytes() or b"\0")
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


def _empty(path: Path, random: Random) -> None:
    del random
    path.write_bytes(b"")


def _remove(path: Path, random: Random) -> None:
    del random
    path.unlink()


def _folder(path: Path, random: Random) -> None:
    _remove(path, random)
    path.mkdir()


def _fifo(path: Path, random: Random) -> None:
    _remove(path, random)
    os.mkfifo(path)


def _dangling(path: Path, random: Random) -> None:
    _remove(path, random)
    path.symlink_to("nowhere/at/all")


def _loop(path: Path, random: Random) -> None:
    _remove(path, random)
    path.symlink_to(path.name)


def _deep(path: Path, random: Random) -> None:
    del random
    path.write_text("[" * 100_000)


def _unreadable(path: Path, random: Random) -> None:
    # root can read such a file.
    del random
    path.chmod(0)


HARMS: dict[str, Callable[[Path, Random], None]] = {
    "truncated": _truncate,
    "zeroes": _zeroes,
    "noise": _noise,
    "one bit": _bit,
    "empty": _empty,
    "missing": _remove,
    "a directory": _folder,
    "a FIFO": _fifo,
    "a dangling link": _dangling,
    "a link to itself": _loop,
    "nested brackets": _deep,
    "unreadable": _unreadable,
}


def damage(root: Path, random: Random, tally: Tally) -> None:
    """Damage one file at a time of a healthy root, and run the programs that read it."""
    healthy = root / "healthy"
    _make_healthy(healthy)
    for number in range(CASES):
        file = random.choice([*DEVICE_FILES, *DAEMON_FILES, *LOCKS])
        harm, damaged = random.choice(list(HARMS)), root / str(number)
        shutil.copytree(healthy, damaged)
        path = damaged / "devices" / "d" / file if file in DEVICE_FILES else damaged / file
        if not path.exists():
            path.touch()
        HARMS[harm](path, random)
        where = f"{path} as {harm}"
        if file in DEVICE_FILES:
            _serve(damaged, where, path)
            commands = [("device", "show", "d"), ("device", "list"), ("device", "precondition", "d")]
        else:
            commands = [("vm", "set", "web", "weight=3", "--force"), ("status",), ("history", "web")]
        for words in [*commands, ("daemon", "--once"), ("apply", "--undo")]:
            _run(damaged, where, path, *words)
            tally["commands"] += 1
        shutil.rmtree(damaged)
        tally["files damaged"] += 1


def _make_healthy(root: Path) -> None:
    """A device that was served and killed, with settings; a daemon that ran, with an SLO."""
    root.mkdir()
    make_drive(root, "mapping=page,precondition=yes")
    tables = [f'[vm.{name}]\nnamespaces = ["d/{name}"]\n' for name in NAMES]
    (root / "slo-ctl.toml").write_text(_CONFIG + "[vm.web]\n" + "".join(tables))
    server = Server(root, "d", "--latency", "real")
    try:
        with server.control() as control:
            control.move_ops("a", "b", 2)
            control.set_weight("a", 3)
        succeed("vm", "set", "web", "weight=2", "--force", "--root", str(root))
        succeed("daemon", "--once", "--keep", "--root", str(root))
        server.kill()
    finally:
        server.stop()
    store = DeviceStore(places(root))
    while store.is_served("d"):
        time.sleep(0.01)
    shutil.rmtree(root / "run" / "d")


def _run(root: Path, where: str, path: Path, *words: str) -> None:
    """Run a command in a fork of this process, which has imported its modules: there are many commands."""
    with tempfile.TemporaryFile("w+") as log:
        process = _FORK.Process(target=_command, args=([*words, "--root", str(root)], log.fileno()))
        process.start()
        process.join(_TIMEOUT_S)
        ended = process.exitcode is not None
        process.kill()
        process.join()
        log.seek(0)
        errors = log.read()
    check(ended, f"{where}: slo-ctl {' '.join(words)} does not end: {errors}")
    _check_told(where, " ".join(words), process.exitcode or 0, errors, path)


def _command(words: list[str], errors: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(errors, 2)
    sys.argv, sys.stdout, sys.stderr = ["slo-ctl", *words], os.fdopen(1, "w"), os.fdopen(2, "w")
    main()


def _serve(root: Path, where: str, path: Path) -> None:
    """Serve the device: the server becomes ready and stops cleanly, or reports an error."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "slo_ctl.cli", "device", "serve", "d", "--root", str(root)],
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
        ready, deadline_s = root / "run" / "d" / "server.pid", time.monotonic() + _TIMEOUT_S
        while process.poll() is None and not ready.exists() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        waited = process.poll() is None and not ready.exists()
        process.terminate()
        process.wait(READY_S)
        log.seek(0)
        check(not waited, f"{where}: the server neither starts nor ends: {log.read()}")
        log.seek(0)
        _check_told(where, "device serve", process.returncode, log.read(), path)


def _check_told(where: str, command: str, status: int, errors: str, path: Path) -> None:
    """Check the message of a failed command: one line that names the file, and a hint; never a traceback."""
    report = f"{where}: slo-ctl {command}: status {status}: {errors}"
    check("Traceback" not in errors and "report it" not in errors, report)
    check(status in (0, 1, 2, 3, 4), report)
    # 3: an SLO is missed; 4: no daemon or server is running.
    if status in (1, 2):
        check(path.name in errors, f"the file is not named: {report}")
        check("hint: " in errors or ": truncate -s" in errors, f"no hint: {report}")
