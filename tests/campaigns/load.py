"""Clients and changes on one served device at the same time."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from random import Random

from serving import Server

from .changes import Changer
from .contents import PAGE, Ledger, Load, Writer
from .faults import READY_S, Tally
from .front_ends import Connect, nbd_disks

NAMES = ("a", "b", "c")
PAGES = 240
"""Size of the part of each namespace that is written; resizes affect only the rest."""
WRITERS = 2
"""Writers of each namespace; over vhost-user one, as it admits one client."""


class DeviceLoad:
    """Runs from its construction on."""

    def __init__(
        self,
        server: Server,
        device: Path,
        ledgers: dict[str, Ledger],
        random: Random,
        *,
        timed: bool,
        survives_unflushed: bool,
        clock: Callable[[], int] = lambda: 0,
        tolerated: Collection[int] = (),
        changes: bool = True,
        connect: Connect = nbd_disks,
        pause_s: float = 0.0,
    ) -> None:
        """`tolerated`: errors that writers may receive; `changes`: also change settings.

        `pause_s`: time between two requests of a writer.
        """
        disks = {name: connect(server, name, WRITERS) for name in ledgers}
        self.writers = [
            Writer(
                disk,
                ledger,
                range(number * PAGES // len(disks[name]), (number + 1) * PAGES // len(disks[name])),
                random.getrandbits(32),
                survives_unflushed=survives_unflushed,
                tolerated=tolerated,
                pause_s=pause_s,
            )
            for name, ledger in ledgers.items()
            for number, disk in enumerate(disks[name])
        ]
        self.changer = Changer(
            device, server.control(), random.getrandbits(32), PAGES * PAGE, timed=timed, clock=clock
        )
        self._all: list[Load] = [*self.writers, self.changer] if changes else [*self.writers]
        for thread in self._all:
            thread.start()

    def problems(self) -> list[Exception]:
        """Failed requests and lost connections so far."""
        found = ((thread.problem, thread.hung_up) for thread in self._all)
        return [problem for each in found for problem in each if problem is not None]

    def finish(self, tally: Tally) -> None:
        """Stop all clients and wait for them."""
        for thread in self._all:
            thread.finish.set()
        for thread in self._all:
            thread.join(READY_S)
        tally["changes acknowledged"] += self.changer.acknowledged
        tally["writes acknowledged"] += sum(writer.acknowledged for writer in self.writers)
        tally["requests refused"] += sum(len(writer.refused) for writer in self.writers)
        tally["flushes"] += sum(writer.flushes for writer in self.writers)
