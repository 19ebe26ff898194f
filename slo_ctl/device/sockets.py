"""Listening sockets of a served device: made here, handed to nbdkit."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from slo_ctl.device.activation import handed_sockets
from slo_ctl.device.places import check_socket_path
from slo_ctl.errors import UserError
from slo_ctl.unix_socket import group_id, listen

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from slo_ctl.device.places import RunPlaces

GROUP = "slo-ctl"
OWNER_ONLY, OWNER_AND_GROUP = 0o600, 0o660


@contextmanager
def listening(
    run: RunPlaces, namespaces: Sequence[str], group: str | None
) -> Iterator[tuple[list[socket.socket], socket.socket]]:
    """Open the NBD sockets (all exports first, then one for each namespace) and the control socket.

    Exports belong to `group` where one is given; they and the control socket to the group slo-ctl otherwise,
    where there is one. A socket that nobody listens on any more makes way. All are removed in the end.
    Sockets that systemd has opened at any of these paths are taken as they are, and stay.
    Raises UserError when a socket cannot be made or somebody listens on it.
    """
    handed = handed_sockets()
    own = group_id(GROUP)
    exports = own if group is None else _named_group_id(group)
    wanted = [
        (run.all_exports, OWNER_ONLY, None),
        *((run.export(namespace), OWNER_AND_GROUP, exports) for namespace in namespaces),
        (run.control, OWNER_AND_GROUP, own),
    ]
    _refuse_others(handed, [path for path, _, _ in wanted])
    for path, _, _ in wanted:
        check_socket_path(path)
    _make_folders(run)
    opened: list[tuple[Path, socket.socket]] = []
    try:
        for path, mode, owner in wanted:
            opened.append((path, handed.get(path) or listen(path, mode, owner)))
        *nbd, control = (each for _, each in opened)
        yield nbd, control
    finally:
        for path, each in opened:
            if path not in handed:
                path.unlink(missing_ok=True)
            each.close()


def _refuse_others(handed: Iterable[Path], wanted: Sequence[Path]) -> None:
    for path in handed:
        if path not in wanted:
            raise UserError(
                f"{path} was handed over by the activation, but is no socket of this device",
                f"it has {', '.join(map(str, wanted))}",
            )


def _make_folders(run: RunPlaces) -> None:
    try:
        run.exports.mkdir(parents=True, exist_ok=True, mode=0o755)
    except OSError as error:
        raise UserError(
            f"cannot create {run.exports}: {error.strerror}", "see --root, or run as root"
        ) from None


def _named_group_id(name: str) -> int:
    number = group_id(name)
    if number is None:
        raise UserError(
            f"--group: there is no group {name} that sockets can be given to", "see `getent group`"
        )
    return number
