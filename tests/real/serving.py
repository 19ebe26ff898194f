"""A device that is served by `slo-ctl device serve` in a separate process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from own_process import READY_S as READY_S
from own_process import OwnProcess

from slo_ctl.drives.control import ControlClient
from slo_ctl.drives.places import RunPlaces, places
from slo_ctl.drives.plan import plan_device
from slo_ctl.drives.status import nbd_uri
from slo_ctl.drives.store import DeviceStore

IN_MEMORY = "/dev/shm"  # noqa: S108 - mkdtemp creates a directory in it
"""A folder on tmpfs, whose files the server maps; a parameter of the fixture `root`."""


def require(*programs: str) -> None:
    """Skip the test if a program is missing, with its name."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (scripts/setup.sh --real)")


class Server(OwnProcess):
    """A running server of device `name` below `root`."""

    def __init__(self, root: Path, name: str, *options: str, before: Sequence[str] = ()) -> None:
        super().__init__("device", "serve", name, "--root", str(root), *options, before=before)
        self.run: RunPlaces = places(root).run_of(name)
        self.name, self.root = name, root

    def uri(self, namespace: str | None = None) -> str:
        namespace = namespace or self.name
        return nbd_uri(self.run.export(namespace), namespace)

    def control(self) -> ControlClient:
        return ControlClient(self.run.control)

    def statistics(self) -> dict[str, Any]:
        """The statistics of the control socket."""
        with self.control() as control:
            return control.statistics()

    def nvme_tcp(self) -> tuple[tuple[str, int], str]:
        """Address and NQN of the NVMe subsystem."""
        with self.control() as control:
            nvme = control.hello()["nvme_tcp"]
        host, _, port = nvme["address"].rpartition(":")
        return (host, int(port)), nvme["nqn"]

    def pid(self) -> int:
        """PID of the server itself, a child of `slo-ctl device serve`."""
        return int(self.run.pid_file.read_text())

    def resident_bytes(self) -> int:
        """Resident memory of the server itself."""
        return int(Path(f"/proc/{self.pid()}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def queue(self) -> dict[str, Any]:
        """Queue counters of the first namespace."""
        queue: dict[str, Any] = self.statistics()["namespaces"][0]["queue"]
        return queue

    def kill(self) -> None:
        """Send SIGKILL to the server and to its parent, which would restart it."""
        self.process.send_signal(signal.SIGSTOP)
        os.kill(self.pid(), signal.SIGKILL)
        self.process.kill()
        self.process.wait(READY_S)


class MemoryPeak(threading.Thread):
    """The peak memory use of a server."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.most_bytes = 0
        self._server = server
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.01):
            self.most_bytes = max(self.most_bytes, self._server.resident_bytes())

    def __enter__(self) -> MemoryPeak:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


def make_device(root: Path, spec: str, *namespaces: str) -> None:
    DeviceStore(places(root)).create(plan_device(spec, namespaces))


@contextmanager
def served(root: Path, name: str, *options: str, before: Sequence[str] = ()) -> Iterator[Server]:
    server = Server(root, name, *options, before=before)
    try:
        yield server
    finally:
        server.stop()


def run(*command: str, timeout_s: float = 300) -> str:
    """Run a client, which must succeed, and return its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)
    assert done.returncode == 0, f"{command[0]}: {done.stdout}{done.stderr}"
    return done.stdout
