"""A device that stays in service, and its required contents."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from serving import Server

from .changes import kept
from .contents import Ledger
from .faults import Tally, check
from .load import NAMES, PAGES, DeviceLoad
from .server_kill import make_drive, verify_all


class Scene:
    """A served device and its required contents."""

    def __init__(self, root: Path, random: Random, tally: Tally, *, survives_unflushed: bool = True) -> None:
        self.root, self.random, self.tally, self._survives = root, random, tally, survives_unflushed
        make_drive(root, "mapping=page")
        self.ledgers = {name: Ledger(PAGES) for name in NAMES}
        self.server = self._serve()

    def _serve(self) -> Server:
        return Server(self.root, "d", "--checkpoint", "0.3", "--latency", "real", "--time-scale", "0.01")

    def restart(self) -> None:
        """After a stop."""
        self.server = self._serve()

    @contextmanager
    def load(
        self, tolerated: Collection[int] = (), *, changes: bool = True, pause_s: float = 0.0
    ) -> Iterator[DeviceLoad]:
        """Run clients and changes; no request fails except with a tolerated error, and no connection ends."""
        device = self.root / "devices" / "d"
        load = DeviceLoad(
            self.server,
            device,
            self.ledgers,
            self.random,
            timed=True,
            survives_unflushed=self._survives,
            tolerated=tolerated,
            changes=changes,
            pause_s=pause_s,
        )
        try:
            self.wait(0.1, 0.4)
            yield load
            self.wait(0.1, 0.4)
        finally:
            load.finish(self.tally)
        check(not load.problems(), f"a request failed: {load.problems()}; {self.server.log()}")
        self.due = load.changer.check_kept() if changes else kept(device)

    def wait(self, least_s: float, most_s: float) -> None:
        """Wait for a random time."""
        time.sleep(self.random.uniform(least_s, most_s))

    def works(self) -> None:
        """No request is refused, and all data is there."""
        with self.load() as load:
            pass
        check(load.changer.is_connected, f"changes came to an end; {self.server.log()}")
        verify_all(self.server, self.ledgers, self.due, preconditioned=False)

    def works_after_restart(self) -> None:
        """Likewise."""
        check(self.server.stop() == 0, f"the clean stop failed: {self.server.log()}")
        self.restart()
        verify_all(self.server, self.ledgers, self.due, preconditioned=False)

    def ailments(self) -> dict[str, str]:
        """Problems that the server reports about its namespaces."""
        with self.server.control() as control:
            return {n["name"]: n["reason"] for n in control.statistics()["namespaces"] if not n["healthy"]}
