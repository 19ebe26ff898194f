"""Campaign `power-loss`: the server starts, with flushed data, from any state after a power failure."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path
from random import Random

from nbd_client import NbdClient
from serving import Server

from .changes import Changer, kept, served
from .contents import Ledger, verify
from .disk_log import HOW, Disk, logged, turning_points
from .faults import GuaranteeError, Tally, check
from .load import NAMES, PAGES, DeviceLoad
from .server_kill import MAPPINGS, TIMED, make_drive

STATES = 8
"""States that are made in a round."""


def power_loss(root: Path, random: Random, tally: Tally) -> None:
    """Log writes of the server under load; start it from states that a power failure may leave."""
    mapping, timed, log = random.choice(MAPPINGS), random.random() < 0.5, root / "log"
    make_drive(root, f"mapping={mapping}")
    device = root / "devices" / "d"
    disk = Disk(device)

    def logged_bytes() -> int:
        return log.stat().st_size

    ledgers = {name: Ledger(PAGES, logged_bytes) for name in NAMES}
    with logged(device, log):
        server = Server(root, "d", "--checkpoint", "0.2", *(TIMED if timed else ()))
    try:
        load = DeviceLoad(
            server, device, ledgers, random, timed=timed, survives_unflushed=False, clock=logged_bytes
        )
        time.sleep(random.uniform(0.2, 0.7))
        load.finish(tally)
        check(not load.problems(), f"a request failed: {load.problems()}; {server.log()}")
    finally:
        server.kill()
        server.stop()
    changes = log.read_bytes()
    # Half of them immediately after a metadata change, as these are few.
    cuts = random.choices(turning_points(changes), k=STATES // 2)
    cuts += [random.randrange(len(changes) + 1) for _ in range(STATES - len(cuts))]
    at = 0
    for number, cut in enumerate(sorted(cuts)):
        at, how, state = disk.replay(changes, at, cut), random.choice(HOW), root / f"state{number}"
        disk.after_power_failure(state / "devices" / "d", how, random)
        where = f"state {number} ({how} of what was not synced, {cut} of {len(changes)} bytes of the log)"
        try:
            _verify(state, where, cut, ledgers, load.changer)
        except AssertionError as problem:
            raise GuaranteeError(f"{where}: {problem}") from None
        shutil.rmtree(state)
        tally["states"] += 1
    tally["syncs"] += disk.syncs
    tally["changes of files"] += disk.changes


def _verify(root: Path, where: str, cut: int, ledgers: dict[str, Ledger], changer: Changer) -> None:
    due = kept(root / "devices" / "d")
    allowed = changer.allowed(cut)
    check(due in allowed, f"settings are {due}, acknowledged or asked for were {allowed}")
    server = Server(root, "d")
    try:
        with server.control() as control:
            now = served(control)
        check(now == due, f"kept was {due}, served is {now}")
        for name, ledger in ledgers.items():
            with NbdClient(server.run.export(name), name) as client:
                verify(client, ledger, f"{where}: {name}", cut)
    finally:
        with suppress(OSError, ValueError):
            server.kill()
        server.stop()
