"""The devices there are: a folder for each, made and removed in one step."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from slo_ctl.device.record import FILE, DeviceRecord, check_name, is_name, read_record, to_toml
from slo_ctl.errors import UserError
from slo_ctl.replay.fields import did_you_mean
from slo_ctl.whole_file import partial_of, remove_leftovers, sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from slo_ctl.device.places import Places

LOCK = "lock"
_FILES = ("placement", "serving", "settings.json", "ageing.json")
"""What the server reads and writes besides the record, the lock and the data of namespaces."""
_LOCK_TRIES = 10
_LOCK_PAUSE_S = 0.02


class ServedError(Exception):
    """The device is being served, so that it cannot be had."""


class DeviceStore:
    """Every device below one root."""

    def __init__(self, places: Places) -> None:
        self.places = places

    def names(self) -> list[str]:
        """Devices there are, by name."""
        folder = self.places.devices
        if not folder.is_dir():
            return []
        return sorted(
            item.name for item in folder.iterdir() if is_name(item.name) and (item / FILE).is_file()
        )

    def load(self, name: str) -> DeviceRecord:
        """One device. Raises UserError when there is none of that name."""
        check_name("device", name)
        folder = self.places.device(name)
        try:
            return read_record(folder)
        except FileNotFoundError:
            hint = did_you_mean(name, self.names()) if self.names() else "`slo-ctl device create` makes one"
            raise UserError(f"there is no device {name} in {self.places.devices}", hint) from None
        except OSError as error:
            raise UserError(f"{folder / FILE}: {error.strerror}", "run as its owner") from None

    def create(self, record: DeviceRecord) -> Path:
        """Make the folder of a device, with empty sparse backing files. Raises UserError when it is there."""
        final = self.places.device(record.name)
        partial = partial_of(final)
        try:
            self.places.devices.mkdir(parents=True, exist_ok=True, mode=0o755)
            remove_leftovers(self.places.devices)
            partial.mkdir(mode=0o700)
            try:
                self._fill(partial, record)
                # Fails where a device, or anything else that is not empty, has the name by now.
                partial.rename(final)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
            sync_folder(self.places.devices)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise UserError(
                    f"device {record.name} exists already",
                    f"choose another name, or delete {record.name} first",
                ) from None
            raise UserError(
                f"cannot create {final}: {error.strerror}",
                "see --root, or run as root for the system's devices",
            ) from None
        return final

    def _fill(self, folder: Path, record: DeviceRecord) -> None:
        for namespace in record.namespace:
            with (folder / f"{namespace.name}.img").open("xb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.truncate(namespace.size_bytes)
                os.fsync(file.fileno())
        (folder / LOCK).touch(mode=0o600)
        with (folder / FILE).open("x", encoding="utf-8") as text:
            text.write(to_toml(record))
            text.flush()
            os.fsync(text.fileno())
        sync_folder(folder)

    def delete(self, name: str) -> None:
        """Remove a device and the data on it. Raises UserError when there is none, or it is being served."""
        self.require(name)
        folder = self.places.device(name)
        try:
            with self.locked(name):
                doomed = folder.with_name(f".{name}.{os.getpid()}.deleted")
                folder.rename(doomed)
            shutil.rmtree(doomed)
        except ServedError:
            raise UserError(f"device {name} is being served", "stop `slo-ctl device serve` first") from None
        except OSError as error:
            raise UserError(f"cannot delete {folder}: {error.strerror}", "run as its owner") from None
        shutil.rmtree(self.places.run_of(name).folder, ignore_errors=True)

    def require(self, name: str) -> None:
        """Raise UserError unless the device is there; its record may be damaged."""
        if name not in self.names():
            self.load(name)

    def check_files(self, name: str) -> None:
        """Raise UserError when the server would wait for one of its files, or could not replace it."""
        for each in _FILES:
            path = self.places.device(name) / each
            if path.exists() and not path.is_file():
                raise UserError(
                    f"{path} exists and is not a regular file", "move it away, or restore the file"
                )

    @contextmanager
    def locked(self, name: str) -> Iterator[int]:
        """Hold the lock of a device; yields its descriptor, whose heirs hold it too. Raises ServedError."""
        descriptor = _open_lock(self.places.device(name) / LOCK, os.O_CREAT)
        try:
            # Somebody who only looks whether the device is served holds the lock for a moment.
            for _ in range(_LOCK_TRIES):
                if _try_lock(descriptor, fcntl.LOCK_EX):
                    break
                time.sleep(_LOCK_PAUSE_S)
            else:
                raise ServedError
            yield descriptor
        finally:
            os.close(descriptor)

    def is_served(self, name: str) -> bool:
        """True while a server has the device."""
        try:
            descriptor = _open_lock(self.places.device(name) / LOCK)
        except FileNotFoundError:
            return False
        try:
            return not _try_lock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def allocated_bytes(self, record: DeviceRecord) -> dict[str, int]:
        """What the data of each namespace takes on disk."""
        folder = self.places.device(record.name)
        allocated = {}
        for namespace in record.namespace:
            path = folder / f"{namespace.name}.img"
            allocated[namespace.name] = path.stat().st_blocks * 512 if path.exists() else 0
        return allocated


def _open_lock(path: Path, flags: int = 0) -> int:
    """A descriptor of a lock file. Raises UserError when that is something else, and FileNotFoundError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ELOOP, errno.ENXIO):
            raise _not_a_lock(path) from None
        raise UserError(f"{path}: {error.strerror}", "run as its owner") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_a_lock(path)
    return descriptor


def _not_a_lock(path: Path) -> UserError:
    return UserError(
        f"{path} exists and is not a regular file", "move it away: an empty file is made in its place"
    )


def _try_lock(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
