"""Where emulated devices and their sockets are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from slo_ctl.base.errors import UserError


@dataclass(frozen=True, slots=True)
class RunPlaces:
    """Sockets of one device; there while it is served."""

    folder: Path

    @property
    def all_exports(self) -> Path:
        """NBD, every namespace; for the owner only."""
        return self.folder / "all.sock"

    @property
    def exports(self) -> Path:
        """Folder of the sockets below."""
        return self.folder / "exports"

    def export(self, namespace: str) -> Path:
        """NBD, this namespace only."""
        return self.exports / f"{namespace}.sock"

    @property
    def vhost_user(self) -> Path:
        """Folder of the sockets below."""
        return self.folder / "vhost-user"

    def vhost_user_socket(self, namespace: str) -> Path:
        """vhost-user, this namespace only."""
        return self.vhost_user / f"{namespace}.sock"

    @property
    def control(self) -> Path:
        """Control, JSON lines."""
        return self.folder / "control.sock"

    @property
    def pid_file(self) -> Path:
        """Written by the server when it is ready."""
        return self.folder / "server.pid"


@dataclass(frozen=True, slots=True)
class Places:
    """Roots of everything that is kept."""

    state: Path
    """Survives a boot."""
    run: Path
    """Does not need to."""

    @property
    def devices(self) -> Path:
        """Folder of all devices."""
        return self.state / "devices"

    def device(self, name: str) -> Path:
        """The folder of one device."""
        return self.devices / name

    def run_of(self, name: str) -> RunPlaces:
        """The sockets of one device."""
        return RunPlaces(self.run / name)


def places(root: Path | None = None) -> Places:
    """Below `root`, or where the system (for root) or the user's session has such things.

    Raises UserError for a root that is something else than a directory.
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
