"""Target of a profile: a file, a place on a file system, a block device, an NBD export."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from slo_ctl.base import numbers
from slo_ctl.base.errors import UserError
from slo_ctl.base.kernel_files import read_bounded
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.decide.request_sizes import SECTOR_BYTES

_DEVICES = Path("/dev")
MADE_FILE = ".slo-ctl-profile"
"""Beginning of the name of a file that is made in a directory and removed in the end."""
_SPARE_PART = 0.05
"""Of a file system that is left free: one that is nearly full is slow, and others may need the space."""


class Kind(StrEnum):
    """Kind of a target."""

    MADE_FILE = "made file"
    """Does not exist yet: is made for the profile and removed after it."""
    FILE = "file"
    """Of another program."""
    BLOCK = "block device"
    NBD = "NBD export"


@dataclass(frozen=True, slots=True)
class Target:
    """Something that can be read and perhaps written."""

    given: str
    """As the user wrote it."""
    kind: Kind
    path: Path | None
    """Of the file or device; None: an NBD export."""
    size_bytes: int | None
    """None: made as large as wanted."""
    unit_bytes: int
    """Requests are multiples of this."""

    @property
    def ours(self) -> bool:
        """Nobody else's data is in it."""
        return self.kind is Kind.MADE_FILE


def find_target(given: str, connect: bool = True) -> Target:
    """The target that `given` names; without `connect` an NBD export need not be served, and has no size.

    Raises UserError when it cannot be profiled.
    """
    if "://" in given:
        address = parse_uri(given)
        if not connect:
            return Target(given, Kind.NBD, None, None, SECTOR_BYTES)
        with NbdExport(address) as export:
            return Target(given, Kind.NBD, None, export.size_bytes, SECTOR_BYTES)
    if not given.strip():
        raise UserError("the target is an empty text", "name a directory on the drive, such as /srv/vms")
    path = Path(given)
    try:
        status = path.stat()
    except FileNotFoundError:
        # Nothing is made in its place: it may be a mistyped device, or an emulated one.
        if _DEVICES in path.absolute().parents:
            raise UserError(f"{given}: no such device", "`lsblk` lists those there are") from None
        raise UserError(
            f"{given}: no such file or directory",
            "name a directory on the drive, such as /srv/vms: a file is made there and removed; of an "
            "emulated device, the URI that `slo-ctl device show` prints",
        ) from None
    except OSError as error:
        raise UserError(f"{given}: {error.strerror}", "name a file, a directory or a device") from None
    if stat.S_ISDIR(status.st_mode):
        made = path / f"{MADE_FILE}.{os.getpid()}"
        return Target(given, Kind.MADE_FILE, made, None, _unit_bytes(status.st_dev))
    if stat.S_ISBLK(status.st_mode):
        return _block(given, path)
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{given}: neither a file, a directory nor a block device", "name one of these")
    if status.st_size == 0:
        raise UserError(f"{given}: the file is empty", "name its directory: a file is made there and removed")
    return Target(given, Kind.FILE, path, status.st_size, _unit_bytes(path.parent.stat().st_dev))


def span_bytes(target: Target, wanted_bytes: int, largest_request_bytes: int) -> int:
    """How much of the target is used: what is wanted, or all there is if that is less.

    A multiple of the target's unit. Raises UserError when the largest request does not fit in several times.
    """
    span = min(wanted_bytes, target.size_bytes or wanted_bytes) // target.unit_bytes * target.unit_bytes
    if span < 2 * largest_request_bytes:
        short = target.size_bytes is not None and target.size_bytes < wanted_bytes
        raise UserError(
            f"{target.given}: it is too small, {format_bytes_exact(span)} of it do not hold two requests of "
            f"{format_bytes_exact(largest_request_bytes)}",
            "choose smaller sizes with --interval" if short else "raise --file-size",
        )
    return span


def check_space(target: Target, needed_bytes: int) -> None:
    """Raise UserError unless a file of that size can be made, with some room left."""
    if target.path is None or not target.ours:
        return
    folder = target.path.parent
    if not os.access(folder, os.W_OK) or os.statvfs(folder).f_flag & os.ST_RDONLY:
        raise UserError(f"{folder}: it is read-only, or not yours", "name another place")
    system = os.statvfs(folder)
    free = system.f_bavail * system.f_frsize
    spare = int(system.f_blocks * system.f_frsize * _SPARE_PART)
    if free - spare < needed_bytes:
        raise UserError(
            f"{folder}: {numbers.size(needed_bytes)} are needed, and {numbers.size(max(free - spare, 0))} "
            "can be used there",
            "use less of it (--file-size, --bytes), or name another place",
        )


