"""The live part of `bench/harm.py`: equal drives, clients in cgroups that represent VMs, and a recorder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import checkout
from cgroup_groups import prompt
from daemon_host import Cgroups, DaemonProcess, cgroups
from harm_figures import Requests, Space, read_requests, space_of
from own_process import READY_S
from serving import Server

from slo_ctl.base.errors import UserError
from slo_ctl.drives.control import ControlError
from slo_ctl.drives.places import places
from slo_ctl.drives.store import DeviceStore
from slo_ctl.model.status import HostStatus

DEVICE = "ssd0"
VMS = ("web", "db")
RANDOM_WRITES = "--rw=randwrite --bs=4k --iodepth=8"
"""Options of fio for the usual load."""
_ALWAYS = ("--zero_buffers", "--randrepeat=1", "--norandommap")
_CONFIG = '[libvirt]\nuri = "none"\n'
_CONNECTED = """
import sys
sys.path.insert(0, sys.argv[1])
from nbd_client import NbdClient
from pathlib import Path
with NbdClient(Path(sys.argv[2]), sys.argv[3]):
    print("connected", flush=True)
    sys.stdin.read()
"""


def slo_ctl(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "slo_ctl.cli", *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"slo-ctl {' '.join(words[:2])}: {done.stdout}{done.stderr}")
    return done.stdout


def make_drive(root: Path, size: str) -> str:
    """Make the preconditioned drive of README's `A live host` below `root`; returns the result of
    preconditioning.
    """
    names = [word for vm in VMS for word in ("--namespace", f"name={vm}")]
    spec = f"name={DEVICE},preset=fast15,size={size},op=15%,precondition=yes"
    reply = slo_ctl("device", "create", spec, *names, "--root", str(root))
    return next((line for line in reply.splitlines() if "WAF" in line), reply)


def copy_drive(source: Path, root: Path) -> None:
    """Copy the drive below another root: placement, settings and data, with holes for zeros."""
    target = places(root).device(DEVICE)
    target.parent.mkdir(parents=True)
    command = ["cp", "--archive", "--sparse=always", str(places(source).device(DEVICE)), str(target)]
    subprocess.run(command, check=True)


def use_drive(root: Path, drive_writes: float) -> None:
    """Overwrite it at random by both clients, as fast as possible: without modelled latency."""
    size_bytes = DeviceStore(places(root)).load(DEVICE).namespace[0].size_bytes
    server = Server(root, DEVICE)
    try:
        writers = []
        for vm in VMS:
            options = (*RANDOM_WRITES.split(), *_ALWAYS, f"--io_size={round(drive_writes * size_bytes)}")
            command = ["fio", f"--name={vm}", "--ioengine=nbd", f"--uri={server.uri(vm)}", *options]
            writers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=root))
        codes = [writer.wait() for writer in writers]
        if any(codes):
            sys.exit("fio could not overwrite the drive")
    finally:
        server.stop()
    for vm in VMS:
        # All data is zeros, which take no space.
        image = places(root).device(DEVICE) / f"{vm}.img"
        os.truncate(image, 0)
        os.truncate(image, size_bytes)


@dataclass(frozen=True, slots=True)
class EpochFacts:
    """Statistics and status at one time."""

    at_s: float
    """Seconds since 1970."""
    spaces: dict[str, Space]
    spare_blocks: int
    status: HostStatus | None
    """None if no daemon answers."""


@dataclass(slots=True)
class Stopped:
    """End of the daemon after SIGTERM."""

    at_s: float
    took_s: float
    exit_code: int
    log_lines: list[str]


@dataclass(slots=True)
class Run:
    """One run from a fresh copy of a drive."""

    moments: list[EpochFacts] = field(default_factory=list)
    requests: dict[str, Requests] = field(default_factory=dict)
    events: dict[str, float] = field(default_factory=dict)
    """Times of the events `daemon` and `vm set`, in seconds since 1970."""
    stopped: Stopped | None = None
    daemon_log: str = ""

    @property
    def began_s(self) -> float:
        """Time at which the first request completed."""
        return min(each.began_s for each in self.requests.values())


class Host:
    """A served drive, VMs connected to it, and possibly a daemon; everything is recorded once a second."""

    def __init__(self, root: Path, groups: Cgroups) -> None:
        self.run = Run()
        self._root = root
        self._groups = groups
        self._server = Server(root, DEVICE, "--latency", "real")
        self._vms: list[subprocess.Popen[str]] = []
        self._loads: dict[str, subprocess.Popen[str]] = {}
        self._daemon: DaemonProcess | None = None
        self._over = threading.Event()
        self._recorder = threading.Thread(target=self._record, daemon=True)
        try:
            for vm in VMS:
                self._connect(vm)
        except BaseException:
            self.close()
            raise
        self._recorder.start()

    def _in_group(self, vm: str, *command: str) -> subprocess.Popen[str]:
        enter = f"echo $$ > '{self._groups.folder(vm) / 'cgroup.procs'}' && exec \"$@\""
        return subprocess.Popen(
            ["/bin/sh", "-c", enter, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=self._root,
        )

    def _connect(self, vm: str) -> None:
        """Connect like QEMU, which keeps its connection open whether or not its guest is active."""
        socket = places(self._root).run_of(DEVICE).export(vm)
        process = self._in_group(vm, sys.executable, "-c", _CONNECTED, str(checkout.REAL), str(socket), vm)
        self._vms.append(process)
        if process.stdout is None or process.stdout.readline().strip() != "connected":
            sys.exit(f"no connection to {DEVICE}/{vm}")

    def configure(self, weights: Mapping[str, float], share_by: str) -> None:
        unit = f'[daemon]\nshare_by = "{share_by}"\n'
        vms = [f'[vm.{v}]\nweight = {weights[v]}\ncgroup = "{self._groups.path(v)}"\n' for v in VMS]
        (self._root / "slo-ctl.toml").write_text("".join([_CONFIG, unit, *vms]))

    def start_daemon(self) -> None:
        self.run.events["daemon"] = time.time()
        self._daemon = DaemonProcess(self._root)

    def start_load(self, vm: str, load: str, seconds: float) -> None:
        """Start a client of fio; `load`: its options."""
        self._loads[vm] = self._in_group(
            vm,
            *prompt(),
            *("fio", "--thread", f"--name={vm}", "--ioengine=nbd", f"--uri={self._server.uri(vm)}"),
            *(*load.split(), *_ALWAYS, "--time_based", f"--runtime={seconds:.0f}"),
            *(f"--output={vm}.txt", f"--write_lat_log={vm}", "--log_unix_epoch=1"),
            *("--disable_clat=1", "--disable_slat=1"),
        )

    def end_load(self) -> None:
        """Wait until the clients have finished."""
        for vm, process in self._loads.items():
            if process.wait(READY_S + 3600):
                sys.exit(f"fio of {vm} failed: {(self._root / f'{vm}.txt').read_text()}")
            self.run.requests[vm] = read_requests(self._root / f"{vm}_lat.1.log")
        self._loads.clear()

    def set_vm(self, vm: str, fields: str) -> None:
        self.run.events["vm set"] = time.time()
        slo_ctl("vm", "set", vm, fields, "--root", str(self._root))

    def stop_daemon(self) -> None:
        """Send SIGTERM to the daemon and record how it ends."""
        daemon, self._daemon = self._daemon, None
        if daemon is None:
            return
        began_s, clock_s = time.time(), time.monotonic()
        daemon.process.send_signal(signal.SIGTERM)
        code = daemon.process.wait(READY_S)
        took_s = time.monotonic() - clock_s
        self.run.daemon_log = daemon.log()
        lines = [line for line in self.run.daemon_log.splitlines() if "restored" in line]
        self.run.stopped = Stopped(began_s, took_s, code, lines)
        daemon.stop()

    def close(self) -> None:
        """End everything at once: a clean stop would spend minutes writing back data that is thrown away."""
        self._over.set()
        if self._recorder.ident is not None:
            self._recorder.join()
        if self._daemon is not None:
            self.run.daemon_log = self._daemon.log()
            self._daemon.kill()
        for process in (*self._loads.values(), *self._vms):
            process.kill()
            process.wait()
        with suppress(OSError):
            self._server.kill()
        self._server.stop()

    def _record(self) -> None:
        next_s = time.monotonic()
        while not self._over.is_set():
            with suppress(ControlError, OSError):
                self.run.moments.append(self._moment())
            next_s += 1.0
            self._over.wait(max(0.0, next_s - time.monotonic()))

    def _moment(self) -> EpochFacts:
        with self._server.control() as control:
            reply = control.statistics()
        status, daemon = None, self._daemon
        if daemon is not None:
            with suppress(UserError, OSError):
                status = daemon.status()
        spaces = {each["name"]: space_of(each) for each in reply["namespaces"]}
        return EpochFacts(time.time(), spaces, int(reply["spare_blocks"]), status)


@contextmanager
def host(template: Path, scratch: Path) -> Iterator[Host]:
    """A host with a fresh copy of the drive of `template` in `scratch`, which is removed afterwards."""
    root = scratch / "run"
    copy_drive(template, root)
    try:
        with cgroups(*VMS) as groups:
            live = Host(root, groups)
            try:
                yield live
            finally:
                live.close()
    finally:
        shutil.rmtree(root)
