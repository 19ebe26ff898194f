"""QEMU processes of VMs, processes connected to sockets, and events of processes and block devices."""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec, module_from_spec
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any

from slo_ctl.base.kernel_files import is_readable, read_bounded, read_text
from slo_ctl.host.cgroup import CgroupTree

_MAX_PIDS = 64
"""Largest number of processes of a group that are read; a VM has QEMU and a few helpers."""

_GROUPS_WITH_QEMU = ("", "libvirt", "libvirt/emulator", "emulator")


@dataclass(frozen=True, slots=True)
class QemuProcess:
    """Name and UUID of a VM on QEMU's command line; None if they are missing."""

    name: str | None
    uuid: str | None


def qemu_in(tree: CgroupTree, cgroup: str, proc: Path) -> QemuProcess | None:
    """The first QEMU process in a VM's group; None when there is none or its /proc files are unreadable."""
    for inner in _GROUPS_WITH_QEMU:
        # Threaded groups have no list of processes, and hidepid hides command lines. The VM is then
        # known only by the name of its cgroup.
        pids = read_text(tree.folder(cgroup) / inner / "cgroup.procs").split()
        for pid in [pid for pid in pids if pid.isascii() and pid.isdigit()][:_MAX_PIDS]:
            arguments = read_text(proc / pid / "cmdline").split("\0")
            if "qemu" in PurePath(arguments[0]).name:
                return identity(arguments)
    return None


def identity(arguments: list[str]) -> QemuProcess:
    """Name and UUID from QEMU's `-name` and `-uuid`."""
    name = _option_value(arguments, "name")
    return QemuProcess(None if name is None else _guest_name(name), _option_value(arguments, "uuid"))


def _option_value(arguments: list[str], option: str) -> str | None:
    for word, value in pairwise(arguments):
        if word in (f"-{option}", f"--{option}"):
            return value
    return None


def _guest_name(value: str) -> str | None:
    """The name in the value of `-name`: `a,b` for `guest=a,,b,debug-threads=on` and for `a,,b`."""
    for number, part in enumerate(value.replace(",,", "\0").split(",")):
        key, equals, text = part.partition("=")
        if equals and key == "guest":
            return text.replace("\0", ",")
        if number == 0 and not equals and part:
            return part.replace("\0", ",")
    return None


# Processes that are connected to Unix sockets, from the kernel (sock_diag).
#
# The messages are parsed here because pyroute2 takes 30 us for each socket of the host and fails if any
# program has bound a name that is not UTF-8.

_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_DONE, _ERROR = 3, 2
_REQUEST, _DUMP = 0x1, 0x300
_ESTABLISHED = 1 << 1
_SHOW_NAME, _SHOW_PEER = 0x1, 0x4
_ATTRIBUTE_NAME, _ATTRIBUTE_PEER = 0, 2
_TIMEOUT_S = 1.0
_BUFFER_BYTES = 1 << 15
"""The kernel sends no longer messages of a dump."""

_HEADER = struct.Struct("=IHHII")
_UNIX_REQUEST = struct.Struct("=BBHIIIII")
_UNIX_REPLY = struct.Struct("=BBBBIII")
_ATTRIBUTE = struct.Struct("=HH")
_PEER = struct.Struct("=I")

MAX_DEPTH = 4
"""Levels of a VM's groups that are searched for processes."""
_RESCAN_S = 10.0
"""Time until a process that was moved to another cgroup is noticed."""


def connections(wanted: Callable[[bytes], bool]) -> dict[int, bytes]:
    """Paths of sockets by the inode of the connected client, for each path that `wanted` selects.

    Raises OSError if the kernel does not report connections.
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
            for message_type, body in netlink_messages(data):
                if message_type == _DONE:
                    return found
                if message_type == _ERROR:
                    number = -struct.unpack_from("=i", body)[0]
                    raise OSError(number, os.strerror(number))
                path, peer = name_and_peer(body)
                if path and peer and wanted(path):
                    found[peer] = path


_TCP_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_TCP_ESTABLISHED = "01"


def tcp_connections(port: int) -> int:
    """Established connections to a TCP port of this host, in the network namespace of this process."""
    found = 0
    for table in _TCP_TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, *_ = line.split()
            found += state == _TCP_ESTABLISHED and int(local.rpartition(":")[2], 16) == port
    return found


def netlink_messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and body of each netlink message in a datagram; a truncated message is skipped."""
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, message_type, _, _, _ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size or offset + length > len(data):
            return
        yield message_type, data[offset + _HEADER.size : offset + length]
        offset += (length + 3) & ~3


