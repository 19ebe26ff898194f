"""Users and groups of this host, by name and number; None for those it does not have."""

from __future__ import annotations

import grp
import os
import pwd
from contextlib import suppress


def user_name(uid: int) -> str | None:
    """Name of a user."""
    # The kernel may report a number that the C library does not accept.
    with suppress(KeyError, OverflowError):
        return pwd.getpwuid(uid).pw_name
    return None


def group_name(gid: int) -> str | None:
    """Name of a group."""
    with suppress(KeyError, OverflowError):
        return grp.getgrgid(gid).gr_name
    return None


def user_id(name: str) -> int | None:
    """Number of a user."""
    with suppress(KeyError):
        return pwd.getpwnam(name).pw_uid
    return None


def group_id(name: str) -> int | None:
    """Number of a group."""
    with suppress(KeyError):
        return grp.getgrnam(name).gr_gid
    return None


def groups_of(uid: int, gid: int) -> frozenset[int]:
    """Numbers of the groups that the group database lists for a user, and `gid`."""
    name = user_name(uid)
    return frozenset({gid, *(os.getgrouplist(name, gid) if name is not None else ())})
