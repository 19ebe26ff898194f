"""The user at the other end of a Unix socket, and the users and groups that an administrator names."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import re
import socket
import struct
from dataclasses import dataclass

EVERYONE = "*"
"""Names every user."""
_GROUP_MARK = "@"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\$?")

_CREDENTIALS = struct.Struct("=iII")
_SO_PEERGROUPS = getattr(socket, "SO_PEERGROUPS", 59)
_GID = struct.Struct("=I")
_MOST_BYTES = 1024
"""Python asks the kernel for no more."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A process as it was when it connected."""

    uid: int
    gids: frozenset[int]

    @property
    def name(self) -> str:
        """Name of the user, or `uid N` if it has none."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return f"uid {self.uid}"

    @property
    def entry(self) -> str:
        """What names this user in a list."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return str(self.uid)

    def is_named_by(self, entry: str) -> bool:
        """Whether `entry` is this user, a group of the process (`@NAME`), or everyone (`*`)."""
        if entry == EVERYONE:
            return True
        if entry.startswith(_GROUP_MARK):
            return _gid(entry.removeprefix(_GROUP_MARK)) in self.gids
        return _uid(entry) == self.uid


def peer_of(connection: socket.socket) -> Peer:
    """The process that connected, from SO_PEERCRED and SO_PEERGROUPS."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, gid = _CREDENTIALS.unpack(found)
    return Peer(uid, frozenset({gid, *_groups(connection, uid, gid)}))


def _groups(connection: socket.socket, uid: int, gid: int) -> list[int]:
    try:
        found = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_BYTES)
    except OSError as error:
        if error.errno != errno.ERANGE:
            return []
        # More groups than fit: those of the user in the database.
        try:
            return os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
        except KeyError:
            return []
    return [group for (group,) in _GID.iter_unpack(found)]


def is_entry(text: str) -> bool:
    """Whether it has the form of an entry: a user, a number of one, `@GROUP` or `*`."""
    return text == EVERYONE or _NAME.fullmatch(text.removeprefix(_GROUP_MARK)) is not None


def why_unknown(entry: str) -> str:
    """What completes "ENTRY ..." when there is no such user or group; empty if there is."""
    if entry == EVERYONE:
        return ""
    if entry.startswith(_GROUP_MARK):
        return "" if _gid(entry.removeprefix(_GROUP_MARK)) is not None else "is not a group of this host"
    return "" if _uid(entry) is not None else "is not a user of this host"


def _uid(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return int(name) if name.isascii() and name.isdecimal() else None


def _gid(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return int(name) if name.isascii() and name.isdecimal() else None
