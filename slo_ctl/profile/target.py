"""Target of a profile: a directory, a file, a block device or an NBD export."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import stat
import struct
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from slo_ctl.base import numbers
from slo_ctl.base.errors import UserError
from slo_ctl.base.kernel_files import read_text
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.decide.request_sizes import SECTOR_BYTES
from slo_ctl.host.block_device import device_number

_DEVICES = Path("/dev")
MADE_FILE = ".slo-ctl-profile"
"""Beginning of the name of a temporary test file in a directory."""
_SPARE_PART = 0.05
"""Share of a file system that is left free, because nearly full ones are slow."""


class Kind(StrEnum):
    """Kind of a target."""

    MADE_FILE = "made file"
    """Test file that is created for the profile and removed afterwards."""
    FILE = "file"
    BLOCK = "block device"
    NBD = "NBD export"


@dataclass(frozen=True, slots=True)
class Target:
    """A target that can be read and perhaps written."""

    given: str
    """Name as the user wrote it."""
    kind: Kind
    path: Path | None
    """Path of the file or device; None for an NBD export."""
    size_bytes: int | None
    """Size; None for a test file, which gets the size that is needed."""
    unit_bytes: int
    """Unit of offsets and lengths of requests."""

    @property
    def is_test_file(self) -> bool:
        """Whether slo-ctl creates it, so that it contains no other data."""
        return self.kind is Kind.MADE_FILE


def find_target(given: str, connect: bool = True) -> Target:
    """The target with this name. Without `connect` an NBD export need not be served, and has no size.

    Raises UserError when it cannot be profiled.
    """
    if "://" in given:
        address = parse_uri(given)
        if not connect:
            return Target(given, Kind.NBD, None, None, SECTOR_BYTES)
        with NbdExport(address) as export:
            if not export.size_bytes:
                raise UserError(f"{given}: the export has no size", "name an export that has data")
            return Target(given, Kind.NBD, None, export.size_bytes, SECTOR_BYTES)
    if not given.strip():
        raise UserError("the target is an empty string", "name a directory on the drive, such as /srv/vms")
    path = Path(given)
    try:
        status = path.stat()
    except FileNotFoundError:
        # No file is created: the name may be a mistyped or an emulated device.
        if _DEVICES in path.absolute().parents:
            raise UserError(f"device {given} not found", "`lsblk` lists block devices") from None
        raise UserError(
            f"{given} not found",
            "name a directory on the drive, such as /srv/vms, for a temporary file; for an emulated device, "
            "use the URI that `slo-ctl device show` prints",
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
        raise UserError(f"{given}: the file is empty", "name its directory, for a temporary file")
    return Target(given, Kind.FILE, path, status.st_size, _unit_bytes(path.parent.stat().st_dev))


def span_bytes(target: Target, wanted_bytes: int, largest_request_bytes: int) -> int:
    """Bytes of the target that are used: `wanted_bytes`, or its size if that is less.

    A multiple of the target's unit. Raises UserError when it is less than two of the largest requests.
    """
    span = min(wanted_bytes, target.size_bytes or wanted_bytes) // target.unit_bytes * target.unit_bytes
    if span < 2 * largest_request_bytes:
        short = target.size_bytes is not None and target.size_bytes < wanted_bytes
        raise UserError(
            f"{target.given}: it is too small: {format_bytes_exact(span)} is less than two requests of "
            f"{format_bytes_exact(largest_request_bytes)}",
            "choose smaller sizes with --interval" if short else "raise --file-size",
        )
    return span


def check_space(target: Target, needed_bytes: int) -> None:
    """Raise UserError unless a file of this size fits, with some space left."""
    if target.path is None or not target.is_test_file:
        return
    folder = target.path.parent
    if not os.access(folder, os.W_OK) or os.statvfs(folder).f_flag & os.ST_RDONLY:
        raise UserError(f"{folder}: it is not writable", "use another directory")
    system = os.statvfs(folder)
    free = system.f_bavail * system.f_frsize
    spare = int(system.f_blocks * system.f_frsize * _SPARE_PART)
    if free - spare < needed_bytes:
        raise UserError(
            f"{folder}: {numbers.size(needed_bytes)} are needed, but only "
            f"{numbers.size(max(free - spare, 0))} are available",
            "use less (--file-size, --bytes), or another directory",
        )


def check_direct(target: Target) -> None:
    """Raise UserError if the file system lacks direct I/O, without which memory would be measured."""
    if target.path is None or target.kind is Kind.BLOCK:
        return
    probe = (
        target.path if not target.is_test_file else target.path.with_name(f"{MADE_FILE}.{os.getpid()}.probe")
    )
    how = os.O_WRONLY | os.O_CREAT | os.O_EXCL if target.is_test_file else os.O_RDONLY
    flags = os.O_DIRECT | os.O_CLOEXEC | how
    try:
        os.close(os.open(probe, flags, 0o600))
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise UserError(
                f"{target.given}: its file system does not support direct I/O",
                "use a directory on another file system",
            ) from None
        raise UserError(f"{target.given}: {error.strerror}", "use another target") from None
    finally:
        # open(2) creates the file even if it fails with EINVAL.
        if target.is_test_file:
            probe.unlink(missing_ok=True)


def _block(given: str, path: Path) -> Target:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UserError(f"{given}: {error.strerror}", "run as root, and use an existing device") from None
    try:
        size = os.lseek(descriptor, 0, os.SEEK_END)
    finally:
        os.close(descriptor)
    if size == 0:
        raise UserError(f"{given}: the device has no size", "check that it has a medium and is set up")
    return Target(given, Kind.BLOCK, path, size, _unit_bytes(path.stat().st_rdev))


def _unit_bytes(number: int) -> int:
    """Unit of direct I/O, the logical block size of the device."""
    node = Path("/sys/dev/block") / str(device_number(number))
    # A partition uses the queue of its disk.
    for folder in (node, node.resolve().parent):
        text = read_text(folder / "queue" / "logical_block_size").strip()
        if text.isdigit():
            return int(text)
    return SECTOR_BYTES


# Test files, which are locked as long as their process runs, so that one that was left behind can be
# distinguished from one in use, on this host or another.

_NAME = re.compile(re.escape(MADE_FILE) + r"\.\d+")
_TRIES = 5
"""Attempts: a process that removes stale files may remove this one before it is locked."""


class MeasuredFile:
    """A test file of `size_bytes`."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        """Create the file. Raises UserError when that fails."""
        self.path = path
        self._descriptor = _create(path)
        try:
            os.posix_fallocate(self._descriptor, 0, size_bytes)
        except OSError as error:
            self.remove()
            raise UserError(
                f"{path}: {error.strerror}", "use less (--file-size, --bytes), or another directory"
            ) from None
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)


def remove_stale(folder: Path) -> list[Path]:
    """Remove test files of killed processes, and return them. Other and unreadable files are kept."""
    return [
        path
        for path in sorted(folder.glob(f"{MADE_FILE}.*"))
        if _NAME.fullmatch(path.name) and _remove_if_stale(path)
    ]


def _remove_if_stale(path: Path) -> bool:
    try:
        # Refuse links to other files, and do not block on a pipe.
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except OSError:
        return False  # in use, removed, or on a file system without locks
    finally:
        os.close(descriptor)
    return True


def _create(path: Path) -> int:
    for _ in range(_TRIES):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}", "use another directory") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            return descriptor  # a file system without locks
        except BaseException:
            path.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)
    raise UserError(f"{path}: the file keeps disappearing", "use another directory")


# Read-only access to an NBD export: its size, whether it is writable, its bytes.


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
    """Address of an export."""

    uri: str
    export: str
    socket: str | None
    """Path of a Unix socket; None: TCP."""
    host: str
    port: int


def parse_uri(uri: str) -> NbdAddress:
    """Parse an NBD URI. Raises UserError if fio's nbd engine does not support it."""
    try:
        parts = urlsplit(uri.encode().decode())
    except ValueError:  # such as `nbd://[/`, or bytes that are not UTF-8
        raise _not_an_address(uri) from None
    if parts.scheme not in SCHEMES:
        raise UserError(
            f"{uri}: {parts.scheme} is not supported", "write nbd://HOST/EXPORT or nbd+unix://..."
        )
    path = parse_qs(parts.query).get("socket", [""])[0]
    if parts.scheme == "nbd+unix" and not path:
        raise UserError(f"{uri}: the socket is missing", "nbd+unix:///EXPORT?socket=/path/of.sock")
    try:
        port = parts.port or _PORT
    except ValueError:
        raise UserError(f"{uri}: the port is not a valid number", "nbd://HOST:PORT/EXPORT") from None
    export = unquote(parts.path.removeprefix("/"))
    return NbdAddress(uri, export, path or None, parts.hostname or "localhost", port)


