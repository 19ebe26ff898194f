"""Three hosts: network namespaces of this machine that are connected by a bridge.

The bridge and mpirun, or the scheduler of a Dask cluster, are in a separate namespace: addresses and firewall
rules of this machine, such as those that libvirt and podman add while other tests run, do not affect it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

HOSTS = (1, 2, 3)
_NETWORK = "198.18.0"
"""Reserved for benchmarks between networks (RFC 2544), so no real network uses it."""
MIDDLE = f"{_NETWORK}.254"
"""The address of mpirun and of the scheduler."""
_AGENT = """#!/bin/sh
# mpirun runs this where it would run ssh: HOST COMMAND...
host={prefix}${{1##*.}}
shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"
"""
"""Each host has its own name, as Open MPI's daemons keep their files in a folder named after it. With one
name for all hosts they create the same folders at once, which failed in 17 of 120 starts ("File exists")
and in none of 120 with different names."""


def require_mpi() -> None:
    """Skip the test if a program is missing, with its name."""
    _require("mpi4py", "mpirun", "ip", "unshare", "hostname", "fio")


def require_dask() -> None:
    """Skip the test if a program is missing, with its name."""
    _require("distributed", "ip")


def _require(package: str, *programs: str) -> None:
    missing = [program for program in programs if shutil.which(program) is None]
    if importlib.util.find_spec(package) is None:
        missing.append(package)
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if os.geteuid():
        pytest.skip("network namespaces need root")


class Hosts:
    """Network namespaces, and mpirun over them."""

    def __init__(self, folder: Path) -> None:
        self._prefix = f"slo{os.getpid()}h"
        self._middle = f"slo{os.getpid()}m"
        self._agent = folder / "agent"

    def __enter__(self) -> Hosts:
        try:
            self._set_up()
        except BaseException:
            self._take_down()
            raise
        self._agent.write_text(_AGENT.format(prefix=self._prefix))
        self._agent.chmod(0o755)
        return self

    def __exit__(self, *_: object) -> None:
        self._take_down()

    def mpirun(self, *command: str, options: tuple[str, ...] = ()) -> list[str]:
        """The command line that runs `command` on every host."""
        addresses = ",".join(f"{_NETWORK}.{host}" for host in HOSTS)
        network = f"{_NETWORK}.0/24"
        return [
            *self.in_the_middle("mpirun", "--allow-run-as-root", "-n", str(len(HOSTS))),
            *("--host", addresses, "-x", "PATH"),
            *("--mca", "plm_rsh_agent", str(self._agent), "--mca", "btl", "tcp,self"),
            *("--mca", "btl_tcp_if_include", network, "--mca", "oob_tcp_if_include", network),
            *options,
            *command,
        ]

    def in_the_middle(self, *command: str) -> list[str]:
        """The command line that runs `command` in the namespace of the bridge, at MIDDLE."""
        return ["ip", "netns", "exec", self._middle, *command]

    def on(self, host: int, *command: str) -> list[str]:
        """The command line that runs `command` on a host."""
        return ["ip", "netns", "exec", f"{self._prefix}{host}", *command]

    def pids_on(self, host: int) -> list[int]:
        """All processes there."""
        listed = subprocess.run(
            ["ip", "netns", "pids", self._prefix + str(host)], capture_output=True, text=True, check=True
        )
        return [int(pid) for pid in listed.stdout.split()]

    def rank_on(self, host: int) -> int:
        """PID of the MPI rank on a host; 0 if there is none yet."""
        for pid in self.pids_on(host):
            words = _command_line(pid)
            # The measuring child is another Python process, and the surrounding shell has the same words.
            if "slo_ctl.cli" in words and "python" in words[0] and "-c" not in words:
                return pid
        return 0

    def _set_up(self) -> None:
        made = subprocess.run(
            ["ip", "netns", "add", self._middle], capture_output=True, text=True, check=False
        )
        if made.returncode:
            pytest.skip(f"ip netns add: {made.stderr.strip()}")
        _ip("-n", self._middle, "link", "set", "lo", "up")
        _ip("-n", self._middle, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._middle, "address", "add", f"{MIDDLE}/24", "dev", "bridge")
        _ip("-n", self._middle, "link", "set", "bridge", "up")
        for host in HOSTS:
            inside, outside = f"{self._prefix}{host}", f"host{host}"
            _ip("netns", "add", inside)
            pair = ("type", "veth", "peer", "name", "eth0", "netns", inside)
            _ip("-n", self._middle, "link", "add", outside, *pair)
            _ip("-n", self._middle, "link", "set", outside, "master", "bridge", "up")
            _ip("-n", inside, "address", "add", f"{_NETWORK}.{host}/24", "dev", "eth0")
            _ip("-n", inside, "link", "set", "eth0", "up")
            _ip("-n", inside, "link", "set", "lo", "up")

    def _take_down(self) -> None:
        # Delete the links first: remaining processes keep a namespace alive, but cannot reach the next test.
        for host in HOSTS:
            words = ("-n", self._middle, "link", "delete", f"host{host}")
            subprocess.run(["ip", *words], capture_output=True, check=False)
        for name in (*(f"{self._prefix}{host}" for host in HOSTS), self._middle):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, text=True, check=True)


def _command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return [""]