def check_direct(target: Target) -> None:
    """Raise UserError where the target's file system takes no direct I/O, which would measure memory
    instead."""
    if target.path is None or target.kind is Kind.BLOCK:
        return
    probe = target.path if not target.ours else target.path.with_name(f"{MADE_FILE}.{os.getpid()}.probe")
    how = os.O_WRONLY | os.O_CREAT | os.O_EXCL if target.ours else os.O_RDONLY
    flags = os.O_DIRECT | os.O_CLOEXEC | how
    try:
        os.close(os.open(probe, flags, 0o600))
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise UserError(
                f"{target.given}: its file system does not support direct I/O",
                "name a place on another file system",
            ) from None
        raise UserError(f"{target.given}: {error.strerror}", "name another target") from None
    finally:
        # EINVAL comes after the file was made.
        if target.ours:
            probe.unlink(missing_ok=True)


def _block(given: str, path: Path) -> Target:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UserError(f"{given}: {error.strerror}", "run as root, and name an existing device") from None
    try:
        size = os.lseek(descriptor, 0, os.SEEK_END)
    finally:
        os.close(descriptor)
    if size == 0:
        raise UserError(f"{given}: the device has no size", "is a medium in it, is it set up?")
    return Target(given, Kind.BLOCK, path, size, _unit_bytes(path.stat().st_rdev))


def _unit_bytes(number: int) -> int:
    """Direct I/O works in blocks of the device, which those of a file system are made of."""
    node = Path("/sys/dev/block") / f"{os.major(number)}:{os.minor(number)}"
    # A partition has its disk's queue.
    for folder in (node, node.resolve().parent):
        text = read_bounded(folder / "queue" / "logical_block_size")
        if text is not None and text.text.strip().isdigit():
            return int(text.text)
    return SECTOR_BYTES


# The file that is made to be measured: locked as long as its maker lives, so that what one left behind can
# be distinguished from one in use, on this host or another.

_NAME = re.compile(re.escape(MADE_FILE) + r"\.\d+")
_TRIES = 5
"""A process that looks for files left behind may remove ours before it is locked."""


class MadeFile:
    """A file of ours, with room for `size_bytes`."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        """Make it. Raises UserError when that is not possible."""
        self.path = path
        self._descriptor = _create(path)
        try:
            os.posix_fallocate(self._descriptor, 0, size_bytes)
        except OSError as error:
            self.remove()
            raise UserError(
                f"{path}: {error.strerror}", "use less of it (--file-size, --bytes), or name another place"
            ) from None
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove it."""
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)


def remove_stale(folder: Path) -> list[Path]:
    """Remove files whose makers were killed; returns them. Files of unknown state, or not ours, stay."""
    return [
        path
        for path in sorted(folder.glob(f"{MADE_FILE}.*"))
        if _NAME.fullmatch(path.name) and _remove_if_stale(path)
    ]


def _remove_if_stale(path: Path) -> bool:
    try:
        # Neither a link to another file nor a pipe that would block.
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    with _closing(descriptor):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        except OSError:
            return False  # In use, gone already, or on a file system without locks.
    return True


def _create(path: Path) -> int:
    for _ in range(_TRIES):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}", "name another place") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            return descriptor  # A file system without locks: nobody else can lock it, either.
        except BaseException:
            path.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)
    raise UserError(f"{path}: the file keeps disappearing", "name another place")


@contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)


# Looking at an NBD export without touching it: its size, whether it can be written, a few of its bytes.


SCHEMES = ("nbd", "nbd+unix")
_PORT = 10809
_NBD_TIMEOUT_S = 10.0
# https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md
_MAGIC, _OPTION_MAGIC, _REPLY_MAGIC = b"NBDMAGIC", b"IHAVEOPT", 0x3E889045565A9
_FIXED_NEWSTYLE_NO_ZEROES = 3
_OPT_GO = 7
_REP_ACK, _REP_INFO, _REP_ERROR = 1, 3, 1 << 31
_INFO_EXPORT = 0
_FLAG_READ_ONLY = 1 << 1
_REQUEST_MAGIC, _ANSWER_MAGIC = 0x25609513, 0x67446698
_READ, _DISCONNECT = 0, 2
_MAX_REPLY_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class NbdAddress:
    """Where an export is."""

    uri: str
    export: str
    socket: str | None
    """Path of a Unix socket; None: TCP."""
    host: str
    port: int


