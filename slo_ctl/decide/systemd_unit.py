"""Which unit of systemd a cgroup belongs to, by its path alone: pure."""

from __future__ import annotations

import re
from functools import lru_cache

_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,240}\.(?:scope|service|slice)", re.ASCII)
"""What systemd allows in the name of a unit."""
_USER_MANAGER = re.compile(r"user@\d{1,10}\.service", re.ASCII)


@lru_cache(maxsize=4096)
def unit_of(cgroup: str) -> str | None:
    """The unit whose group, named as in /proc/PID/cgroup, this is; None for any other group.

    Groups inside of a unit are not its own: systemd left those to whom it delegated them. Units of a user's
    own systemd are unknown to the system's.
    """
    *above, last = cgroup.strip("/").split("/")
    if any(_USER_MANAGER.fullmatch(part) for part in above):
        return None
    # Names that look like files of the kernel are given an underscore.
    name = last.removeprefix("_")
    return name if _UNIT.fullmatch(name) else None
