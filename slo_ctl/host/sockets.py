"""Listening Unix sockets with mode and group; addresses of TCP."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from slo_ctl.base.accounts import group_id
from slo_ctl.base.errors import UserError
from slo_ctl.base.files import hint_for

GROUP = "slo-ctl"
"""Group with access to the sockets of the daemon and of served devices, unless others are configured."""
_BACKLOG = 128
_MAX_SOCKET_PATH_BYTES = 107
"""Length limit of `struct sockaddr_un` with its final NUL."""


def check_socket_path(path: Path) -> None:
    """Raise UserError when the path is too long for a socket."""
    length = len(os.fsencode(path))
    if length > _MAX_SOCKET_PATH_BYTES:
        raise UserError(
            f"{path}: {length} bytes are too long for a socket path (at most {_MAX_SOCKET_PATH_BYTES})",
            "choose a shorter --root or shorter names",
        )


_HINT = "run as root, or use another directory with --root"
_INCOMPLETE_MODE = stat.S_IWUSR
"""Mode of a socket until it has its group and accepts connections; its owner can remove a stale one."""


def make_socket_folder(folder: Path) -> None:
    """Create a directory for sockets, and its parents; the mode of each socket limits access.

    What root creates can be entered by all users, also with the umask 077 of many a root: QEMU, which runs
    as another user, could not connect otherwise. Raises UserError when it cannot be created.
    """
    try:
        for each in reversed((folder, *folder.parents)):
            if not each.exists() and _is_made(each) and os.geteuid() == 0:
                each.chmod(0o755)
    except OSError as error:
        raise UserError(f"cannot create {folder}: {error.strerror}", hint_for(error, _HINT)) from None


def _is_made(folder: Path) -> bool:
    """Create a directory; False if another process has just created it."""
    try:
        folder.mkdir(mode=0o755)
    except FileExistsError:
        return False
    return True


def listen(path: Path, mode: int, group: int | None) -> socket.socket:
    """A listening socket at `path`, in an existing directory; `group` is the number of its group.

    Replaces a socket file without a listener. Raises UserError when the socket cannot be created or another
    process listens on it.
    """
    check_socket_path(path)
    _remove_stale_socket(path)
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # On Linux the file is created with the mode of the descriptor.
        os.fchmod(opened.fileno(), _INCOMPLETE_MODE)
        opened.bind(str(path))
        if group is not None and path.stat().st_gid != group:
            # A service whose own group it is needs no privilege to change the group.
            os.chown(path, -1, group)
        opened.listen(_BACKLOG)
        path.chmod(mode)
    except OSError as error:
        opened.close()
        raise UserError(f"cannot listen on {path}: {error.strerror}", hint_for(error, _HINT)) from None
    return opened


def is_listening(path: Path) -> bool:
    """Whether `listen` has completed for a socket at `path`."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISSOCK(mode) and stat.S_IMODE(mode) != _INCOMPLETE_MODE


def _remove_stale_socket(path: Path) -> None:
    """Remove a socket left behind by a server that no longer exists."""
    if not path.is_socket():
        if path.exists():
            raise UserError(f"{path} exists and is not a socket", "move it away")
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A listener that accepts nobody has connections waiting.
        probe.setblocking(False)
        try:
            with suppress(BlockingIOError):
                probe.connect(str(path))
        except OSError as error:
            if error.errno != errno.ECONNREFUSED:
                raise UserError(f"{path}: {error.strerror}", "remove it if nothing uses it") from None
        else:
            raise UserError(f"address already in use: {path}", "stop that program, or use another --root")
    path.unlink(missing_ok=True)


def own_group_id(name: str) -> int | None:
    """The number of a group; None if it does not exist or this process may not give files to it."""
    number = group_id(name)
    return number if os.geteuid() == 0 or number in (os.getegid(), *os.getgroups()) else None


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of a valid `HOST:PORT`, in which an IPv6 address is in brackets."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether it is a loopback address (not a name)."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
