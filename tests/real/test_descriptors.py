"""File descriptors of the server: behaviour when they are used up."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from nbd_client import NbdClient
from serving import Server, make_device, served
from waiting import until

PAUSES_S = 1.0
"""A time in which a server that logs each failed attempt would log ten lines."""


NAMES = [f"n{number}" for number in range(12)]
LEAST = 176
"""Descriptors that a server of this many namespaces requires: see serve/descriptors.rs."""


def limited(descriptors: int) -> list[str]:
    return ["prlimit", f"--nofile={descriptors}:{descriptors}"]


@contextmanager
def no_descriptor_left(pid: int) -> Iterator[None]:
    """Limit the descriptors of that process to those in use."""
    opened = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (opened, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_each_front_end_logs_clients_that_cannot_be_accepted_once_in_a_while(root: Path) -> None:
    make_device(root, "name=d,size=64MiB,op=40%,dies=2", "name=a,size=32MiB", "name=b")
    with served(root, "d", "--nvme-tcp", "127.0.0.1:0", "--vhost-user") as server, ExitStack() as stack:
        address, _ = server.nvme_tcp()
        with no_descriptor_left(server.pid()):
            # A descriptor of a client that has just disconnected may still become free.
            for _ in range(4):
                stack.enter_context(socket.create_connection(address))
                for path in server.run.export("a"), server.run.control, server.run.vhost_user_socket("a"):
                    client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                    client.connect(os.fspath(path))
            messages = ("NVMe/TCP: ", "control socket: ", "namespace a: ", "slo-ctl: cannot")
            until(lambda: all(words in server.log() for words in messages), "a line of each front end", 30)
            time.sleep(PAUSES_S)
            log = server.log()
            assert [log.count(words) for words in messages] == [1, 1, 1, 1], log


def test_crowds_at_all_other_namespaces_leave_one_and_the_control_socket_reachable(root: Path) -> None:
    make_device(root, "name=d,size=192MiB,op=40%,dies=2", *(f"name={name}" for name in NAMES))
    with served(root, "d", before=limited(LEAST + 4)) as server, ExitStack() as stack:
        for name in NAMES[1:]:
            for _ in range(16):
                client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                client.connect(os.fspath(server.run.export(name)))
        time.sleep(PAUSES_S)
        quiet = NAMES[0]
        for _ in range(4):
            own = stack.enter_context(NbdClient(server.run.export(quiet), quiet, timeout_s=10))
            own.write(0, b"q" * 4096)
            own.flush()
        with server.control() as control:
            control.statistics()
            control.command("checkpoint")
        until(lambda: "the remaining file descriptors are reserved" in server.log(), "a log line")


def test_too_few_descriptors_are_refused_at_the_start_with_the_fix(root: Path) -> None:
    make_device(root, "name=d,size=192MiB,op=40%,dies=2", *(f"name={name}" for name in NAMES))
    with pytest.raises(AssertionError, match=rf"14 sockets need {LEAST} descriptors at least, .*LimitNOFILE"):
        Server(root, "d", before=limited(LEAST - 1))
