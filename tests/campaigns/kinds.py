"""All campaigns."""

from __future__ import annotations

from functools import partial

from .daemon_kill import daemon_kill
from .damage import damage
from .faults import Round
from .front_ends import nbd_disks, nvme_disks, vhost_user_disks
from .guest_kill import guest_kill
from .power_loss import power_loss
from .resources import resources
from .server_kill import server_kill

KINDS: dict[str, Round] = {
    "daemon-kill": daemon_kill,
    "damage": damage,
    "guest-kill": guest_kill,
    "power-loss": power_loss,
    "resources": resources,
    "server-kill": server_kill,
    "server-kill-nbd": partial(server_kill, connect=nbd_disks),
    "server-kill-nvme-tcp": partial(server_kill, connect=nvme_disks),
    "server-kill-vhost-user": partial(server_kill, connect=vhost_user_disks),
}
