"""Paths of emulated devices and their sockets."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from slo_ctl.base.errors import UserError


@dataclass(frozen=True, slots=True)
class RunPlaces:
    """Paths of the sockets of one device, which exist while it is served."""

    folder: Path

    @property
    def all_exports(self) -> Path:
        """NBD socket of all namespaces, for the owner only."""
        return self.folder / "all.sock"

    @property
    def exports(self) -> Path:
        """Directory of the sockets that the next method returns."""
        return self.folder / "exports"

    def export(self, namespace: str) -> Path:
        """NBD socket of one namespace."""
        return self.exports / f"{namespace}.sock"

    @property
    def vhost_user(self) -> Path:
        """Directory of the sockets that the next method returns."""
        return self.folder / "vhost-user"

    def vhost_user_socket(self, namespace: str) -> Path:
        """vhost-user socket of one namespace."""
        return self.vhost_user / f"{namespace}.sock"

    @property
    def control(self) -> Path:
        """Control socket."""
        return self.folder / "control.sock"

    @property
    def pid_file(self) -> Path:
        """PID file, which the server writes when it is ready."""
        return self.folder / "server.pid"


@dataclass(frozen=True, slots=True)
class Places:
    """Root directories."""

    state: Path
    """Persistent files."""
    run: Path
    """Files that need not survive a reboot, such as sockets."""

    @property
    def devices(self) -> Path:
        """Directory of all devices."""
        return self.state / "devices"

    def device(self, name: str) -> Path:
        """Directory of one device."""
        return self.devices / name

    def run_of(self, name: str) -> RunPlaces:
        """The sockets of one device."""
        return RunPlaces(self.run / name)


def places(root: Path | None = None) -> Places:
    """Paths below `root`; None: in the directories of the system for root, and of the user otherwise.

    Raises UserError if `root` is not a directory.
    """
    if root is not None:
        if root.exists() and not root.is_dir():
            raise UserError(f"--root: {root} is not a directory", "name another directory with --root")
        root = root.absolute()
        return Places(state=root, run=root / "run")
    if os.geteuid() == 0:
        return Places(state=Path("/var/lib/slo-ctl"), run=Path("/run/slo-ctl/devices"))
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "slo-ctl"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Places(state=state, run=Path(runtime) / "slo-ctl" / "devices" if runtime else state / "run")
