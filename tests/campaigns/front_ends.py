"""The namespaces of a device as disks over different front ends."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Protocol

from nbd_client import FUA, NbdClient, NbdError
from nvme_client import BLOCK_BYTES, NvmeQueue
from serving import Server
from vhost_user_client import DISCARD, SECTOR_BYTES, WRITE_ZEROES, VhostUserClient, VhostUserError

from .faults import READY_S, GuaranteeError

OPTIONS = ("--nvme-tcp", "127.0.0.1:0", "--vhost-user")
"""Options that serve a device over all front ends."""
_EIO = 5
_WRITE, _WRITE_ZEROES, _DATASET_MANAGEMENT = 0x01, 0x08, 0x09
_FORCE_UNIT_ACCESS, _DEALLOCATE = 1 << 30, 1 << 2
_MOST_BYTES = 1 << 20
"""Maximum of one NVMe command."""
_RETRY_S = 0.05


class Disk(Protocol):
    """One connection. OSError: the connection has ended. NbdError: an error reply."""

    export: str

    def read(self, offset: int, length: int) -> bytes: ...

    def write(self, offset: int, data: bytes, flags: int = 0) -> None: ...

    def flush(self) -> None: ...

    def trim(self, offset: int, length: int) -> None: ...

    def zero(self, offset: int, length: int, flags: int = 0) -> None: ...

    def close(self) -> None: ...


Connect = Callable[[Server, str, int], list[Disk]]
"""Connects to a namespace several times, if that is possible."""


class NvmeDisk:
    """A namespace over NVMe/TCP, through a controller with one I/O queue."""

    def __init__(self, server: Server, namespace: str) -> None:
        self.export = namespace
        with server.control() as control:
            nvme = control.hello()["nvme_tcp"]
            names = {each["name"]: each["nsid"] for each in control.statistics()["namespaces"]}
        self._nsid = names[namespace]
        host, _, port = nvme["address"].rpartition(":")
        address = (host, int(port))
        self._admin = NvmeQueue(address, nvme["nqn"])
        self._queue = NvmeQueue(address, nvme["nqn"], 1, self._admin.controller)

    def read(self, offset: int, length: int) -> bytes:
        end = offset + length
        return b"".join(
            self._queue.read(self._nsid, at // BLOCK_BYTES, min(_MOST_BYTES, end - at))
            for at in range(offset, end, _MOST_BYTES)
        )

    def write(self, offset: int, data: bytes, flags: int = 0) -> None:
        self._run(_WRITE, self._blocks(offset, len(data), flags), data)

    def flush(self) -> None:
        self._run(0, b"")

    def trim(self, offset: int, length: int) -> None:
        # A range consists of context attributes, length and first block.
        ranges = struct.pack("<IIQ", 0, length // BLOCK_BYTES, offset // BLOCK_BYTES)
        self._run(_DATASET_MANAGEMENT, struct.pack("<II", 0, _DEALLOCATE), ranges)

    def zero(self, offset: int, length: int, flags: int = 0) -> None:
        self._run(_WRITE_ZEROES, self._blocks(offset, length, flags))

    def close(self) -> None:
        self._queue.close()
        self._admin.close()

    @staticmethod
    def _blocks(offset: int, length: int, flags: int) -> bytes:
        unit_access = _FORCE_UNIT_ACCESS if flags & FUA else 0
        return struct.pack("<QI", offset // BLOCK_BYTES, length // BLOCK_BYTES - 1 | unit_access)

    def _run(self, opcode: int, words: bytes, data: bytes = b"") -> None:
        try:
            self._queue.send(opcode, self._nsid, words, data)
        except EOFError:
            raise ConnectionError("the server closed the connection") from None
        except OSError as error:
            if str(error).startswith("NVMe status"):
                raise NbdError(_EIO) from error
            raise


class VhostUserDisk:
    """A namespace over vhost-user, with one queue. Requests in flight survive the server."""

    def __init__(self, server: Server, namespace: str, before: VhostUserClient | None = None) -> None:
        self.export = namespace
        self._begun: tuple[int, int] | None = None
        """Request in flight: its number, and the bytes it sends."""
        self._client = VhostUserClient(server.run.vhost_user_socket(namespace), before=before)

    def read(self, offset: int, length: int) -> bytes:
        parts = range(offset, offset + length, 128 << 10)
        return b"".join(self._client.read(at, min(128 << 10, offset + length - at)) for at in parts)

    def write(self, offset: int, data: bytes, flags: int = 0) -> None:
        self._run(1, offset // SECTOR_BYTES, data)
        if flags & FUA:
            self.flush()

    def flush(self) -> None:
        self._run(4, 0, b"")

    def trim(self, offset: int, length: int) -> None:
        self._run(DISCARD, 0, struct.pack("<QII", offset // SECTOR_BYTES, length // SECTOR_BYTES, 0))

    def zero(self, offset: int, length: int, flags: int = 0) -> None:
        self._run(WRITE_ZEROES, 0, struct.pack("<QII", offset // SECTOR_BYTES, length // SECTOR_BYTES, 0))
        if flags & FUA:
            self.flush()

    def close(self) -> None:
        self._client.close()

    def _run(self, kind: int, sector: int, data: bytes) -> None:
        try:
            self._begun = self._client.submit(kind, sector, data), len(data)
            self._finish()
        except VhostUserError as error:
            raise ConnectionError(str(error)) from None

    def _finish(self) -> None:
        if self._begun is None:
            return
        head, sent = self._begun
        if self._client.completed() != head:
            raise GuaranteeError(f"{self.export}: another request was answered than the one in flight")
        self._begun = None
        status, _ = self._client.answer(head, sent=sent)
        if status:
            raise NbdError(status)

    def resumed(self, server: Server) -> tuple[VhostUserDisk, bool]:
        """The next connection, and whether a request in flight has been answered on it."""
        deadline = time.monotonic() + READY_S
        while True:
            try:
                disk = VhostUserDisk(server, self.export, before=self._client)
                break
            except (VhostUserError, OSError):
                # A connection that the killed server had not accepted.
                if time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_S)
        disk._begun = self._begun
        disk._finish()
        return disk, self._begun is not None


def nbd_disks(server: Server, namespace: str, count: int) -> list[Disk]:
    """`count` connections over NBD."""
    return [NbdClient(server.run.export(namespace), namespace) for _ in range(count)]


def nvme_disks(server: Server, namespace: str, count: int) -> list[Disk]:
    """`count` controllers over NVMe/TCP."""
    return [NvmeDisk(server, namespace) for _ in range(count)]


def vhost_user_disks(server: Server, namespace: str, _count: int) -> list[Disk]:
    """One connection: a namespace has one client over vhost-user."""
    return [VhostUserDisk(server, namespace)]


def disks_of_all(server: Server, namespace: str, count: int) -> list[Disk]:
    """A different front end for each namespace, so that all are in use at once."""
    match namespace:
        case "b":
            return nvme_disks(server, namespace, count)
        case "c":
            return vhost_user_disks(server, namespace, count)
        case _:
            return nbd_disks(server, namespace, count)
