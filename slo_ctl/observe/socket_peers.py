"""Which processes are connected to which Unix sockets, asked of the kernel (sock_diag).

The raw messages are read here: pyroute2 takes 30 us for each socket of the host, and fails where any
program has bound a name that is no UTF-8.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slo_ctl.observe.bounded_file import read_bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from slo_ctl.observe.cgroup import CgroupTree

_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_DONE, _ERROR = 3, 2
_REQUEST, _DUMP = 0x1, 0x300
_ESTABLISHED = 1 << 1
_SHOW_NAME, _SHOW_PEER = 0x1, 0x4
_ATTRIBUTE_NAME, _ATTRIBUTE_PEER = 0, 2
_TIMEOUT_S = 1.0
_BUFFER_BYTES = 1 << 16

_HEADER = struct.Struct("=IHHII")
_UNIX_REQUEST = struct.Struct("=BBHIIIII")
_UNIX_REPLY = struct.Struct("=BBBBIII")
_ATTRIBUTE = struct.Struct("=HH")
_PEER = struct.Struct("=I")

MAX_DEPTH = 4
"""How deep a VM's groups are looked through for processes."""
_RESCAN_S = 10.0
"""A process that was moved to another cgroup is noticed after so long."""


def connections(wanted: Callable[[bytes], bool]) -> dict[int, bytes]:
    """Inode of the client's end, and path of the server's, of each connection to a socket with a wanted path.

    Raises OSError where the kernel does not tell.
    """
    found: dict[int, bytes] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as netlink:
        netlink.settimeout(_TIMEOUT_S)
        request = _UNIX_REQUEST.pack(
            socket.AF_UNIX, 0, 0, _ESTABLISHED, 0, _SHOW_NAME | _SHOW_PEER, 0xFFFFFFFF, 0xFFFFFFFF
        )
        header = _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _REQUEST | _DUMP, 1, 0)
        netlink.sendto(header + request, (0, 0))
        while True:
            data = netlink.recv(_BUFFER_BYTES)
            for kind, body in messages(data):
                if kind == _DONE:
                    return found
                if kind == _ERROR:
                    number = -struct.unpack_from("=i", body)[0]
                    raise OSError(number, os.strerror(number))
                path, peer = name_and_peer(body)
                if path and peer and wanted(path):
                    found[peer] = path


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and body of each netlink message in a datagram; what is cut off is left out."""
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size or offset + length > len(data):
            return
        yield kind, data[offset + _HEADER.size : offset + length]
        offset += (length + 3) & ~3


def name_and_peer(body: bytes) -> tuple[bytes, int]:
    """Path and the inode of the peer from a `unix_diag_msg`; empty and 0 where it has none."""
    path, peer = b"", 0
    offset = _UNIX_REPLY.size
    while offset + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, offset)
        if length < _ATTRIBUTE.size or offset + length > len(body):
            break
        if kind == _ATTRIBUTE_NAME:
            path = body[offset + _ATTRIBUTE.size : offset + length].rstrip(b"\0")
        elif kind == _ATTRIBUTE_PEER and length >= _ATTRIBUTE.size + _PEER.size:
            peer = _PEER.unpack_from(body, offset + _ATTRIBUTE.size)[0]
        offset += (length + 3) & ~3
    return path, peer


def processes_in(tree: CgroupTree, cgroup: str) -> list[str]:
    """Process numbers in a group and those inside it; what cannot be read is left out."""
    found: list[str] = []
    waiting = [(str(tree.folder(cgroup)), 0)]
    while waiting:
        folder, depth = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                inner = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            procs = read_bounded(f"{folder}/cgroup.procs")
        except OSError:
            # Gone, or threaded: such a group's processes are listed further up.
            continue
        found += procs.text.split() if procs else []
        if depth < MAX_DEPTH:
            waiting += [(path, depth + 1) for path in inner]
    return found


def sockets_of(proc: Path, pid: str) -> Iterator[int]:
    """Inodes of the sockets a process has open; none when it is gone or may not be looked at."""
    folder = f"{proc}/{pid}/fd"
    try:
        names = os.listdir(folder)  # noqa: PTH208 - a Path for each descriptor costs more than reading it
    except OSError:
        return
    for name in names:
        try:
            target = os.readlink(f"{folder}/{name}")  # noqa: PTH115 - as above
        except OSError:
            continue
        if target.startswith("socket:["):
            yield int(target[8:-1])


@dataclass(frozen=True, slots=True)
class _Owner:
    cgroup: str
    path: bytes


class SocketPeers:
    """Which cgroup is connected to which socket, asked again only about connections that are new."""

    def __init__(
        self,
        proc: Path,
        ask: Callable[[Callable[[bytes], bool]], Mapping[int, bytes]] = connections,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc = proc
        self._ask = ask
        self._clock = clock
        self._owners: dict[int, _Owner] = {}
        self._nobodys: frozenset[int] = frozenset()
        self._scanned_at_s = -_RESCAN_S
        self._scanned: frozenset[str] = frozenset()

    def paths_of(
        self,
        tree: CgroupTree,
        cgroups: Iterable[str],
        wanted: Callable[[bytes], bool],
        *,
        changed: bool,
        note: Callable[[str], None],
    ) -> dict[str, set[bytes]]:
        """Paths of the sockets each of the cgroups is connected to. `changed`: processes came, went or began
        something else since the last call, so that connections of nobody may have become somebody's.
        """
        try:
            open_now = self._ask(wanted)
        except OSError as error:
            note(f"connections of Unix sockets are not known: {error.strerror}; name namespaces= in [vm]")
            return {}
        groups = frozenset(cgroups)
        if groups != self._scanned or self._clock() - self._scanned_at_s >= _RESCAN_S:
            self._owners, self._nobodys = {}, frozenset()
            self._scanned, self._scanned_at_s = groups, self._clock()
        self._owners = {
            inode: owner for inode, owner in self._owners.items() if open_now.get(inode) == owner.path
        }
        missing = {inode for inode in open_now if inode not in self._owners}
        if missing and (changed or missing != self._nobodys):
            for inode, cgroup in self._find(tree, groups, missing):
                self._owners[inode] = _Owner(cgroup, open_now[inode])
        self._nobodys = frozenset(open_now) - self._owners.keys()
        found: dict[str, set[bytes]] = {}
        for owner in self._owners.values():
            found.setdefault(owner.cgroup, set()).add(owner.path)
        return found

    def _find(
        self, tree: CgroupTree, cgroups: Collection[str], inodes: Collection[int]
    ) -> Iterator[tuple[int, str]]:
        """The innermost of the cgroups that has each connection."""
        left = set(inodes)
        for cgroup in sorted(cgroups, key=len, reverse=True):
            for pid in processes_in(tree, cgroup):
                for inode in sockets_of(self._proc, pid):
                    if inode in left:
                        left.discard(inode)
                        yield inode, cgroup
                if not left:
                    return
