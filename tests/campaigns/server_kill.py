"""Campaign `server-kill`: SIGKILL of the server at any moment, with changes and clients on all front ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random

from nbd_client import NbdClient
from serving import Server
from waiting import until

from slo_ctl.drives.places import places
from slo_ctl.drives.store import DeviceStore

from .changes import States, kept, served
from .contents import Ledger, settle, verify
from .faults import READY_S, Tally, check, succeed
from .front_ends import OPTIONS, Connect, Disk, VhostUserDisk, disks_of_all, nbd_disks
from .load import NAMES, PAGES, DeviceLoad

MAPPINGS = ("page", "page,precondition=yes", "bast", "fast,cluster=2", "dftl")
KILLS = 6
TIMED = ("--latency", "real", "--time-scale", "0.01", "--threads", "4")
"""Options for a device with weights and limits, on which requests hardly wait."""


def server_kill(root: Path, random: Random, tally: Tally, connect: Connect = disks_of_all) -> None:
    """Kill the server of a device repeatedly; it always restarts with all that was acknowledged.

    `connect` determines the front end of its clients.
    """
    mapping = random.choice(MAPPINGS)
    timed = random.random() < 0.5
    make_drive(root, f"mapping={mapping}")
    options = ["--checkpoint", str(random.choice([0.1, 0.3, 60]))]
    options += [*OPTIONS, *(TIMED if timed else ())]
    ledgers = {name: Ledger(PAGES) for name in NAMES}
    server = Server(root, "d", *options)
    try:
        for _ in range(KILLS):
            due, clients = loaded_and_killed(root, server, ledgers, random, tally, connect, timed=timed)
            if random.random() < 0.3:
                killed_while_starting(root, options, random.uniform(0, 0.8))
                tally["kills while starting"] += 1
            server = Server(root, "d", *options)
            resume(server, clients, tally)
            verify_all(server, ledgers, due, preconditioned="precondition=yes" in mapping, connect=connect)
        check(server.stop() == 0, f"the clean stop failed: {server.log()}")
    finally:
        server.stop()


def make_drive(root: Path, spec: str) -> None:
    """A device so small that garbage collection and merges are always in progress."""
    names = [word for name in NAMES for word in ("--namespace", f"name={name}")]
    succeed(
        *("device", "create", f"name=d,size=24MiB,op=60%,dies=2,block=64KiB,{spec}", *names),
        *("--root", str(root)),
    )


def loaded_and_killed(
    root: Path,
    server: Server,
    ledgers: dict[str, Ledger],
    random: Random,
    tally: Tally,
    connect: Connect,
    *,
    timed: bool,
) -> tuple[States, list[Disk]]:
    """Load the server and kill it; returns the stored settings, and the clients."""
    load = DeviceLoad(
        *(server, root / "devices" / "d", ledgers, random),
        timed=timed,
        survives_unflushed=True,
        connect=connect,
    )
    time.sleep(random.uniform(0.05, 0.5))
    early = load.problems()
    server.kill()
    server.stop()
    load.finish(tally)
    tally["kills"] += 1
    check(not early, f"a request failed before the kill: {early}; {server.log()}")
    return load.changer.check_kept(), [writer.client for writer in load.writers]


def resume(server: Server, clients: list[Disk], tally: Tally) -> None:
    """Reconnect the vhost-user clients: their requests in flight are answered now, without an error."""
    for client in clients:
        if isinstance(client, VhostUserDisk):
            disk, was_in_flight = client.resumed(server)
            disk.close()
            tally["requests in flight resumed"] += was_in_flight


def verify_all(
    server: Server,
    ledgers: dict[str, Ledger],
    due: States,
    *,
    preconditioned: bool,
    may_be_rebuilt: bool = False,
    connect: Connect = nbd_disks,
) -> None:
    """Compare a restarted server with its required state."""
    with server.control() as control:
        hello, now = control.hello(), served(control)
    check(now == due, f"kept was {due}, served is {now}; {server.log()}")
    check(kept(server.run.folder.parent.parent / "devices" / "d") == due, "the start changed settings")
    # A device that was never checkpointed has no placement to keep.
    rebuilt = hello["placement"].startswith("rebuilt") and "there is no checkpoint" not in hello["placement"]
    check(may_be_rebuilt or not rebuilt, f"placement {hello['placement']}")
    check(bool(hello["preconditioned"]) == preconditioned, f"preconditioning: {hello['preconditioned']}")
    for name, ledger in ledgers.items():
        with NbdClient(server.run.export(name), name) as client:
            check(client.size == due[name].size_bytes, f"{name} has {client.size} bytes, not {due[name]}")
        (disk,) = connect(server, name, 1)
        try:
            settle(disk, ledger, verify(disk, ledger, name))
        finally:
            disk.close()


def killed_while_starting(root: Path, options: list[str], after_s: float) -> None:
    """Start a server, and kill both of its processes before or shortly after it is ready."""
    with subprocess.Popen(
        [sys.executable, "-m", "slo_ctl.cli", "device", "serve", "d", "--root", str(root), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            time.sleep(after_s)
        finally:
            # Leaving the block waits for the process.
            process.send_signal(signal.SIGSTOP)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            for child in children.read_text().split() if children.exists() else []:
                with suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
            process.kill()
    store = DeviceStore(places(root))
    until(lambda: not store.is_served("d"), "the device is not served", READY_S)
