"""A Dask scheduler and one worker per host; the hosts are network namespaces of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from serra_hosts import HOSTS, MIDDLE, Hosts

ADDRESS = f"tcp://{MIDDLE}:8786"
CONFIGURATION = Path(__file__).parents[2] / "etc" / "dask" / "slo-ctl.yaml"


class DaskCluster:
    """The processes of a cluster; `close` ends them."""

    def __init__(self, hosts: Hosts, folder: Path, workers: int = len(HOSTS)) -> None:
        """`folder`: where workers keep their files."""
        self._hosts = hosts
        self._folder = folder
        self._workers = HOSTS[:workers]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        scheduler = (*_dask("scheduler"), "--host", MIDDLE, "--no-show")
        self._start(0, self._hosts.in_the_middle(*scheduler))
        for host in self._workers:
            own = ("--nthreads", "1", "--local-directory", str(self._folder))
            self._start(host, self._hosts.on(host, *_dask("worker"), ADDRESS, *own, "--no-dashboard"))
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            _kill(process)

    def lose(self, host: int) -> None:
        """Simulate a power failure: kill the worker together with the nanny that would restart it."""
        _kill(self._processes[host])

    def worker_on(self, host: int) -> int:
        """PID of the process that runs replays on a host (the child of its nanny); 0 if there is none yet."""
        for pid in self._hosts.pids_on(host):
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        return 0

    def _start(self, place: int, command: list[str]) -> None:
        quiet = subprocess.DEVNULL
        # A process group per host, so that all processes of a host can be killed at once.
        self._processes[place] = subprocess.Popen(
            command,
            stdout=quiet,
            stderr=quiet,
            start_new_session=True,
            env={**os.environ, "DASK_CONFIG": str(CONFIGURATION)},
        )


def _dask(kind: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"distributed.cli.dask_{kind}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
