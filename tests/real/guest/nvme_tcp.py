"""An emulated SSD that this machine serves over NVMe/TCP, as a drive of the guest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from serving import Server

from .machine import Guest

_HOST = "10.0.2.2"
"""Address of this machine in QEMU's user network."""


@contextmanager
def connected_to(guest: Guest, server: Server, *options: str) -> Iterator[str]:
    """The guest's name of the drive, such as `nvme3`; `options` are those of `nvme connect`."""
    # By default a kernel thread of the highest priority busy-waits for a lock held by a program that sends
    # itself: with one CPU, writes that take some milliseconds stop the guest (Linux 6.12).
    guest.run("modprobe nvme-tcp wq_unbound=Y")
    (_, port), nqn = server.nvme_tcp()
    found = json.loads(guest.run(f"nvme discover -t tcp -a {_HOST} -s {port} -o json").stdout)
    assert [each["subnqn"] for each in found["records"]] == [nqn]
    guest.run(f"nvme connect -t tcp -a {_HOST} -s {port} -n {nqn} {' '.join(options)}")
    try:
        (name,) = guest.run(
            f"basename -a $(dirname $(grep -l {nqn} /sys/class/nvme/*/subsysnqn))"
        ).stdout.split()
        yield name
    finally:
        guest.run(f"nvme disconnect -n {nqn}", check=False)
