"""Paths of emulated devices and their sockets."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from slo_ctl.base.errors import UserError
from slo_ctl.model.host import Tenant

_VHOST_USER = "vhost-user"
_EXPORT_FOLDERS = ("exports", _VHOST_USER)
_NBD_SCHEME = "nbd+unix:///"


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
        return self.folder / _VHOST_USER

    def vhost_user_socket(self, namespace: str) -> Path:
        return self.vhost_user / f"{namespace}.sock"

    @property
    def control(self) -> Path:
        return self.folder / "control.sock"

    @property
    def pid_file(self) -> Path:
        """PID file, which the server writes when it is ready."""
        return self.folder / "server.pid"


class ExportPaths:
    """Sockets of emulated SSDs, in a directory that has a directory for each device:
    `DEVICE/exports/NAMESPACE.sock` (NBD) and `DEVICE/vhost-user/NAMESPACE.sock`."""

    def __init__(self, run: Path) -> None:
        # A path may be given with symbolic links, or without.
        self._folders = {os.fsencode(str(run)) + b"/", os.fsencode(os.path.realpath(run)) + b"/"}

    def is_export(self, path: bytes) -> bool:
        """Whether this is the socket of one namespace."""
        return self._parts(path)[1:2] in ([folder] for folder in _EXPORT_FOLDERS)

    def tenant_of(self, path: bytes, export: str = "") -> Tenant | None:
        """The namespace behind a socket; on the socket of all namespaces, the one named `export`."""
        match self._parts(path):
            case [device, folder, name] if folder in _EXPORT_FOLDERS and name.endswith(".sock"):
                return Tenant(device, name.removesuffix(".sock"))
            case [device, "all.sock"] if export:
                return Tenant(device, export)
        return None

    def tenant_of_source(self, source: str | None) -> Tenant | None:
        """The namespace behind a disk, by its `Disk.source`."""
        if source is not None and source.startswith("/"):
            socket = os.path.normpath(os.fsencode(source))
            return self.tenant_of(socket) if self._parts(socket)[1:2] == [_VHOST_USER] else None
        if source is None or not source.startswith(_NBD_SCHEME):
            return None
        export, _, path = source.removeprefix(_NBD_SCHEME).partition("?socket=")
        return self.tenant_of(os.path.normpath(path.encode("utf-8", "surrogateescape")), export)

    def _parts(self, path: bytes) -> list[str]:
        for folder in self._folders:
            if path.startswith(folder):
                return path[len(folder) :].decode("utf-8", "surrogateescape").split("/")
        return []


@dataclass(frozen=True, slots=True)
class Places:
    """Root directories."""

    state: Path
    """Persistent files."""
    run: Path
    """Files that need not survive a reboot, such as sockets."""

    @property
    def devices(self) -> Path:
        return self.state / "devices"

    def device(self, name: str) -> Path:
        return self.devices / name

    def run_of(self, name: str) -> RunPlaces:
        """The sockets of one device."""
        return RunPlaces(self.run / name)


def user_folder(variable: str, usual: str) -> Path:
    """The user's directory for slo-ctl, below the one that `variable` names, else below `usual` at home."""
    if given := os.environ.get(variable):
        return Path(given) / "slo-ctl"
    try:
        home = Path.home()
    except RuntimeError:  # a user that the host does not know
        home = Path("/nonexistent")  # as that of `nobody`
    return home / usual / "slo-ctl"


def places(root: Path | None = None, *, system: bool | None = None) -> Places:
    """Paths below `root`; None: in the directories of the system for root, and of the user otherwise.

    `system`: whether in those of the system, whoever asks. Raises UserError if `root` is not a directory.
    """
    if root is not None:
        if (root.exists() or root.is_symlink()) and not root.is_dir():
            raise UserError(f"--root: {root} is not a directory", "name another directory with --root")
        root = root.absolute()
        return Places(state=root, run=root / "run")
    if os.geteuid() == 0 if system is None else system:
        return Places(state=Path("/var/lib/slo-ctl"), run=Path("/run/slo-ctl/devices"))
    state = user_folder("XDG_STATE_HOME", ".local/state")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Places(state=state, run=Path(runtime) / "slo-ctl" / "devices" if runtime else state / "run")
