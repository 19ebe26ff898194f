"""What `slo-ctl try` starts and removes: a served drive, VMs in cgroups, a daemon."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import slo_ctl
from slo_ctl.api.client import ApiClient
from slo_ctl.base.errors import UserError
from slo_ctl.base.termination import StopRequest
from slo_ctl.base.text import toml_key
from slo_ctl.cli.try_clients import HAS_DISK, Guests, guests_anywhere, guests_with_kvm, write_fio_log
from slo_ctl.daemon.files import DaemonPlaces
from slo_ctl.drives.control import ControlClient, ControlError, find_server
from slo_ctl.drives.places import places
from slo_ctl.drives.plan import plan_device
from slo_ctl.drives.record import Preconditioned
from slo_ctl.drives.status import nbd_uri
from slo_ctl.drives.store import DeviceStore, precondition
from slo_ctl.host.calls import run_program
from slo_ctl.host.cgroup import CgroupTree, find_tree
from slo_ctl.model.status import HostStatus
from slo_ctl.model.status_json import from_json
from slo_ctl.profile.fio import find_fio

DEVICE = "ssd0"
_LOOPBACK = "127.0.0.1"
_READY_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 20.0
"""A clean stop of this drive takes a second or two; a program that needs longer is killed."""
_MEMORY = Path("/dev/shm")  # noqa: S108 - mkdtemp creates a directory in it
_MIN_FREE_BYTES = 2 << 30
_POLL_S = 0.1
_GUEST = "guest "
_HINT = "hint: "
_CLIENT_RUNTIME_S = 86400
_FIRST_WRITES_S = 10.0
_STALLED_S = 1.0
"""Guests write some hundred requests in this time."""
_ENTER_GROUP = 'echo $$ > "$1" && shift && exec "$@"'


class TryHost:
    """The processes, files in `root`, and cgroups of one run; `close` removes all of them."""

    def __init__(
        self, root: Path | None, vms: Mapping[str, float], stop: StopRequest, page_port: int | None = None
    ) -> None:
        """`vms`: weights by VM. The daemon serves its page on `page_port`, unless that is None.

        Raises UserError when the server is missing, the port is in use, or `root` is not empty.
        """
        if page_port is not None:
            _check_port_is_free(page_port)
        self._page_port = page_port
        find_server()
        self.notes: list[str] = []
        self._stop = stop
        self._vms = dict(vms)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._restart_commands: dict[str, list[str]] = {}
        """Commands by name of clients, to be started again after the end of their trace."""
        self.guests: Guests | None = None
        """None: all clients are fio."""
        self._groups: dict[str, str] = {}
        self._tree: CgroupTree | None = None
        self._keep_root = root is not None and root.is_dir()
        self.root = _create_root(root)
        self.store = DeviceStore(places(self.root))
        self.api = ApiClient(DaemonPlaces(self.root).api_socket)

    # Start.

    def create_drive(self, spec: str, progress: Callable[[float], None]) -> Preconditioned:
        """Create and precondition the drive, with a namespace for each VM."""
        record = plan_device(f"name={DEVICE},{spec}", [f"name={vm}" for vm in self._vms])
        self.store.create(record)
        return precondition(self.store, record, progress)

    def start_server(self) -> None:
        """Serve the drive with modelled latency; returns once clients can connect."""
        vhost_user = () if self.guests is None else ("--vhost-user",)
        self._start_slo_ctl("server", "device", "serve", DEVICE, "--latency", "real", *vhost_user)
        self._wait_for("server", self._is_serving)

    def choose_clients(self, wanted: bool | None, traces: Collection[str]) -> None:
        """Choose guests or fio; `wanted` None: guests if KVM works. fio repeats `traces`.

        Raises UserError when a program is missing.
        """
        if wanted:
            self.guests = guests_anywhere(self.root)
            if self.guests.accelerator != "kvm":
                self.notes.append(
                    "KVM does not work on this host: QEMU emulates the processors of the guests"
                )
        elif wanted is None:
            try:
                self.guests = guests_with_kvm(self.root)
            except UserError as error:
                self.notes.append(f"fio takes the place of QEMU guests: {error.message} ({error.hint})")
        if self.guests is None or traces:
            _check_fio_has_nbd()

    def start_guest(self, vm: str, guests: Guests, queue_depth: int) -> None:
        """Start a guest that does random writes of 4 KiB, in the cgroup of the VM."""
        socket = self.store.places.run_of(DEVICE).vhost_user_socket(vm)
        self._start(f"{_GUEST}{vm}", self._in_group(vm, guests.command(socket, queue_depth)))

    def wait_for_guests(self) -> None:
        """Wait until all guests have their disk."""
        for name in [each for each in self._processes if each.startswith(_GUEST)]:
            self._wait_for(name, partial(self._has_disk, name))

    def guests_write(self) -> bool:
        """Whether all guests write to their disks; on the KVM of some hosts they do so at first only."""
        guests = [name.removeprefix(_GUEST) for name in self._processes if name.startswith(_GUEST)]
        run, deadline_s = self.store.places.run_of(DEVICE), time.monotonic() + _FIRST_WRITES_S
        before = dict.fromkeys(guests, 0)
        while time.monotonic() < deadline_s:
            try:
                with ControlClient(run.control) as control:
                    namespaces = control.statistics()["namespaces"]
            except ControlError as error:
                raise UserError(f"the server of the drive does not answer: {error}", "try again") from None
            writes = {each["name"]: each["queue"]["completed"]["writes"] for each in namespaces}
            if all(writes[vm] > before[vm] > 0 for vm in guests):
                return True
            before = writes
            self.pause(_STALLED_S)
        return False

    def replace_guests(self, *, emulated: bool) -> None:
        """Stop guests that do not write. Others with an emulated processor take their place, or fio.

        Raises UserError if they have an emulated processor already, or fio cannot.
        """
        for name in [each for each in self._processes if each.startswith(_GUEST)]:
            _stop_process(self._processes.pop(name))
        if emulated and self.guests is not None and self.guests.accelerator == "kvm":
            self.guests = replace(self.guests, accelerator="tcg")
            return
        if emulated:
            raise UserError("guests of QEMU start, but soon stop writing to their disks", "use --no-guests")
        self.guests = None
        _check_fio_has_nbd()

    def start_fio(self, vm: str, queue_depth: int, trace: Path | None) -> int:
        """Start fio with random writes of 4 KiB, or with the requests of a trace, in the cgroup of the VM.

        It runs until `close`. Returns the number of requests of the trace. Raises UserError.
        """
        command = [
            *(find_fio(), "--thread", f"--name={vm}", "--ioengine=nbd", f"--iodepth={queue_depth}"),
            f"--uri={nbd_uri(self.store.places.run_of(DEVICE).export(vm), vm)}",
            *("--zero_buffers", "--time_based", f"--runtime={_CLIENT_RUNTIME_S}"),
        ]
        requests = 0
        if trace is None:
            command += ["--rw=randwrite", "--bs=4k", "--norandommap"]
        else:
            log = self.root / f"{vm}.iolog"
            namespaces = self.store.load(DEVICE).namespace
            size_bytes = next(each.size_bytes for each in namespaces if each.name == vm)
            requests = write_fio_log(trace, log, size_bytes)
            command += [f"--read_iolog={log}", "--replay_no_stall=1"]
        command = self._in_group(vm, command)
        if trace is not None:
            self._restart_commands[f"client {vm}"] = command
        self._start(f"client {vm}", command)
        return requests

    def _in_group(self, vm: str, command: list[str]) -> list[str]:
        group = self._groups.get(vm)
        if group is None or self._tree is None:
            return command
        enter = str(self._tree.folder(group) / "cgroup.procs")
        return ["/bin/sh", "-c", _ENTER_GROUP, "sh", enter, *command]

    def create_groups(self) -> None:
        """Create a cgroup for each VM; on an error, the daemon identifies the VMs by their namespaces."""
        tree = find_tree()
        parent = f"/slo-try-{os.getpid()}"
        if tree is None:
            self.notes.append("this host has no cgroup tree: the daemon identifies VMs by their namespaces")
            return
        try:
            tree.folder(parent).mkdir()
            self._tree, self._groups[""] = tree, parent
            for vm in self._vms:
                tree.folder(f"{parent}/{vm}").mkdir()
                self._groups[vm] = f"{parent}/{vm}"
        except OSError as error:
            self._remove_groups()
            self.notes.append(
                f"no cgroup can be created ({error.strerror}): the daemon identifies VMs by their namespaces"
            )

    def start_daemon(self, window_s: float) -> None:
        """Configure and start the daemon; returns once it has a status."""
        parts = [
            f'[daemon]\nwindow = "{window_s:g}s"\n',
            '[libvirt]\nuri = "none"\n',
            f'[[device]]\nname = "{DEVICE}"\nscheduler = "auto"\n',
        ]
        if self._page_port is not None:
            parts.append(f'[page]\nlisten = "{_LOOPBACK}:{self._page_port}"\n')
        for vm, weight in self._vms.items():
            group = self._groups.get(vm)
            members = f'cgroup = "{group}"' if group else f'namespaces = ["{DEVICE}/{vm}"]'
            parts.append(f"[vm.{toml_key(vm)}]\nweight = {weight:g}\n{members}\n")
        (self.root / "slo-ctl.toml").write_text("".join(parts))
        self._start_slo_ctl("daemon", "daemon")
        self._wait_for("daemon", self._has_status)

    @property
    def page(self) -> str:
        """Address of the daemon's page; empty without one."""
        return "" if self._page_port is None else f"http://{_LOOPBACK}:{self._page_port}/"

    def status(self) -> HostStatus:
        """Status of the daemon. Raises UserError when it does not answer."""
        return from_json(self.api.get("/v1/status"))

    def pause(self, seconds: float) -> None:
        """Sleep. Raises UserError when a process has ended, KeyboardInterrupt after a signal."""
        self._stop.wait(seconds)
        if self._stop.made:
            raise KeyboardInterrupt
        for name, process in list(self._processes.items()):
            if (code := process.poll()) is None:
                continue
            if code == 0 and name in self._restart_commands:
                self._start(name, self._restart_commands[name])
            else:
                last, hint = self._end_of_log(name)
                raise UserError(f"the {name} has ended with {code}: {last}", hint)

    def _start_slo_ctl(self, name: str, *words: str) -> None:
        # The modules of this program, not those of the current directory.
        command = [sys.executable, "-P", "-m", "slo_ctl.cli", *words, "--root", str(self.root)]
        package = Path(slo_ctl.__path__[0]).parent
        self._start(name, command, {**os.environ, "PYTHONPATH": str(package)})

    def _start(self, name: str, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        with self._log(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(  # noqa: S603 - the command is made here
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.root,
                env=environment,
                # Ctrl-C must not reach it: `close` stops all processes in order.
                start_new_session=True,
            )

    def _wait_for(self, name: str, ready: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + _READY_TIMEOUT_S
        while not ready():
            self.pause(_POLL_S)
            if time.monotonic() > deadline_s:
                last, hint = self._end_of_log(name)
                raise UserError(f"the {name} is not ready after {_READY_TIMEOUT_S:g} s: {last}", hint)

    def _is_serving(self) -> bool:
        run = self.store.places.run_of(DEVICE)
        try:
            with ControlClient(run.control) as control:
                control.hello()
        except ControlError:
            return False
        sockets = [run.export(vm) for vm in self._vms]
        if self.guests is not None:
            sockets += [run.vhost_user_socket(vm) for vm in self._vms]
        return all(socket.exists() for socket in sockets)

    def _has_disk(self, guest: str) -> bool:
        return HAS_DISK in self._log(guest).read_text(errors="replace")

    def _has_status(self) -> bool:
        try:
            self.status()
        except UserError:
            return False
        return True

    def _log(self, name: str) -> Path:
        return self.root / f"{name.replace(' ', '-')}.log"

    def _end_of_log(self, name: str) -> tuple[str, str]:
        """The last line of the log that is not a hint, and the hint after it."""
        lines = [line for line in self._log(name).read_text(errors="replace").split("\n") if line.strip()]
        has_hint = bool(lines) and lines[-1].startswith(_HINT)
        hint = lines.pop().removeprefix(_HINT) if has_hint else "try again"
        return lines[-1] if lines else "no output", hint

    # Removal.

    def close(self) -> list[str]:
        """Stop and remove everything. Returns a sentence for each thing that could not be. Never raises."""
        failures: list[str] = []
        # Clients first, then the daemon, then the server of the drive.
        for name in sorted(self._processes, key=lambda name: (name == "server", name == "daemon")):
            try:
                _stop_process(self._processes.pop(name))
            except (OSError, subprocess.TimeoutExpired) as error:
                failures.append(f"the {name} could not be stopped: {error}")
        failures += self._remove_groups()
        try:
            _remove_contents(self.root)
            if not self._keep_root:
                self.root.rmdir()
        except OSError as error:
            failures.append(f"{self.root} could not be removed: {error}")
        return failures

    def _remove_groups(self) -> list[str]:
        failures = []
        for vm in [*self._vms, ""]:
            group = self._groups.pop(vm, None)
            if group is None or self._tree is None:
                continue
            try:
                _remove_group(self._tree.folder(group))
            except OSError as error:
                failures.append(f"cgroup {group} could not be removed: {error.strerror}")
        return failures


def _check_port_is_free(port: int) -> None:
    try:
        socket.create_server((_LOOPBACK, port)).close()
    except OSError as error:
        raise UserError(f"--page {port}: {error.strerror}", "name another port, such as 8080") from None


def _check_fio_has_nbd() -> None:
    hint = "install a fio that was built with libnbd (Debian's is), or use --guests"
    if run_program([find_fio(), "--enghelp=nbd"], _READY_TIMEOUT_S, hint).returncode:
        raise UserError("this fio cannot write to NBD exports", hint)


def _create_root(root: Path | None) -> Path:
    if root is None:
        return Path(tempfile.mkdtemp(prefix="slo-try-", dir=_parent_of_root()))
    if root.exists() and not root.is_dir():
        raise UserError(f"--root: {root} is not a directory", "name a directory that does not exist yet")
    try:
        root.mkdir(parents=False, exist_ok=True)
        if any(root.iterdir()):
            raise UserError(f"--root: {root} is not empty", "name a directory that does not exist yet")
    except OSError as error:
        raise UserError(f"--root: {root}: {error.strerror}", "name a directory that can be created") from None
    return root.absolute()


def _parent_of_root() -> Path | None:
    """Memory if it has enough space, so that the host's disk has no influence; None: the default."""
    try:
        has_space = shutil.disk_usage(_MEMORY).free >= _MIN_FREE_BYTES
    except OSError:
        return None
    return _MEMORY if has_space and os.access(_MEMORY, os.W_OK) else None


def _remove_contents(folder: Path) -> None:
    for item in folder.iterdir():
        if item.is_dir() and not item.is_symlink():
            shutil.rmtree(item)
        else:
            item.unlink()


def _stop_process(process: subprocess.Popen[bytes]) -> None:
    """Stop a process that leads a process group; after a timeout, kill the group."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(_STOP_TIMEOUT_S)


def _remove_group(folder: Path) -> None:
    """Remove a cgroup. A process stays in it for a moment after its end."""
    deadline_s = time.monotonic() + _STOP_TIMEOUT_S
    while True:
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_POLL_S)
