"""Hints from the kernel that something may have changed: processes, and block devices.

Hints only: they say when to look again, never what there is. Both can be missing (no privilege, no such
netlink in a container), and then everything is looked at every time.
"""

from __future__ import annotations

import os
import select
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_KERNEL_GROUP = 1
_ANSWER_S = 0.5
_DATAGRAM_BYTES = 1 << 14
_MAX_DATAGRAMS = 256
"""More at once is as good as a lost one: something has changed."""
_PROCESS_BUFFER_BYTES = 1 << 14
"""Small, as all that counts is whether there was anything; what does not fit is an error that says so."""
_WHAT_OFFSET = 36
"""Of the kind of event in a message of the process connector: after the netlink and connector headers."""
_FORK, _EXEC, _EXIT = 0x1, 0x2, 0x80000000
_INTERESTING = frozenset({_FORK, _EXEC, _EXIT})


class ProcessEvents:
    """Whether any process began, ended or became another program since the last time it was asked."""

    def __init__(self) -> None:
        self.problem = ""
        """Why there are no events; empty when there are."""
        self._socket: Any = None
        try:
            self._socket = _listening()
        except Exception as error:  # noqa: BLE001, RUF100 - pyroute2 raises what it likes
            self.problem = f"no events of processes ({error}): every cgroup is looked at in every epoch"
            self.close()

    def changed(self) -> bool:
        """Whether there may be something new. True when there are no events."""
        if self._socket is None:
            return True
        return _drain(self._socket.fileno(), _is_interesting)

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            with suppress(OSError):  # it is given up in any case
                self._socket.close()
            self._socket = None


class BlockEvents:
    """Whether any block device came, went or changed since the last time it was asked."""

    def __init__(self) -> None:
        self.problem = ""
        """Why there are no events; empty when there are."""
        self._socket: Any = None
        try:
            from pyroute2.netlink.uevent import UeventSocket

            self._socket = UeventSocket()
            self._socket.bind(groups=_KERNEL_GROUP)
        except Exception as error:  # noqa: BLE001, RUF100 - pyroute2 raises what it likes
            self.problem = f"no events of block devices ({error}): they are looked at again every 30 s"
            self.close()

    def changed(self) -> bool:
        """Whether there may be something new. False when there are no events."""
        return self._socket is not None and _drain(self._socket.fileno(), _is_block)

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            with suppress(OSError):  # it is given up in any case
                self._socket.close()
            self._socket = None


def _listening() -> Any:
    """A socket that gets events. Raises what pyroute2 does, and OSError when the kernel does not answer."""
    from pyroute2.netlink import NLMSG_DONE
    from pyroute2.netlink.connector import cn_proc

    events = cn_proc.ProcEventSocket()
    try:
        events.bind()
        # As its `control` does, which waits for ever where nobody answers.
        message = cn_proc.proc_event_control()
        message["header"]["type"] = NLMSG_DONE
        message["action"] = cn_proc.PROC_CN_MCAST_LISTEN
        message["idx"], message["val"] = cn_proc.CN_IDX_PROC, cn_proc.CN_VAL_PROC
        message["len"] = 4
        message.encode()
        os.write(events.fileno(), bytes(message.data))
        if not select.select([events.fileno()], [], [], _ANSWER_S)[0]:
            raise OSError("the kernel tells this container nothing")
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
