"""Where VMs reach a served device over vhost-user: one listening Unix socket for each namespace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from slo_ctl.drives.record import RunPlaces
from slo_ctl.drives.serving import GROUP, OWNER_AND_GROUP, NamespaceSockets
from slo_ctl.host.sockets import group_id, make_socket_folder


@contextmanager
def listening_for_vhost_user(
    run: RunPlaces, namespaces: Sequence[str], group: str | None
) -> Iterator[NamespaceSockets]:
    """Open the sockets, which belong to the same group as those of NBD; removed in the end.

    Raises UserError when a socket cannot be made or another process listens on it.
    """
    sockets = NamespaceSockets(run.vhost_user_socket, OWNER_AND_GROUP, group_id(group or GROUP))
    make_socket_folder(run.vhost_user)
    try:
        for namespace in namespaces:
            sockets.open(namespace)
        yield sockets
    finally:
        sockets.close_all()
