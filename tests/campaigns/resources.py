"""Campaign `resources`: resources that the host runs out of or temporarily withholds, under load."""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random

from daemon_host import DaemonProcess, running
from nbd_client import NbdClient, NbdError
from waiting import until

from slo_ctl.model.status import HostStatus, Verdict

from .faults import Round, Tally, check
from .load import NAMES, DeviceLoad
from .loop_disk import LoopDisk, filled, loop_disk
from .scene import Scene
from .server_kill import verify_all

_LOST = (errno.EIO, errno.EPERM, errno.ENOSPC)
"""NBD has EPERM for EROFS."""
_PAUSE_S = 0.005
"""Pause of a writer whose share the daemon observes, so that it does not use all CPU time."""
_EPOCH_S = 20
_SMALL_JUMP_S, _LARGE_JUMP_S = 3600, 5 * 86400
_CROWD = 20
_SPARE_MEMORY_BYTES = 32 << 20
"""Not enough for the threads of this many clients."""
_CONFIG = """
[daemon]
epoch = "100ms"
window = "1s"
[libvirt]
uri = "none"
"""


def full_disk(root: Path, random: Random, tally: Tally) -> None:
    """Without free space clients get an error for it, until there is free space again."""
    with loop_disk(root) as disk:
        scene = Scene(root, random, tally)
        try:
            with scene.load({errno.ENOSPC}) as load:
                with filled(disk.folder):
                    until(lambda: any(writer.refused for writer in load.writers), "a failed write")
                    until(lambda: "full" in " ".join(scene.ailments().values()), "the problem in status")
                    scene.wait(0.1, 0.5)
                until(lambda: not scene.ailments(), "there is free space")
            scene.works()
            scene.works_after_restart()
        finally:
            scene.server.stop()


def failing_disk(root: Path, random: Random, tally: Tally) -> None:
    """Writes that the kernel accepted are lost: a flush fails, and no later flush is reported as done."""
    with loop_disk(root) as disk:
        scene = Scene(root, random, tally, survives_unflushed=False)
        with _data_lost(scene, disk) as load, disk.failing():
            until(lambda: "flush has failed" in " ".join(scene.ailments().values()), "a failed flush")
            failed = set(scene.ailments())
            # Wait for those that were answered just before.
            scene.wait(0.1, 0.3)
            before = {writer: writer.flushes for writer in load.writers if writer.namespace in failed}
            scene.wait(0.1, 0.5)
            after = {writer: writer.flushes for writer in before}
            check(after == before, f"a flush was reported as done after one had failed: {before}, {after}")


def read_only_disk(root: Path, random: Random, tally: Tally) -> None:
    """The file system becomes read-only, as ext4 does when it detects an error.

    Flushes are in progress: unless the server checks the journal, they would be reported as done.
    """
    with loop_disk(root / "lower") as below, loop_disk(root, below) as disk:
        scene = Scene(root, random, tally, survives_unflushed=False)
        with _data_lost(scene, disk) as load:
            with ThreadPoolExecutor() as executor, below.frozen():
                scene.wait(0, 0.5)
                read_only = executor.submit(disk.become_read_only)
                scene.wait(0.1, 0.3)
            read_only.result()
            until(lambda: all(writer.refused for writer in load.writers), "all writes fail")


@contextmanager
def _data_lost(scene: Scene, disk: LoopDisk) -> Iterator[DeviceLoad]:
    """Apply load while data is lost; flushed data is there after the disk is repaired."""
    try:
        with scene.load(_LOST) as load:
            yield load
        ailing = scene.ailments()
        for name in ailing:
            with NbdClient(scene.server.run.export(name), name) as client, suppress(NbdError):
                client.flush()
                check(False, f"a flush of {name} was reported as done; {ailing}")
        check(scene.server.stop() != 0, "the stop claims that all is saved")
        disk.mount_again()
        for ledger in scene.ledgers.values():
            ledger.lose_unflushed()
        due = load.changer.check_kept()
        scene.restart()
        verify_all(scene.server, scene.ledgers, due, preconditioned=False, may_be_rebuilt=True)
        check(scene.server.stop() == 0, f"the clean stop failed: {scene.server.log()}")
        scene.restart()
        scene.works()
    finally:
        scene.server.stop()


def stopped_server(root: Path, random: Random, tally: Tally) -> None:
    """SIGSTOP of the server: requests wait, and the daemon gets its figures again afterwards."""
    with _with_daemon(root, random, tally) as (scene, _):
        _stop_for(scene, scene.server.pid(), scene.server.process.pid)


def stopped_daemon(root: Path, random: Random, tally: Tally) -> None:
    """SIGSTOP of the daemon: requests continue."""
    with _with_daemon(root, random, tally) as (scene, daemon):
        _stop_for(scene, daemon.process.pid)


