"""Campaign `guest-kill`: SIGKILL of the server under a guest that writes over every front end at once.

QEMU runs a stock kernel: the clients are QEMU's for NBD and vhost-user, and the kernel's for NVMe/TCP.
A round boots the guest, which takes a minute or more.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from guest.build import ensure
from guest.machine import Guest, Result
from guest.nvme_tcp import connected_to
from serving import Server, make_device
from waiting import until

from .faults import READY_S, Tally, check

KILLS = 17
"""Kills in a round: three rounds have 51, on each front end."""
_SIZE_BYTES = 40 << 20
_DEPTH = 8
_PROGRESS = range(2 * _DEPTH, 6 * _DEPTH)
"""Range of the number of writes of each disk between two kills; drawn each time.

More than are in flight: Linux fails an NVMe request that was interrupted six times (nvme_core.max_retries).
"""
_NBD, _NVME, _VHOST_USER = "a", "b", "c"
_JOB = """
[global]
direct=1
ioengine=libaio
iodepth={depth}
rw=randwrite
bsrange=4k-16k
size={size}
rate_iops=25
fsync=32
verify=crc32c
do_verify=1
verify_fatal=1
"""


def guest_kill(root: Path, random: Random, tally: Tally) -> None:
    """Kill the server repeatedly; the guest gets no error, and reads back all data that it has written."""
    sizes = [f"name={name},size={_SIZE_BYTES}" for name in (_NBD, _NVME, _VHOST_USER)]
    timed = random.random() < 0.5
    make_device(root, f"name=d,size={3 * _SIZE_BYTES},op=30%,dies=2,block=256KiB", *sizes)
    options = ("--nvme-tcp", "127.0.0.1:0", "--nvme-discovery", "none", "--vhost-user")
    guest = Guest(ensure(), (), root / "guest")
    server = Server(root, "d", *options, *(("--latency", "real") if timed else ()))
    try:
        guest.start()
        with disks(guest, server) as paths, ThreadPoolExecutor(1) as beside:
            names = "".join(f"[{name}]\nfilename={path}\n" for name, path in paths.items())
            job = _JOB.format(size=_SIZE_BYTES, depth=_DEPTH) + names
            fio = beside.submit(guest.run, "fio --output-format=json -", stdin=job, timeout_s=3600.0)
            while tally["kills"] < KILLS and killed_in_progress(server, fio, random.choice(_PROGRESS)):
                tally["kills"] += 1
            done: list[dict[str, Any]] = json.loads(fio.result().stdout)["jobs"]
        check(len(done) == len(paths), f"fio had {len(done)} jobs")
        for each in done:
            name, read, written = each["jobname"], each["read"]["io_bytes"], each["write"]["io_bytes"]
            is_whole = each["error"] == 0 and read == written > 0
            check(is_whole, f"{name}: error {each['error']}, {read} of {written}")
            tally[f"KiB verified of {name}"] += read >> 10
        check(server.stop() == 0, f"the clean stop failed: {server.log()}")
    finally:
        guest.close()
        server.stop()


@contextmanager
def disks(guest: Guest, server: Server) -> Iterator[dict[str, str]]:
    """The block device of each front end in the guest."""
    # Make the host reconnect after one second instead of ten.
    with connected_to(guest, server, "--reconnect-delay=1", "--ctrl-loss-tmo=3600") as controller:
        guest.plug_nbd("by-nbd", server.run.export(_NBD), _NBD)
        guest.plug_vhost_user("shared", server.run.vhost_user_socket(_VHOST_USER), queues=2)
        found = {
            "NBD": "lsblk -dpno NAME,SERIAL | awk '$2 == \"by-nbd\" {print $1}'",
            "NVMe/TCP": f"grep -lx 2 /sys/class/nvme/{controller}/{controller}n*/nsid | cut -d / -f 6",
            "vhost-user": f"grep -lx d-{_VHOST_USER} /sys/block/*/serial | cut -d / -f 4",
        }
        yield {name: path_of(guest, command) for name, command in found.items()}


def path_of(guest: Guest, command: str) -> str:
    """Path of a disk; waits until it exists."""
    found = f'at=$({command}); [ -n "$at" ] && basename $at && exit 0'
    looked = guest.run(f"for _ in $(seq 300); do {found}; sleep 0.2; done; exit 1")
    return f"/dev/{looked.stdout.strip()}"


def killed_in_progress(server: Server, fio: Future[Result], writes: int) -> bool:
    """Kill the server after this many writes of each disk; False if fio has ended."""
    due: dict[str, int] = {}

    def got_on() -> bool:
        with server.control() as control:
            now = {n["name"]: n["answered"]["writes"]["requests"] for n in control.statistics()["namespaces"]}
        due.update({name: count + writes for name, count in now.items() if name not in due})
        return all(count >= due[name] for name, count in now.items())

    until(lambda: fio.done() or got_on(), "writes of every disk", READY_S)
    if fio.done():
        return False
    before = server.pid()
    os.kill(before, signal.SIGKILL)
    until(lambda: server.run.pid_file.exists() and server.pid() != before, "another server", READY_S)
    return True