def name_and_peer(body: bytes) -> tuple[bytes, int]:
    """Path of the socket and inode of the peer in a `unix_diag_msg`; empty and 0 if they are missing."""
    path, peer = b"", 0
    offset = _UNIX_REPLY.size
    while offset + _ATTRIBUTE.size <= len(body):
        length, attribute = _ATTRIBUTE.unpack_from(body, offset)
        if length < _ATTRIBUTE.size or offset + length > len(body):
            break
        if attribute == _ATTRIBUTE_NAME:
            path = body[offset + _ATTRIBUTE.size : offset + length].rstrip(b"\0")
        elif attribute == _ATTRIBUTE_PEER and length >= _ATTRIBUTE.size + _PEER.size:
            peer = _PEER.unpack_from(body, offset + _ATTRIBUTE.size)[0]
        offset += (length + 3) & ~3
    return path, peer


def processes_in(tree: CgroupTree, cgroup: str) -> list[str]:
    """PIDs in a group and in those inside it; unreadable groups are skipped."""
    found: list[str] = []
    waiting = [(str(tree.folder(cgroup)), 0)]
    while waiting:
        folder, depth = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                inner = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            procs = read_bounded(f"{folder}/cgroup.procs")
        except OSError:
            # Removed, or threaded: the parent lists the processes of a threaded group.
            continue
        found += procs.text.split() if procs else []
        if depth < MAX_DEPTH:
            waiting += [(path, depth + 1) for path in inner]
    return found


def sockets_of(proc: Path, pid: str) -> Iterator[int]:
    """Inodes of the open sockets of a process; empty when it ended or is unreadable."""
    folder = f"{proc}/{pid}/fd"
    try:
        names = os.listdir(folder)  # noqa: PTH208 - a Path for each descriptor is slower
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
    """Finds the cgroups connected to sockets; searches processes only for new connections."""

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
        self._without_owner: frozenset[int] = frozenset()
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
        """Paths of the sockets that each of the cgroups is connected to.

        `changed`: processes started, ended or called exec since the last call, so that connections without an
        owner may have one now.
        """
        try:
            open_connections = self._ask(wanted)
        except OSError as error:
            reason = error.strerror or error
            note(f"connections of Unix sockets are unknown: {reason}; name namespaces= in [vm]")
            return self._paths()
        groups = frozenset(cgroups)
        if groups != self._scanned or self._clock() - self._scanned_at_s >= _RESCAN_S:
            self._owners, self._without_owner = {}, frozenset()
            self._scanned, self._scanned_at_s = groups, self._clock()
        self._owners = {
            inode: owner for inode, owner in self._owners.items() if open_connections.get(inode) == owner.path
        }
        missing = {inode for inode in open_connections if inode not in self._owners}
        if missing and (changed or missing != self._without_owner):
            for inode, cgroup in self._find(tree, groups, missing):
                self._owners[inode] = _Owner(cgroup, open_connections[inode])
        self._without_owner = frozenset(open_connections) - self._owners.keys()
        return self._paths()

    def _paths(self) -> dict[str, set[bytes]]:
        """Those of the kernel's last answer: one that is late ends no connection."""
        found: dict[str, set[bytes]] = {}
        for owner in self._owners.values():
            found.setdefault(owner.cgroup, set()).add(owner.path)
        return found

    def _find(
        self, tree: CgroupTree, cgroups: Collection[str], inodes: Collection[int]
    ) -> Iterator[tuple[int, str]]:
        """Each inode with the innermost of the cgroups that has this socket open."""
        left = set(inodes)
        for cgroup in sorted(cgroups, key=len, reverse=True):
            for pid in processes_in(tree, cgroup):
                for inode in sockets_of(self._proc, pid):
                    if inode in left:
                        left.discard(inode)
                        yield inode, cgroup
                if not left:
                    return


# Events of processes and block devices, which only trigger a new scan.
#
# They may be unavailable (no privilege, container without this netlink protocol); then every epoch scans.

_KERNEL_GROUP = 1
_ANSWER_S = 0.5
_DATAGRAM_BYTES = 1 << 14
_MAX_DATAGRAMS = 256
"""Datagrams that are read at a time; with more of them, events count as lost."""
_PROCESS_BUFFER_BYTES = 1 << 14
"""Receive buffer; small, because an overflow is reported and counts as a change."""
_EVENT_OFFSET = 36
"""Offset of the type of event in a message of the process connector, after both headers."""
_FORK, _EXEC, _EXIT = 0x1, 0x2, 0x80000000
_INTERESTING = frozenset({_FORK, _EXEC, _EXIT})


