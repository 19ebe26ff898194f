"""Where the daemon's files and sockets are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slo_ctl.base.errors import UserError
from slo_ctl.base.files import check_trusted, open_lock, try_lock
from slo_ctl.drives.places import Places, places


@dataclass(frozen=True, slots=True, init=False)
class DaemonPlaces:
    """Below `root`, or where the system (for root) or the user's session has such things."""

    config: Path
    """Folder with `slo-ctl.toml` and `conf.d/`."""
    state: Path
    """Survives a boot."""
    run: Path
    """Does not need to."""
    devices: Places
    """Files of the emulated devices."""

    def __init__(self, root: Path | None = None, config: Path | None = None) -> None:
        """`config` is the directory to read the configuration from instead."""
        devices = places(root)
        if root is not None:
            own = root.absolute()
            run = own / "run"
        elif os.geteuid() == 0:
            own, run = Path("/etc/slo-ctl"), Path("/run/slo-ctl")
        else:
            own = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "slo-ctl"
            runtime = os.environ.get("XDG_RUNTIME_DIR")
            run = Path(runtime) / "slo-ctl" if runtime else devices.run
        object.__setattr__(self, "config", own if config is None else config.absolute())
        object.__setattr__(self, "state", devices.state)
        object.__setattr__(self, "run", run)
        object.__setattr__(self, "devices", devices)

    @property
    def slos(self) -> Path:
        """SLOs given with `slo-ctl vm set`."""
        return self.state / "promises.json"

    @property
    def mappings(self) -> Path:
        """VMs on namespaces of NVMe drives, and how far each was brought."""
        return self.state / "mappings.json"

    @property
    def journal(self) -> Path:
        """Settings changed on the host, with their original values."""
        return self.state / "journal.json"

    @property
    def history(self) -> Path:
        """Samples, decisions and verdicts of the past."""
        return self.state / "history.db"

    @property
    def api_socket(self) -> Path:
        """The API, for the owner and one group."""
        return self.run / "api.sock"

    @property
    def lock(self) -> Path:
        """Held by the one daemon that runs."""
        return self.run / "daemon.lock"


# One daemon at a time on one set of files.

_MAX_PID_BYTES = 32


@contextmanager
def only_daemon(path: Path) -> Iterator[None]:
    """Hold the lock at `path`, which has our process number in it.

    Raises UserError that names the process when another one holds it, or when the file cannot be made or is
    where another user could replace it.
    """
    check_trusted(path.parent)
    hint = "see --root, or run as root"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        descriptor = open_lock(path, hint, mode=0o644)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", hint) from None
    try:
        if not try_lock(descriptor):
            holder = os.pread(descriptor, _MAX_PID_BYTES, 0).decode("ascii", "replace").strip()
            raise UserError(
                f"daemon already running (PID {holder or 'unknown, still starting'})",
                "`slo-ctl status` queries it; stop it first, or use another directory",
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        # The file stays: removing it would let a third daemon lock another file of the same name.
        os.close(descriptor)
