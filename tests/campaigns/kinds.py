"""The campaigns there are."""

from __future__ import annotations

from .faults import Round
from .server_kill import server_kill

KINDS: dict[str, Round] = {"server-kill": server_kill}
