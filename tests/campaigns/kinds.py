"""The campaigns there are."""

from __future__ import annotations

from .daemon_kill import daemon_kill
from .damage import damage
from .faults import Round
from .power_loss import power_loss
from .resources import resources
from .server_kill import server_kill

KINDS: dict[str, Round] = {
    "daemon-kill": daemon_kill,
    "damage": damage,
    "power-loss": power_loss,
    "resources": resources,
    "server-kill": server_kill,
}