def _stop_for(scene: Scene, *pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        scene.wait(1, 3)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def clock_jumps(root: Path, random: Random, tally: Tally) -> None:
    """Set the daemon's wall clock forward or back: it continues to decide, and reports the new time."""
    clock = root / "clock"

    def set_clock(offset_s: int) -> None:
        new = clock.with_suffix(".new")
        new.write_text(f"{offset_s:+d}")
        new.replace(clock)

    set_clock(0)
    faked = {
        "LD_PRELOAD": str(fake_clock()),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with _with_daemon(root, random, tally, faked) as (_, daemon):
        for _ in range(3):
            offset_s = random.choice((-1, 1)) * random.randint(_SMALL_JUMP_S, _LARGE_JUMP_S)
            set_clock(offset_s)
            tally["jumps"] += 1
            # Waiting for the old time would take hours; on a busy machine an epoch may take seconds.
            ended = any(daemon.epochs_in(1) for _ in range(_EPOCH_S))
            check(ended, f"no epoch in {_EPOCH_S} s after {offset_s:+d} s")
            daemon.eventually(f"shares {offset_s:+d} s away", partial(_sound_at, time.time() + offset_s))
        set_clock(0)


def _sound_at(begun_s: float, status: HostStatus) -> bool:
    return 0 < status.at - begun_s < _SMALL_JUMP_S and sound(status)


def fake_clock() -> Path | None:
    """The library that changes the time of a process (package faketime)."""
    return next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


def sound(status: HostStatus) -> bool:
    """Each VM has a share, and none misses its minimum."""
    own = [row for row in status.vms if row.vm in NAMES]
    return len(own) == len(NAMES) and all(
        vm.share is not None and vm.iops and vm.verdict is not Verdict.INSUFFICIENT for vm in own
    )


@contextmanager
def _with_daemon(
    root: Path, random: Random, tally: Tally, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[Scene, DaemonProcess]]:
    """Run the daemon; before and after the fault it knows the share of each VM and meets the minimum."""

    scene = Scene(root, random, tally)
    tables = [f'[vm.{name}]\nweight = 1\nmin_iops = 1\nnamespaces = ["d/{name}"]\n' for name in NAMES]
    (root / "slo-ctl.toml").write_text(_CONFIG + "".join(tables))
    try:
        with running(root, environment=environment) as daemon, scene.load(changes=False, pause_s=_PAUSE_S):
            daemon.eventually("shares", sound)
            yield scene, daemon
            stopped_at = time.time()
            daemon.eventually("shares again", lambda s: s.at > stopped_at + s.window_s and sound(s))
            check("Traceback" not in daemon.log(), daemon.log())
        check(daemon.process.returncode == 0, f"the daemon's stop failed: {daemon.log()}")
        scene.works()
        scene.works_after_restart()
    finally:
        scene.server.stop()


def descriptor_limit(root: Path, random: Random, tally: Tally) -> None:
    """No free descriptors: connected clients continue, others connect when descriptors become free."""

    def limit(pid: int) -> int:
        return len(list(Path(f"/proc/{pid}/fd").iterdir())) + random.randint(0, 6)

    _limit_server(root, random, tally, resource.RLIMIT_NOFILE, limit)


def memory_limit(root: Path, random: Random, tally: Tally) -> None:
    """No memory for the thread of another client: connected clients continue, others connect later."""

    def limit(pid: int) -> int:
        (size,) = re.findall(r"^VmSize:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return int(size) * 1024 + random.randint(0, _SPARE_MEMORY_BYTES)

    _limit_server(root, random, tally, resource.RLIMIT_AS, limit)


def _limit_server(root: Path, random: Random, tally: Tally, kind: int, limit: Callable[[int], int]) -> None:
    """Limit a resource of the server so that it does not suffice for all clients that connect."""
    scene = Scene(root, random, tally)
    crowd: list[NbdClient] = []
    try:
        with scene.load():
            pid = scene.server.pid()
            with _limited(pid, kind, limit(pid)):
                for _ in range(_CROWD):
                    try:
                        crowd.append(NbdClient(scene.server.run.export("a"), "a", timeout_s=0.2))
                    except (OSError, NbdError):
                        tally["connections refused"] += 1
                scene.wait(0.1, 0.5)
            check(len(crowd) < _CROWD, "the limit had no effect")
            check(scene.server.pid() == pid, f"the server ended: {scene.server.log()}")
            for client in crowd:
                client.close()
        scene.works()
        scene.works_after_restart()
    finally:
        scene.server.stop()


@contextmanager
def _limited(pid: int, kind: int, value: int) -> Iterator[None]:
    before = resource.prlimit(pid, kind, (value, resource.prlimit(pid, kind)[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # it has ended for lack of memory, and another one was started
            resource.prlimit(pid, kind, before)


FAULTS: dict[str, Round] = {
    "full disk": full_disk,
    "failing disk": failing_disk,
    "read-only disk": read_only_disk,
    "stopped server": stopped_server,
    "stopped daemon": stopped_daemon,
    "descriptor limit": descriptor_limit,
    "memory limit": memory_limit,
    "clock jumps": clock_jumps,
}


def resources(root: Path, random: Random, tally: Tally) -> None:
    """Run one of the faults."""
    name = random.choice(list(FAULTS))
    tally[name] += 1
    FAULTS[name](root, random, tally)
