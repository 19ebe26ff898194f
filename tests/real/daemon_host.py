"""A running `slo-ctl daemon`, and fio clients in cgroups of this test."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from cgroup_groups import prompt, remove_group
from own_process import READY_S, OwnProcess
from waiting import TIMEOUT_S

from slo_ctl.api.client import ApiClient
from slo_ctl.base.errors import UserError
from slo_ctl.daemon.files import DaemonPlaces
from slo_ctl.host.cgroup import find_tree
from slo_ctl.model.status import HostStatus, VmStatus
from slo_ctl.model.status_json import from_json
from slo_ctl.profile.fio import CLOCK


def row_of(status: HostStatus, vm: str) -> VmStatus:
    """The row of a VM in the configuration; every status has one."""
    return next(row for row in status.vms if row.vm == vm)


class DaemonProcess(OwnProcess):
    """A daemon below `root` that is ready."""

    def __init__(self, root: Path, *options: str, environment: Mapping[str, str] | None = None) -> None:
        super().__init__("daemon", "--root", str(root), *options, environment=environment)
        self.root = root
        self.api = ApiClient(DaemonPlaces(root).api_socket, timeout_s=READY_S)

    def status(self) -> HostStatus:
        return from_json(self.api.get("/v1/status"))

    def vm(self, name: str) -> VmStatus:
        return row_of(self.status(), name)

    def epochs_in(self, seconds: float) -> int:
        """Number of epochs completed in this time."""
        before = int(self.api.get("/v1/health")["epochs"])
        time.sleep(seconds)
        return int(self.api.get("/v1/health")["epochs"]) - before

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(READY_S)

    def eventually(
        self, what: str, holds: Callable[[HostStatus], Any], timeout_s: float = TIMEOUT_S
    ) -> HostStatus:
        """Wait for a status for which `holds` is true, and return it: the next one may differ."""
        found, status = self._wait_for(holds, timeout_s)
        if found and status is not None:
            return status
        raise AssertionError(f"not within {timeout_s} s: {what}: {status}\n{self.log()}")

    def becomes(self, holds: Callable[[HostStatus], Any], within_s: float) -> bool:
        """Whether `holds` is true for a status within this time."""
        return self._wait_for(holds, within_s)[0]

    def _wait_for(
        self, holds: Callable[[HostStatus], Any], timeout_s: float
    ) -> tuple[bool, HostStatus | None]:
        deadline = time.monotonic() + timeout_s
        status = None
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the daemon has ended: {status}\n{self.log()}"
            with suppress(UserError):
                status = self.status()
                if holds(status):
                    return True, status
            time.sleep(0.25)
        return False, status


@contextmanager
def running(
    root: Path, *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[DaemonProcess]:
    daemon = DaemonProcess(root, *options, environment=environment)
    try:
        yield daemon
    finally:
        daemon.stop()


def free_address() -> str:
    """A free address; another process may take it at any time."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def with_listener(root: Path, config: str, table: str, tries: int = 5) -> tuple[DaemonProcess, str]:
    """A daemon, and the address where it serves `table` (metrics or page)."""
    address = free_address()
    (root / "slo-ctl.toml").write_text(f'{config}[{table}]\nlisten = "{address}"\n')
    try:
        return DaemonProcess(root), address
    except AssertionError as error:
        if tries == 1 or "in use" not in str(error):
            raise
        return with_listener(root, config, table, tries - 1)


class Cgroups:
    """Groups of this test in the tree that accounts block I/O."""

    def __init__(self, names: list[str]) -> None:
        tree = find_tree()
        if os.geteuid() != 0 or tree is None or not tree.io:
            pytest.skip("cgroups that account block I/O need root and the io or blkio controller")
        self._root = tree.root
        self.parent = f"/slo-test-{uuid.uuid4().hex[:8]}"
        self._folders = [self._root / self.parent[1:]] + [self.folder(name) for name in names]
        for folder in self._folders:
            folder.mkdir()

    def folder(self, name: str) -> Path:
        return self._root / self.parent[1:] / name

    def path(self, name: str) -> str:
        return f"{self.parent}/{name}"

    def close(self) -> None:
        for folder in reversed(self._folders):
            remove_group(folder)


@contextmanager
def cgroups(*names: str) -> Iterator[Cgroups]:
    made = Cgroups(list(names))
    try:
        yield made
    finally:
        made.close()


class Clients:
    """fio processes, each moved into its group before it starts."""

    def __init__(self, groups: Cgroups, folder: Path) -> None:
        self._groups = groups
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *options: str) -> None:
        procs = self._groups.folder(name) / "cgroup.procs"
        output = self._folder / f"{name}.txt"
        fio = " ".join((*prompt(), "fio", CLOCK))
        enter = f"echo $$ > '{procs}' && exec {fio} --thread --name={name} --output='{output}' \"$@\""
        self._running[name] = subprocess.Popen(
            ["/bin/sh", "-c", enter, "fio", *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
            start_new_session=True,
        )

    def stop(self, name: str) -> None:
        process = self._running.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(READY_S)

    def close(self) -> None:
        for name in list(self._running):
            self.stop(name)


@contextmanager
def clients(groups: Cgroups, folder: Path) -> Iterator[Clients]:
    made = Clients(groups, folder)
    try:
        yield made
    finally:
        made.close()
