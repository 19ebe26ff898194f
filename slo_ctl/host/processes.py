"""Which VM a QEMU process runs, by its own command line."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any

from slo_ctl.base.kernel_files import is_readable, read_bounded
from slo_ctl.host.cgroup import CgroupTree

_MAX_PIDS = 64
"""A VM's group has QEMU and a few helpers."""

_GROUPS_WITH_QEMU = ("", "libvirt", "libvirt/emulator", "emulator")


@dataclass(frozen=True, slots=True)
class QemuProcess:
    """Value on the command line, or None."""

    name: str | None
    uuid: str | None


def qemu_in(tree: CgroupTree, cgroup: str, proc: Path) -> QemuProcess | None:
    """The first QEMU among the processes of a VM's group; None when there is none that we may look at."""
    for inner in _GROUPS_WITH_QEMU:
        for pid in _pids(tree.folder(cgroup) / inner / "cgroup.procs"):
            arguments = _arguments(proc / pid / "cmdline")
            if arguments and "qemu" in PurePath(arguments[0]).name:
                return identity(arguments)
    return None


def identity(arguments: list[str]) -> QemuProcess:
    """Name and UUID from QEMU's `-name` and `-uuid`."""
    name = _after(arguments, "name")
    return QemuProcess(None if name is None else _guest(name), _after(arguments, "uuid"))


def _after(arguments: list[str], option: str) -> str | None:
    for word, value in pairwise(arguments):
        if word in (f"-{option}", f"--{option}"):
            return value
    return None


def _guest(value: str) -> str | None:
    """`guest=a,,b,debug-threads=on` is the VM `a,b`; so is `a,,b` alone."""
    for number, part in enumerate(value.replace(",,", "\0").split(",")):
        key, equals, text = part.partition("=")
        if equals and key == "guest":
            return text.replace("\0", ",")
        if number == 0 and not equals and part:
            return part.replace("\0", ",")
    return None


def _pids(procs: Path) -> list[str]:
    try:
        file = read_bounded(procs)
    except OSError:
        # Threaded groups have no list of processes, and others' may be closed to us: the name of the cgroup
        # then has to do.
        return []
    pids = file.text.split() if file else []
    return [pid for pid in pids if pid.isascii() and pid.isdigit()][:_MAX_PIDS]


def _arguments(cmdline: Path) -> list[str]:
    try:
        file = read_bounded(cmdline)
    except OSError:
        # Hidden from us (hidepid): as above.
        return []
    return file.text.split("\0") if file else []


# Which processes are connected to which Unix sockets, asked of the kernel (sock_diag).
#
# The raw messages are read here: pyroute2 takes 30 us for each socket of the host, and fails where any
# program has bound a name that is no UTF-8.

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

    Raises OSError where the kernel does not report it.
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
        """Paths of the sockets each of the cgroups is connected to. `changed`: processes started, ended or
        called exec since the last call, so that connections without an owner may have one now.
        """
        try:
            open_now = self._ask(wanted)
        except OSError as error:
            note(f"connections of Unix sockets are unknown: {error.strerror}; name namespaces= in [vm]")
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


# Hints from the kernel that something may have changed: processes, and block devices.
#
# Hints only: they say when to scan again, never what exists. Both can be missing (no privilege, no such
# netlink in a container), and then everything is looked at every time.

_KERNEL_GROUP = 1
_ANSWER_S = 0.5
_DATAGRAM_BYTES = 1 << 14
_MAX_DATAGRAMS = 256
"""With more, events count as lost: something has changed."""
_PROCESS_BUFFER_BYTES = 1 << 14
"""Small, as all that counts is whether there was anything; what does not fit is an error that says so."""
_WHAT_OFFSET = 36
"""Of the kind of event in a message of the process connector: after the netlink and connector headers."""
_FORK, _EXEC, _EXIT = 0x1, 0x2, 0x80000000
_INTERESTING = frozenset({_FORK, _EXEC, _EXIT})


class _Events:
    """Events on a netlink socket of pyroute2, if there is one."""

    _without = ""
    """What is done without them, after the error."""

    def __init__(self, open_socket: Callable[[], Any]) -> None:
        self.problem = ""
        """Why there are no events; empty when there are."""
        self._socket: Any = None
        try:
            self._socket = open_socket()
        except Exception as error:  # noqa: BLE001, RUF100 - pyroute2 raises what it likes
            self.problem = self._without.format(error=error)

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            with suppress(OSError):  # it is given up in any case
                self._socket.close()
            self._socket = None


class ProcessEvents(_Events):
    """Whether any process began, ended or became another program since the last time it was asked."""

    _without = "no events of processes ({error}): every cgroup is looked at in every epoch"

    def __init__(self) -> None:
        super().__init__(_process_socket)

    def changed(self) -> bool:
        """Whether there may be something new. True when there are no events."""
        return self._socket is None or _drain(self._socket.fileno(), _is_interesting)


class BlockEvents(_Events):
    """Whether any block device came, went or changed since the last time it was asked."""

    _without = "no events of block devices ({error}): they are looked at again every 30 s"

    def __init__(self) -> None:
        super().__init__(_block_socket)

    def changed(self) -> bool:
        """Whether there may be something new. False when there are no events."""
        return self._socket is not None and _drain(self._socket.fileno(), _is_block)


def _block_socket() -> Any:
    """A socket that gets events. Raises what pyroute2 does."""
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
    """A socket that gets events. Raises what pyroute2 does, and OSError when the kernel does not answer."""
    from pyroute2.netlink import NLMSG_DONE
    from pyroute2.netlink.connector import cn_proc

    events = cn_proc.ProcEventSocket()
    try:
        events.bind()
        # As its `control` does, which would wait indefinitely for an answer.
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
    view = socket.socket(fileno=os.dup(descriptor))
    try:
        view.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _PROCESS_BUFFER_BYTES)
    finally:
        view.close()


def _drain(descriptor: int, interesting: Callable[[bytes], bool]) -> bool:
    """Take everything that waits; whether any of it was interesting, or was lost."""
    view = socket.socket(fileno=os.dup(descriptor))
    found = False
    try:
        for _ in range(_MAX_DATAGRAMS):
            try:
                data = view.recv(_DATAGRAM_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return found
            except OSError:
                # ENOBUFS: more has happened than fits.
                found = True
                continue
            found = found or interesting(data)
    finally:
        view.close()
    return True


def _is_interesting(data: bytes) -> bool:
    what = int.from_bytes(data[_WHAT_OFFSET : _WHAT_OFFSET + 4], "little")
    return what in _INTERESTING


def _is_block(data: bytes) -> bool:
    return b"SUBSYSTEM=block" in data.split(b"\0")
