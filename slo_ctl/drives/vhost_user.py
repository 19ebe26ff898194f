"""Where VMs reach a served device over vhost-user: one listening Unix socket for each namespace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from slo_ctl.base.errors import UserError
from slo_ctl.drives.record import RunPlaces
from slo_ctl.drives.serving import GROUP, OWNER_AND_GROUP, NamespaceSockets
from slo_ctl.host.sockets import group_id


@contextmanager
def listening_for_vhost_user(
    run: RunPlaces, namespaces: Sequence[str], group: str | None
) -> Iterator[NamespaceSockets]:
    """Open the sockets, which belong to the same group as those of NBD; removed in the end.

    Raises UserError when a socket cannot be made or another process listens on it.
    """
    sockets = NamespaceSockets(run.vhost_user_socket, OWNER_AND_GROUP, group_id(group or GROUP))
    try:
        run.vhost_user.mkdir(parents=True, exist_ok=True, mode=0o755)
    except OSError as error:
        raise UserError(
            f"cannot create {run.vhost_user}: {error.strerror}", "see --root, or run as root"
        ) from None
    try:
        for namespace in namespaces:
            sockets.open(namespace)
        yield sockets
    finally:
        sockets.close_all()