def _not_an_address(uri: str) -> UserError:
    return UserError(f"{uri}: is not a valid address", "write nbd://HOST/EXPORT or nbd+unix://...")


class NbdExport:
    """A connection that only reads. Raises UserError when it cannot be opened."""

    def __init__(self, address: NbdAddress) -> None:
        self._address = address
        self.size_bytes = 0
        self.read_only = False
        try:
            self._socket = _connect(address)
        except UnicodeError:  # a name of a host that DNS cannot have
            raise _not_an_address(address.uri) from None
        except OSError as error:
            raise UserError(
                f"{address.uri}: {error.strerror or error}", "check that its server is running"
            ) from None
        try:
            self._negotiate()
        except (OSError, struct.error) as error:
            self._socket.close()
            raise UserError(f"{address.uri}: no NBD server answers: {error}", "check the URI") from None
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> NbdExport:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._socket.sendall(struct.pack(">IHHQQI", _REQUEST_MAGIC, 0, _DISCONNECT, 0, 0, 0))
        except OSError:
            return  # the server has already closed it
        finally:
            self._socket.close()

    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Read bytes of the export. Raises UserError."""
        try:
            request = struct.pack(">IHHQQI", _REQUEST_MAGIC, 0, _READ, 0, offset_bytes, length_bytes)
            self._socket.sendall(request)
            magic, error, _ = struct.unpack(">IIQ", self._receive(16))
            if magic != _ANSWER_MAGIC or error:
                raise OSError(f"reading failed with error {error}")
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
                    f"{self._address.uri}: the server refused export {self._address.export or '(default)'}: "
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
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_NBD_TIMEOUT_S)
        connection.connect(address.socket)
    except BaseException:
        connection.close()
        raise
    return connection