class _Events:
    """Events on a netlink socket of pyroute2, if it could be opened."""

    _problem_format = ""
    """`problem` with the placeholder `{error}`."""

    def __init__(self, open_socket: Callable[[], Any]) -> None:
        self.problem = ""
        """Why there are no events; empty if there are."""
        self._socket: Any = None
        try:
            self._socket = open_socket()
        except Exception as error:  # noqa: BLE001, RUF100 - pyroute2 documents no exceptions
            self.problem = self._problem_format.format(error=error)

    def close(self) -> None:
        if self._socket is not None:
            with suppress(OSError):  # it is not used any more
                self._socket.close()
            self._socket = None


class ProcessEvents(_Events):
    """Events of processes that started, ended or called exec."""

    _problem_format = "no events of processes ({error}): every cgroup is scanned in every epoch"

    def __init__(self) -> None:
        super().__init__(_process_socket)

    def changed(self) -> bool:
        """Whether there were events since the last call; True if events are unavailable."""
        return self._socket is None or _drain(self._socket.fileno(), _is_interesting)


class BlockEvents(_Events):
    """Events of block devices that were added, removed or changed."""

    _problem_format = "no events of block devices ({error}): they are scanned every 30 s"

    def __init__(self) -> None:
        super().__init__(_block_socket)

    def changed(self) -> bool:
        """Whether there were events since the last call; False if events are unavailable."""
        return self._socket is not None and _drain(self._socket.fileno(), _is_block)


def _prepare_pyroute2() -> None:
    """Let its modules be imported without its `__init__`, which imports 165 of them: 8 MB."""
    if "pyroute2" not in sys.modules and (found := find_spec("pyroute2")):
        sys.modules["pyroute2"] = module_from_spec(found)


def _block_socket() -> Any:
    """A socket that receives uevents. Raises the exceptions of pyroute2."""
    _prepare_pyroute2()
    from pyroute2.netlink.nlsocket import NetlinkSocket
    from pyroute2.netlink.uevent import UeventSocket

    events = UeventSocket()
    try:
        # Its own `bind` takes no groups before pyroute2 0.9.
        NetlinkSocket.bind(events, groups=_KERNEL_GROUP)
    except BaseException:
        events.close()
        raise
    return events


def _process_socket() -> Any:
    """A socket of the process connector. Raises the exceptions of pyroute2, and OSError after a timeout."""
    _prepare_pyroute2()
    from pyroute2.netlink import NLMSG_DONE
    from pyroute2.netlink.connector import cn_proc

    events = cn_proc.ProcEventSocket()
    try:
        events.bind()
        # As `control` does, which would wait for an answer without a timeout.
        message = cn_proc.proc_event_control()
        message["header"]["type"] = NLMSG_DONE
        message["action"] = cn_proc.PROC_CN_MCAST_LISTEN
        message["idx"], message["val"] = cn_proc.CN_IDX_PROC, cn_proc.CN_VAL_PROC
        message["len"] = 4
        message.encode()
        os.write(events.fileno(), bytes(message.data))
        if not is_readable(events.fileno(), _ANSWER_S):
            raise OSError("the kernel sends this container no events")
        _limit_buffer(events.fileno())
    except BaseException:
        events.close()
        raise
    return events


def _limit_buffer(descriptor: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as view:
        view.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _PROCESS_BUFFER_BYTES)


def _drain(descriptor: int, interesting: Callable[[bytes], bool]) -> bool:
    """Read all queued datagrams; whether one of them was interesting or any was lost."""
    found = False
    with socket.socket(fileno=os.dup(descriptor)) as view:
        for _ in range(_MAX_DATAGRAMS):
            try:
                data = view.recv(_DATAGRAM_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return found
            except OSError:
                # ENOBUFS: events were lost.
                found = True
                continue
            found = found or interesting(data)
    return True


def _is_interesting(data: bytes) -> bool:
    event = int.from_bytes(data[_EVENT_OFFSET : _EVENT_OFFSET + 4], "little")
    return event in _INTERESTING


def _is_block(data: bytes) -> bool:
    return b"SUBSYSTEM=block" in data.split(b"\0")
