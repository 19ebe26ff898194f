"""Listening sockets of a served device: made here, handed to nbdkit."""

from __future__ import annotations

import errno
import grp
import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from slo_ctl.device.places import check_socket_path
from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from slo_ctl.device.places import RunPlaces

GROUP = "slo-ctl"
OWNER_ONLY, OWNER_AND_GROUP = 0o600, 0o660
_BACKLOG = 128


@contextmanager
def listening(
    run: RunPlaces, namespaces: Sequence[str], group: str | None
) -> Iterator[tuple[list[socket.socket], socket.socket]]:
    """Open the NBD sockets (all exports first, then one for each namespace) and the control socket.

    Exports belong to `group` where one is given; they and the control socket to the group slo-ctl otherwise,
    where there is one. A socket that nobody listens on any more makes way. All are removed in the end.
    Raises UserError when a socket cannot be made or somebody listens on it.
    """
    own = _group_id(GROUP)
    exports = own if group is None else _named_group_id(group)
    wanted = [
        (run.all_exports, OWNER_ONLY, None),
        *((run.export(namespace), OWNER_AND_GROUP, exports) for namespace in namespaces),
        (run.control, OWNER_AND_GROUP, own),
    ]
    for path, _, _ in wanted:
        check_socket_path(path)
    _make_folders(run)
    opened: list[tuple[Path, socket.socket]] = []
    try:
        for path, mode, owner in wanted:
            opened.append((path, _listen(path, mode, owner)))
        *nbd, control = (each for _, each in opened)
        yield nbd, control
    finally:
        for path, each in opened:
            path.unlink(missing_ok=True)
            each.close()


def _make_folders(run: RunPlaces) -> None:
    try:
        run.exports.mkdir(parents=True, exist_ok=True, mode=0o755)
    except OSError as error:
        raise UserError(
            f"cannot create {run.exports}: {error.strerror}", "see --root, or run as root"
        ) from None


def _listen(path: Path, mode: int, group: int | None) -> socket.socket:
    _make_way(path)
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # On Linux the file has the mode of the descriptor from its first moment.
        os.fchmod(opened.fileno(), mode)
        opened.bind(str(path))
        path.chmod(mode)
        if group is not None:
            os.chown(path, -1, group)
        opened.listen(_BACKLOG)
    except OSError as error:
        opened.close()
        raise UserError(f"cannot listen on {path}: {error.strerror}", "see --root, or run as root") from None
    return opened


def _make_way(path: Path) -> None:
    """Remove a socket left behind by a server that is no more."""
    if not path.is_socket():
        if path.exists():
            raise UserError(f"{path} is there and is no socket", "move it away")
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError as error:
            if error.errno != errno.ECONNREFUSED:
                raise UserError(f"{path}: {error.strerror}", "remove it if nothing uses it") from None
        else:
            raise UserError(f"somebody listens on {path}", "stop that program, or use another --root")
    path.unlink(missing_ok=True)


def _group_id(name: str) -> int | None:
    """The group's number when there is such a group and this process may give files to it."""
    try:
        number = grp.getgrnam(name).gr_gid
    except KeyError:
        return None
    return number if os.geteuid() == 0 or number in (os.getegid(), *os.getgroups()) else None


def _named_group_id(name: str) -> int:
    number = _group_id(name)
    if number is None:
        raise UserError(
            f"--group: there is no group {name} that sockets can be given to", "see `getent group`"
        )
    return number