def parse_uri(uri: str) -> NbdAddress:
    """Take an NBD URI apart. Raises UserError for what fio's nbd engine could not use either."""
    parts = urlsplit(uri)
    if parts.scheme not in SCHEMES:
        raise UserError(
            f"{uri}: {parts.scheme} is not supported", "write nbd://HOST/EXPORT or nbd+unix://..."
        )
    path = parse_qs(parts.query).get("socket", [""])[0]
    if parts.scheme == "nbd+unix" and not path:
        raise UserError(f"{uri}: it names no socket", "nbd+unix:///EXPORT?socket=/path/of.sock")
    try:
        port = parts.port or _PORT
    except ValueError:
        raise UserError(f"{uri}: its port is not a valid number", "nbd://HOST:PORT/EXPORT") from None
    export = unquote(parts.path.removeprefix("/"))
    return NbdAddress(uri, export, path or None, parts.hostname or "localhost", port)


class NbdExport:
    """One connection that only ever reads. Raises UserError for whatever keeps it from being one."""

    def __init__(self, address: NbdAddress) -> None:
        self._address = address
        self.size_bytes = 0
        self.read_only = False
        try:
            self._socket = _connect(address)
        except OSError as error:
            raise UserError(f"{address.uri}: {error.strerror or error}", "is its server running?") from None
        try:
            self._negotiate()
        except (OSError, struct.error) as error:
            self._socket.close()
            raise UserError(
                f"{address.uri}: no NBD server answers there: {error}", "is the URI right?"
            ) from None
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> NbdExport:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._socket.sendall(struct.pack(">IHHQQI", _REQUEST_MAGIC, 0, _DISCONNECT, 0, 0, 0))
        except OSError:
            return  # It has gone by itself, which is as good.
        finally:
            self._socket.close()

    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Bytes of the export."""
        try:
            request = struct.pack(">IHHQQI", _REQUEST_MAGIC, 0, _READ, 0, offset_bytes, length_bytes)
            self._socket.sendall(request)
            magic, error, _ = struct.unpack(">IIQ", self._receive(16))
            if magic != _ANSWER_MAGIC or error:
                raise OSError(f"reading fails with error {error}")
            return self._receive(length_bytes)
        except OSError as error:
            raise UserError(f"{self._address.uri}: {error}", "see the server's messages") from None

    def _negotiate(self) -> None:
        if self._receive(16) != _MAGIC + _OPTION_MAGIC:
            raise OSError("another protocol")
        self._receive(2)
        self._socket.sendall(struct.pack(">I", _FIXED_NEWSTYLE_NO_ZEROES))
        name = self._address.export.encode()
        wanted = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
        self._socket.sendall(_OPTION_MAGIC + struct.pack(">II", _OPT_GO, len(wanted)) + wanted)
        while True:
            magic, _, kind, length = struct.unpack(">QIII", self._receive(20))
            if magic != _REPLY_MAGIC or length > _MAX_REPLY_BYTES:
                raise OSError("another protocol")
            data = self._receive(length)
            if kind & _REP_ERROR:
                raise UserError(
                    f"{self._address.uri}: the server refuses export {self._address.export or '(default)'}: "
                    f"{data.decode(errors='replace') or hex(kind)}",
                    "`nbdinfo --list` shows its exports; TLS is not supported",
                )
            if kind == _REP_INFO and struct.unpack(">H", data[:2])[0] == _INFO_EXPORT:
                self.size_bytes, flags = struct.unpack(">QH", data[2:12])
                self.read_only = bool(flags & _FLAG_READ_ONLY)
            if kind == _REP_ACK:
                return

    def _receive(self, length: int) -> bytes:
        found = bytearray()
        while len(found) < length:
            part = self._socket.recv(length - len(found))
            if not part:
                raise OSError("the server closed the connection")
            found += part
        return bytes(found)


def _connect(address: NbdAddress) -> socket.socket:
    if address.socket is None:
        return socket.create_connection((address.host, address.port), _NBD_TIMEOUT_S)
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        one.settimeout(_NBD_TIMEOUT_S)
        one.connect(address.socket)
    except BaseException:
        one.close()
        raise
    return one
