"""Campaign `daemon-kill`: SIGKILL of the daemon at any moment, while SLOs change and are enforced."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from random import Random

from daemon_host import DaemonProcess
from nbd_client import NbdClient
from serving import Server

from slo_ctl.act.journal import Journal
from slo_ctl.api.client import ApiClient
from slo_ctl.base.errors import UnreachableError
from slo_ctl.daemon.files import DaemonPlaces
from slo_ctl.model.setting import Lever
from slo_ctl.record.slo_store import SloStore

from .changes import States, served
from .contents import Ledger, Load, Writer
from .faults import READY_S, Tally, check
from .load import NAMES, PAGES
from .server_kill import make_drive

KILLS = 4
_CONFIG = """
[daemon]
epoch = "100ms"
window = "1s"
strict = {strict}
[libvirt]
uri = "none"
"""
Slos = dict[str, dict[str, float]]


class SloChanger(Load):
    """Sets and unsets SLOs until the daemon is gone, and records which were acknowledged."""

    def __init__(self, places: DaemonPlaces, slos: Slos, seed: int) -> None:
        super().__init__()
        self._api = ApiClient(places.api_socket, timeout_s=READY_S)
        self._random = Random(seed)  # noqa: S311 - no secret
        self.slos = slos
        self.allowed = [slos]
        """Permitted contents of the store; of two, the last is requested and not acknowledged."""

    def work(self) -> None:
        while not self.finish.wait(self._random.uniform(0, 0.1)):
            vm, path = self._random.choice(NAMES), "/v1/vms/{}/slo"
            try:
                if vm in self.slos and self._random.random() < 0.3:
                    self.allowed.append({name: of for name, of in self.slos.items() if name != vm})
                    self._api.delete(path.format(vm))
                else:
                    fields = {
                        self._random.choice(["weight", "max_iops"]): float(self._random.randint(1, 500))
                    }
                    self.allowed.append(self.slos | {vm: self.slos.get(vm, {}) | fields})
                    self._api.put(path.format(vm), {"fields": fields, "force": True})
            except UnreachableError:
                return
            self.slos = self.allowed[-1]
            self.allowed = [self.slos]
            self.acknowledged += 1

    def close(self) -> None:
        """Nothing to close: each call has its own connection."""


def daemon_kill(root: Path, random: Random, tally: Tally) -> None:
    """Kill the daemon while it starts, runs and stops; a clean stop then restores everything."""
    make_drive(root, "mapping=page")
    tables = [f'[vm.{name}]\nweight = 1\nnamespaces = ["d/{name}"]\n' for name in NAMES]
    # The strict policy moves OPS continuously.
    strict = random.choice(["true", "false"])
    (root / "slo-ctl.toml").write_text(_CONFIG.format(strict=strict) + "".join(tables))
    places = DaemonPlaces(root)
    server = Server(root, "d", "--latency", "real", "--time-scale", "0.2")
    writers: list[Writer] = []
    try:
        with server.control() as control:
            before = served(control)
        for name in NAMES:
            client = NbdClient(server.run.export(name), name)
            seed = random.getrandbits(32)
            writers.append(Writer(client, Ledger(PAGES), range(PAGES), seed, survives_unflushed=True))
            writers[-1].start()
        slos: Slos = {}
        for _ in range(KILLS):
            moment = random.choice(["starting", "running", "running", "stopping"])
            if moment == "starting":
                _killed_while_starting(root, random.uniform(0, 2))
            else:
                slos = _killed(root, places, slos, random, tally, stopping=moment == "stopping")
            tally[f"kills while {moment}"] += 1
            _check_files(places, before, slos)
        _stopped_cleanly(root, server, before, slos)
        ended = [
            (writer.namespace, writer.problem, writer.hung_up) for writer in writers if not writer.is_alive()
        ]
        check(not ended, f"clients of the server ended: {ended}; {server.log()}")
    finally:
        for writer in writers:
            writer.finish.set()
        server.stop()


def _killed_while_starting(root: Path, after_s: float) -> None:
    words = [sys.executable, "-m", "slo_ctl.cli", "daemon", "--root", str(root)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            time.sleep(after_s)
        finally:
            # Leaving the block waits for the process.
            process.kill()


def _killed(
    root: Path, places: DaemonPlaces, slos: Slos, random: Random, tally: Tally, *, stopping: bool
) -> Slos:
    """Run the daemon, change SLOs, kill it; returns the stored SLOs."""
    daemon = DaemonProcess(root)
    try:
        for name in NAMES:
            slo, due = daemon.vm(name).slo, slos.get(name, {})
            in_force = (slo.weight, slo.max_iops) == (due.get("weight", 1.0), due.get("max_iops"))
            check(in_force, f"{due} was acknowledged for {name}; in force is {slo}")
        changer = SloChanger(places, slos, random.getrandbits(32))
        changer.start()
        time.sleep(random.uniform(0.1, 1))
        if random.random() < 0.3:
            daemon.process.send_signal(signal.SIGHUP)
        if stopping:
            daemon.process.terminate()
            time.sleep(random.uniform(0, 0.5))
        check(changer.problem is None, f"{changer.problem!r}: {daemon.log()}")
        check("Traceback" not in daemon.log(), daemon.log())
        daemon.kill()
    finally:
        daemon.stop()
    changer.join(READY_S)
    tally["SLOs acknowledged"] += changer.acknowledged
    found = _stored(places)
    check(found in changer.allowed, f"{changer.allowed} was acknowledged or asked for; kept is {found}")
    return found


def _stored(places: DaemonPlaces) -> Slos:
    return {vm: entry.fields for vm, entry in SloStore(places.slos).read().items()}


def _check_files(places: DaemonPlaces, before: States, slos: Slos) -> None:
    """Check that history, journal and SLOs are intact, and that the journal has the original values."""
    check(_stored(places) == slos, "SLOs have changed without a command")
    if places.history.exists():
        with closing(sqlite3.connect(places.history)) as database:
            found = database.execute("PRAGMA integrity_check").fetchall()
        check(found == [("ok",)], f"history: {found}")
    for knob, original in Journal(places.journal).originals().items():
        state = before[knob.place.removeprefix("d/")] if knob.place.startswith("d/") else None
        if state is None:
            continue
        expected = {
            Lever.FTL_WEIGHT: state.weight,
            Lever.FTL_LIMIT: state.limit_iops,
            Lever.FTL_OPS: state.ops_blocks,
        }[knob.lever]
        check(original.value == expected, f"the journal has {original} for {knob}; it was {expected}")


def _stopped_cleanly(root: Path, server: Server, before: States, slos: Slos) -> None:
    """Start once more; the stop restores everything, except for OPS that is still moving."""
    daemon = DaemonProcess(root)
    daemon.eventually("an epoch", lambda status: status.devices)
    status = daemon.stop()
    with server.control() as control:
        after = served(control)
    check(after == before, f"not restored: {after}, was {before}; {daemon.log()}")
    left = Journal(DaemonPlaces(root).journal).originals()
    check(all(knob.lever is Lever.FTL_OPS for knob in left), f"left in the journal: {left}")
    check(status == (1 if left else 0), f"status {status} with {len(left)} settings left; {daemon.log()}")
    _check_files(DaemonPlaces(root), before, slos)
    partial = [*root.glob(".*.partial"), *(root / "devices" / "d").glob(".*.partial")]
    check(not partial, f"left behind: {partial}")
