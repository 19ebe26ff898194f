"""Where VMs reach a served device over vhost-user: one listening Unix socket for each namespace."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from slo_ctl.base.errors import UserError
from slo_ctl.drives.record import RunPlaces
from slo_ctl.host.sockets import group_id, listen

_MODE = 0o660
_GROUP = "slo-ctl"


@contextmanager
def listening_for_vhost_user(
    run: RunPlaces, namespaces: Sequence[str], group: str | None
) -> Iterator[list[socket.socket]]:
    """Open the sockets, which belong to the same group as those of NBD; removed in the end.

    Raises UserError when a socket cannot be made or another process listens on it.
    """
    owner = group_id(group or _GROUP)
    try:
        run.vhost_user.mkdir(parents=True, exist_ok=True, mode=0o755)
    except OSError as error:
        raise UserError(
            f"cannot create {run.vhost_user}: {error.strerror}", "see --root, or run as root"
        ) from None
    opened: list[tuple[Path, socket.socket]] = []
    try:
        for namespace in namespaces:
            path = run.vhost_user_socket(namespace)
            opened.append((path, listen(path, _MODE, owner)))
        yield [each for _, each in opened]
    finally:
        for path, each in opened:
            path.unlink(missing_ok=True)
            each.close()
