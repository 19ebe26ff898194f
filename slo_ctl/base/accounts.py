"""Users and groups of this host, the user at the other end of a Unix socket, and entries of access lists."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import re
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass

# By name and number; None for those that the host does not have.


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


# Clients and access lists.

EVERYONE = "*"
"""Entry for all users."""
_GROUP_MARK = "@"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\$?")

_CREDENTIALS = struct.Struct("=iII")
_SO_PEERGROUPS = getattr(socket, "SO_PEERGROUPS", 59)
_GID = struct.Struct("=I")
_MOST_BYTES = 1024
"""Largest buffer that Python allows."""


@dataclass(frozen=True, slots=True)
class Peer:
    """User and groups of a process, as the kernel checks them."""

    uid: int
    gids: frozenset[int]

    @property
    def name(self) -> str:
        """Name of the user, or `uid N` if it has none."""
        return user_name(self.uid) or f"uid {self.uid}"

    @property
    def entry(self) -> str:
        """The entry for this user in an access list."""
        return user_name(self.uid) or str(self.uid)

    def is_named_by(self, entry: str) -> bool:
        """Whether `entry` is this user, a group of the process (`@NAME`), or everyone (`*`)."""
        if entry == EVERYONE:
            return True
        if entry.startswith(_GROUP_MARK):
            return _gid(entry.removeprefix(_GROUP_MARK)) in self.gids
        return _uid(entry) == self.uid


def peer_of(connection: socket.socket) -> Peer:
    """The process that connected, from SO_PEERCRED and SO_PEERGROUPS."""
    uid, gid = ids_of_peer(connection)
    return Peer(uid, _groups(connection, uid, gid))


def ids_of_peer(connection: socket.socket) -> tuple[int, int]:
    """User and group of the process that connected. Never waits for the group database."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, gid = _CREDENTIALS.unpack(found)
    return uid, gid


def _groups(connection: socket.socket, uid: int, gid: int) -> frozenset[int]:
    try:
        found = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_BYTES)
    except OSError as error:
        # There are too many groups for the buffer: use those in the group database.
        return groups_of(uid, gid) if error.errno == errno.ERANGE else frozenset({gid})
    return frozenset({gid, *(group for (group,) in _GID.iter_unpack(found))})


def is_entry(text: str) -> bool:
    """Whether the text has the form of an entry: a user name or number, `@GROUP` or `*`."""
    return text == EVERYONE or _NAME.fullmatch(text.removeprefix(_GROUP_MARK)) is not None


def why_unknown(entry: str) -> str:
    """Completes the sentence "ENTRY ..." if the user or group does not exist; empty if it exists."""
    if entry == EVERYONE:
        return ""
    if entry.startswith(_GROUP_MARK):
        return "" if _gid(entry.removeprefix(_GROUP_MARK)) is not None else "is not a group of this host"
    return "" if _uid(entry) is not None else "is not a user of this host"


def _uid(text: str) -> int | None:
    found = user_id(text)
    return _number(text) if found is None else found


def _gid(text: str) -> int | None:
    found = group_id(text)
    return _number(text) if found is None else found


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() else None
