"""Paths of the daemon's files and sockets, and its locks."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from slo_ctl.base.errors import UserError
from slo_ctl.base.files import check_trusted, hint_for, open_lock, try_lock
from slo_ctl.base.text import root_option
from slo_ctl.drives.places import Places, places, user_folder
from slo_ctl.host.sockets import make_socket_folder
from slo_ctl.model.host import DeviceNumber


@dataclass(init=False)
class DaemonPlaces:
    """In `root`; without it, in the directories of the system (for root) or of the user's session."""

    config: Path
    """Directory with `slo-ctl.toml` and `conf.d/`."""
    state: Path
    """Directory of files that persist across boots."""
    run: Path
    """Directory of sockets and locks."""
    devices: Places
    """Files of the emulated devices."""

    def __init__(
        self, root: Path | None = None, config: Path | None = None, *, system: bool | None = None
    ) -> None:
        """`config`: directory of the configuration, if another one than usual. `system`: as for `places`."""
        system = os.geteuid() == 0 if system is None else system
        devices = places(root, system=system)
        if root is not None:
            usual_config = root.absolute()
            run = usual_config / "run"
        elif system:
            usual_config, run = Path("/etc/slo-ctl"), Path("/run/slo-ctl")
        else:
            usual_config = user_folder("XDG_CONFIG_HOME", ".config")
            runtime = os.environ.get("XDG_RUNTIME_DIR")
            run = Path(runtime) / "slo-ctl" if runtime else devices.run
        self.config = usual_config if config is None else config.absolute()
        self.state, self.run, self.devices = devices.state, run, devices
        self._root_option = root_option(None if root is None else root.absolute())

    @classmethod
    def in_use(cls, root: Path | None = None, config: Path | None = None) -> DaemonPlaces:
        """Those of the daemon that commands of this user ask, and whose files they read.

        Of a user without a running daemon it is that of the system, if it runs. If neither runs it is the
        user's, if the user has a configuration: the directory of the system's sockets is also there for
        emulated drives and for locks of block devices.
        """
        own = cls(root, config)
        if root is None and os.geteuid() != 0 and not own.api_socket.exists():
            of_system = cls(config=config, system=True)
            if os.access(of_system.api_socket, os.F_OK) or (
                of_system.run.is_dir() and not own.config.exists()
            ):
                return of_system
        return own

    def to_serve(self, device: str) -> str:
        """The command that serves an emulated device, for messages."""
        return f"`slo-ctl device serve {device}{self._root_option}`"

    @property
    def slos(self) -> Path:
        """SLOs of `slo-ctl vm set`."""
        return self.state / "slos.json"

    @property
    def mappings(self) -> Path:
        """VMs on namespaces of NVMe drives, with the progress of their mapping."""
        return self.state / "mappings.json"

    @property
    def journal(self) -> Path:
        """Settings that were changed on the host, with their original values."""
        return self.state / "journal.json"

    @property
    def history(self) -> Path:
        """History of samples, decisions and verdicts."""
        return self.state / "history.db"

    @property
    def api_socket(self) -> Path:
        """Socket of the API, for the owner and one group."""
        return self.run / "api.sock"

    @property
    def lock(self) -> Path:
        return self.run / "daemon.lock"


_MAX_PID_BYTES = 32
_MODE, _CLAIM_MODE = 0o644, 0o600


def _sign(lock: int) -> None:
    """Write the process ID to a lock that this process holds."""
    # Only for messages: a full disk must not keep `apply --undo` from restoring settings.
    with suppress(OSError):
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def _holder(lock: int) -> str:
    """The process that holds a lock, such as `PID 42`."""
    holder = os.pread(lock, _MAX_PID_BYTES, 0).decode("ascii", "replace").strip()
    return f"PID {holder or 'unknown, still starting'}"


def _locked_by_other(lock: int) -> str:
    """Lock and sign an open file; if another process has locked it, close it and return that process."""
    if try_lock(lock):
        _sign(lock)
        return ""
    holder = _holder(lock)
    os.close(lock)
    return holder


def daemon_of(path: Path) -> str:
    """The process that holds the lock at `path`, or held it last; empty if there was none."""
    try:
        lock = open_lock(path, "run as root", flags=os.O_RDWR)
    except (OSError, UserError):
        return ""
    try:
        return _holder(lock)
    finally:
        os.close(lock)


class DaemonLock:
    """A lock of a running daemon."""

    def __init__(self, path: Path, descriptor: int, mode: int) -> None:
        """`descriptor`: of the locked file, closed with this. `mode`: of the file, if it is created again."""
        self._path = path
        self._descriptor = descriptor
        self._mode = mode

    def restore(self) -> str:
        """Lock the path again if the file there was removed.

        Returns the process that has locked it meanwhile, else an empty string.
        """
        try:
            if os.path.samestat(self._path.stat(), os.fstat(self._descriptor)):
                return ""
        except OSError:
            pass  # it is missing
        try:
            make_socket_folder(self._path.parent)
            lock = open_lock(self._path, "run as root", mode=self._mode)
        except (OSError, UserError):
            return ""  # tried again later
        if holder := _locked_by_other(lock):
            return holder
        self.close()
        self._descriptor = lock
        return ""

    def close(self) -> None:
        """Release it. The file stays, because another daemon could then lock a new file of the same name."""
        os.close(self._descriptor)


@contextmanager
def only_daemon(
    path: Path, while_running: str = "`slo-ctl status` queries it; stop it first, or use another directory"
) -> Iterator[DaemonLock]:
    """Hold the lock at `path`, and write the process ID to it.

    Raises UserError if another process, which it names, holds the lock (hint: `while_running`), or if the
    file cannot be created or another user could replace it.
    """
    check_trusted(path.parent)
    make_socket_folder(path.parent)
    hint = "run as root, or use another directory with --root"
    try:
        descriptor = open_lock(path, hint, mode=_MODE)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", hint_for(error, hint)) from None
    lock = DaemonLock(path, descriptor, _MODE)
    try:
        if not try_lock(descriptor):
            raise UserError(f"daemon already running ({_holder(descriptor)})", while_running)
        _sign(descriptor)
        yield lock
    finally:
        lock.close()


class DeviceClaims:
    """Locks of the block devices that this daemon sets, whatever its directory.

    Two daemons would take the settings of each other for the original ones. A daemon that may not write to
    `folder` claims nothing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[DeviceNumber, DaemonLock] = {}

    def take(self, number: DeviceNumber) -> str:
        """Claim a device. Returns the process that has claimed it, else an empty string."""
        if number in self._held:
            return self._held[number].restore()
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o755)
            lock = open_lock(self._path(number), "run as root", mode=_CLAIM_MODE)
        except (OSError, UserError):
            return ""
        if holder := _locked_by_other(lock):
            return holder
        self._held[number] = DaemonLock(self._path(number), lock, _CLAIM_MODE)
        return ""

    def holder(self, number: DeviceNumber) -> str:
        """The other process that has claimed a device, if it is known, without claiming it."""
        try:
            lock = open_lock(self._path(number), "run as root", flags=os.O_RDWR)
        except (OSError, UserError):
            return ""
        try:
            # Shared and for a moment: two that only look do not see each other.
            return "" if try_lock(lock, fcntl.LOCK_SH) else _holder(lock)
        finally:
            os.close(lock)

    def _path(self, number: DeviceNumber) -> Path:
        return self._folder / f"block-{number}.lock"

    def keep(self, numbers: Collection[DeviceNumber]) -> None:
        """Release all other devices."""
        for number in self._held.keys() - set(numbers):
            self._held.pop(number).close()
