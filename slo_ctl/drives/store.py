"""Directories of devices, which are created and removed atomically, and commands for devices."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from slo_ctl.base import numbers
from slo_ctl.base.clock import wait_for
from slo_ctl.base.errors import UnreachableError, UserError
from slo_ctl.base.files import (
    hint_for,
    open_lock,
    partial_of,
    remove_leftovers,
    sync_folder,
    try_lock,
)
from slo_ctl.base.keyvalue import did_you_mean
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.drives.control import VERSION, ControlClient, ControlError, find_server
from slo_ctl.drives.places import Places
from slo_ctl.drives.record import (
    PRECONDITIONED_FILE,
    RECORD_FILE,
    SETTINGS_FILE,
    DeviceRecord,
    Preconditioned,
    check_name,
    is_name,
    read_record,
    read_settings,
    require_ssd,
    to_toml,
)

_LOCK = "lock"
_AS_OWNER = "run as its owner"
_FILES = ("placement", "serving", SETTINGS_FILE, PRECONDITIONED_FILE)
"""Files of the server other than the record, the lock and the data of namespaces."""
_LOCK_TIMEOUT_S = 0.2
_LOCK_POLL_S = 0.02


class ServedError(Exception):
    """The device is being served, so it cannot be locked."""


class DeviceStore:
    """All devices below one root."""

    def __init__(self, places: Places) -> None:
        self.places = places

    def names(self) -> list[str]:
        """Sorted names of all devices, also of other users. Raises UserError if they cannot be listed."""
        folder = self.places.devices
        try:
            return sorted(
                item.name for item in folder.iterdir() if is_name(item.name) and _may_have_record(item)
            )
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise UserError(f"{folder}: {error.strerror}", hint_for(error, _AS_OWNER)) from None

    def load(self, name: str) -> DeviceRecord:
        """Record of a device with its present namespaces. Raises UserError when it does not exist."""
        device, _, namespace = name.partition("/")
        if is_name(device) and is_name(namespace):
            raise UserError(f"{name} is a namespace, not a device", f"name its device: {device}")
        check_name("device", name)
        folder = self.places.device(name)
        try:
            record = read_record(folder)
        except FileNotFoundError:
            if folder.is_dir():
                raise UserError(
                    f"{folder / RECORD_FILE} is missing, so device {name} is unknown; its data still exists",
                    "restore the file, or move the directory away",
                ) from None
            hint = (
                did_you_mean(name, self.names())
                if self.names()
                else f"create it: slo-ctl device create {name} --size 8GiB"
            )
            raise UserError(f"device {name} not found in {self.places.devices}", hint) from None
        except OSError as error:
            raise UserError(f"{folder / RECORD_FILE}: {error.strerror}", hint_for(error, _AS_OWNER)) from None
        present = read_settings(folder).present(record.namespace)
        return record.model_copy(update={"namespace": present})

    def create(self, record: DeviceRecord) -> Path:
        """Create the directory of a device with empty sparse backing files. Raises UserError if it exists."""
        final = self.places.device(record.name)
        partial = partial_of(final)
        try:
            self.places.devices.mkdir(parents=True, exist_ok=True, mode=0o755)
        except OSError as error:
            # A parent may be a file, which must not be reported as an existing device.
            raise _not_created(self.places.devices, error) from None
        try:
            remove_leftovers(self.places.devices)
            partial.mkdir(mode=0o700)
            try:
                self._fill(partial, record)
                # Fails if a device, or a directory that is not empty, has this name.
                partial.rename(final)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
            sync_folder(self.places.devices)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise UserError(
                    f"device {record.name} already exists",
                    f"choose another name, or delete it: slo-ctl device delete {record.name}",
                ) from None
            raise _not_created(final, error) from None
        return final

    def _fill(self, folder: Path, record: DeviceRecord) -> None:
        for namespace in record.namespace:
            with (folder / f"{namespace.name}.img").open("xb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.truncate(namespace.size_bytes)
                os.fsync(file.fileno())
        (folder / _LOCK).touch(mode=0o600)
        with (folder / RECORD_FILE).open("x", encoding="utf-8") as text:
            text.write(to_toml(record))
            text.flush()
            os.fsync(text.fileno())
        sync_folder(folder)

    def delete(self, name: str) -> None:
        """Delete a device and its data. Raises UserError when it does not exist or is being served."""
        self.require(name)
        folder = self.places.device(name)
        try:
            with self.locked(name):
                # While it is locked: from then on another device may have its name.
                shutil.rmtree(self.places.run_of(name).folder, ignore_errors=True)
                trash = folder.with_name(f".{name}.{os.getpid()}.deleted")
                folder.rename(trash)
            shutil.rmtree(trash)
        except ServedError:
            raise _is_served(name) from None
        except OSError as error:
            raise UserError(f"cannot delete {folder}: {error.strerror}", _AS_OWNER) from None

    def require(self, name: str) -> None:
        """Raise UserError unless the device exists; its record may be damaged."""
        if name not in self.names():
            self.load(name)

    def check_files(self, name: str) -> None:
        """Raise UserError when one of the server's files is not a regular file."""
        for file_name in _FILES:
            path = self.places.device(name) / file_name
            if path.exists() and not path.is_file():
                raise UserError(
                    f"{path} exists and is not a regular file", "move it away, or restore the file"
                )

    @contextmanager
    def locked(self, name: str) -> Iterator[int]:
        """Lock a device; yields the descriptor, which a child may inherit with the lock.

        Raises ServedError.
        """
        path, is_locked = self.places.device(name) / _LOCK, False
        while not is_locked:
            descriptor = open_lock(path, _AS_OWNER)
            try:
                # `is_served` of another process holds the lock for a moment.
                if not wait_for(partial(try_lock, descriptor), _LOCK_TIMEOUT_S, _LOCK_POLL_S):
                    raise ServedError
                # Else the device was deleted meanwhile, and it is another one if there is one.
                is_locked = path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor))
                if is_locked:
                    yield descriptor
            finally:
                os.close(descriptor)

    def is_served(self, name: str) -> bool:
        """Whether a server has locked the device."""
        try:
            descriptor = open_lock(self.places.device(name) / _LOCK, _AS_OWNER, flags=os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return not try_lock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def capacity_bytes(self, record: DeviceRecord) -> int:
        """Capacity for namespaces; by default the size of the initial namespaces."""
        initial = read_record(self.places.device(record.name)).namespace
        return record.capacity_bytes or sum(namespace.size_bytes for namespace in initial)

    def allocated_bytes(self, record: DeviceRecord) -> dict[str, int]:
        """Bytes of each namespace's data on disk."""
        folder = self.places.device(record.name)
        allocated = {}
        for namespace in record.namespace:
            path = folder / f"{namespace.name}.img"
            allocated[namespace.name] = path.stat().st_blocks * 512 if path.exists() else 0
        return allocated


def _not_created(path: Path, error: OSError) -> UserError:
    hint = "use another directory with --root, or run as root for the system's devices"
    return UserError(f"cannot create {path}: {error.strerror or 'I/O error'}", hint_for(error, hint))


# Commands for a device that is not served: the server program executes one, saves the placement and exits.
#
# The placement is replaced atomically, so the device is unchanged if the program is killed.

Progress = dict[str, Any]


def run_offline(
    store: DeviceStore,
    record: DeviceRecord,
    command: dict[str, object],
    progress: Callable[[Progress], None] = lambda _: None,
) -> dict[str, Any]:
    """Execute a command of the control protocol on a device that is not served, and return its reply.

    `progress` receives intermediate reports. Raises ControlError when it is refused, ServedError while the
    device is served, and UserError when the server program fails.
    """
    server = find_server()
    store.check_files(record.name)
    with store.locked(record.name) as lock:
        lock_fd = os.dup(lock)
        try:
            return _run(
                [
                    str(server),
                    f"device={store.places.device(record.name)}",
                    f"lock-fd={lock_fd}",
                    f"command={json.dumps({'v': VERSION, **command})}",
                ],
                lock_fd,
                progress,
            )
        finally:
            os.close(lock_fd)


def _run(command: list[str], lock_fd: int, progress: Callable[[Progress], None]) -> dict[str, Any]:
    reply: dict[str, Any] | None = None
    with subprocess.Popen(  # noqa: S603 - no shell
        command,
        pass_fds=(lock_fd,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            for line in process.stdout or ():
                message = json.loads(line)
                if "ok" in message:
                    reply = message
                else:
                    progress(message)
            errors = process.stderr.read().decode("utf-8", "replace") if process.stderr else ""
        except BaseException:
            process.kill()
            raise
    if reply is None:
        raise UserError(
            _last_error(errors) or f"the server exited with status {process.returncode}",
            "the device is unchanged",
        )
    if not reply["ok"]:
        raise ControlError(reply["error"]["code"], reply["error"]["message"])
    return reply


def _last_error(errors: str) -> str:
    lines = [line.partition("error: ")[2] for line in errors.splitlines() if "error: " in line]
    return lines[-1] if lines else ""


# Resizing, adding and removing namespaces of devices that are served or not.


def resize(
    store: DeviceStore, record: DeviceRecord, namespace: str, size_bytes: int, *, lose_data: bool
) -> bool:
    """Change the size of a namespace permanently; returns whether the device is being served.

    Without `lose_data`, a size that would lose data is refused. Raises UserError.
    """
    require_namespace(record, namespace)
    page = require_ssd(record, "`device resize`").drive.page_bytes
    if size_bytes <= 0 or size_bytes % page:
        raise UserError(
            f"{size_bytes} bytes is not a multiple of the page size, {format_bytes_exact(page)}",
            f"write {format_bytes_exact(max(1, round(size_bytes / page)) * page)}",
        )
    fields: dict[str, object] = {
        "namespace": namespace,
        "size_bytes": size_bytes,
        "keep_data": not lose_data,
    }
    return run_command(store, record, "resize", fields)[1]


def add_namespace(
    store: DeviceStore, record: DeviceRecord, name: str, size_bytes: int | None, weight: float | None
) -> tuple[int, int, bool]:
    """Add a namespace, by default with all unallocated capacity, and a part of the spare blocks as OPS.

    Returns its size, its OPS blocks, and whether the device is being served. Raises UserError.
    """
    check_name("namespace", name)
    page = require_ssd(record, "`device add`").drive.page_bytes
    if any(namespace.name == name for namespace in record.namespace):
        raise UserError(
            f"device {record.name} already has a namespace {name}",
            f"choose another name, or enlarge it: slo-ctl device resize {record.name}/{name} SIZE",
        )
    folder = store.places.device(record.name)
    settings = read_settings(folder)
    allocated = sum(
        settings.of(namespace.name).size_bytes or namespace.size_bytes for namespace in record.namespace
    )
    capacity = store.capacity_bytes(record)
    free = max(0, capacity - allocated) // page * page
    wanted = free if size_bytes is None else size_bytes
    if not 0 < wanted <= free:
        requested = "a namespace" if size_bytes is None else numbers.size(wanted)
        raise UserError(
            f"device {record.name} has no space for {requested}: {numbers.size(free)} of "
            f"{numbers.size(capacity)} is unallocated",
            (f"write size={format_bytes_exact(free)}, or " if free else "") + _hint_more_space(record.name),
        )
    if wanted % page:
        raise UserError(
            f"size={wanted} is not a multiple of the page size, {format_bytes_exact(page)}",
            f"write size={format_bytes_exact(max(1, wanted // page) * page)}",
        )
    fields: dict[str, object] = {"name": name, "size_bytes": wanted, "weight": weight}
    reply, served = run_command(store, record, "create_namespace", fields)
    return wanted, reply["ops_blocks"], served


def _hint_more_space(device: str) -> str:
    return f"remove a namespace, whose blocks become unallocated: slo-ctl device remove {device}/NAMESPACE"


_NO_BLOCKS = re.compile(r"needs (\d+) blocks .* only (\d+) to spare")


def remove_namespace(store: DeviceStore, record: DeviceRecord, namespace: str) -> None:
    """Remove a namespace and its data. Raises UserError."""
    require_namespace(record, namespace)
    run_command(store, record, "delete_namespace", {"namespace": namespace})


def require_namespace(record: DeviceRecord, namespace: str) -> None:
    """Raise UserError unless the device has a namespace of that name."""
    names = [item.name for item in record.namespace]
    if namespace not in names:
        raise UserError(f"device {record.name} has no namespace {namespace}", did_you_mean(namespace, names))


def run_command(
    store: DeviceStore, record: DeviceRecord, command: str, fields: dict[str, object]
) -> tuple[dict[str, Any], bool]:
    """Execute a command on a device that is served or not; returns its reply, and whether it is served.

    Raises UserError.
    """
    try:
        return run_offline(store, record, {"op": command, **fields}), False
    except ServedError:
        return _run_on_server(store, record, command, fields), True
    except ControlError as error:
        raise _refusal(record.name, error.message) from None


_CHANGE_TIMEOUT_S = 120.0
"""Timeout of changes of a namespace, which wait for requests in flight and visit all its pages."""


def _run_on_server(
    store: DeviceStore, record: DeviceRecord, command: str, fields: dict[str, object]
) -> dict[str, Any]:
    socket = store.places.run_of(record.name).control
    try:
        with ControlClient(socket) as client:
            client.hello()
    except ControlError as error:
        raise _no_answer(
            record.name, error, f"nothing was changed; see `slo-ctl device show {record.name}`"
        ) from None
    try:
        with ControlClient(socket, _CHANGE_TIMEOUT_S) as client:
            return client.command(command, **fields)
    except ControlError as error:
        if error.code == "late":
            raise UnreachableError(
                f"device {record.name}: {error.message}, but may still execute the command",
                f"check with `slo-ctl device show {record.name}`",
            ) from None
        if error.code == "unreachable":
            raise _no_answer(record.name, error) from None
        raise _refusal(record.name, error.message) from None


def _no_answer(device: str, error: ControlError, otherwise: str = "") -> UnreachableError:
    """`otherwise`: hint if the server can be reached."""
    return UnreachableError(
        f"device {device} is being served, but its server does not answer: {error.message}",
        "run as its owner, or as a member of the group slo-ctl" if error.code == "unreachable" else otherwise,
    )


def _refusal(device: str, message: str) -> UserError:
    if match := _NO_BLOCKS.search(message):
        return UserError(
            f"device {device}: a namespace of that size needs {match[1]} blocks for its data and "
            f"over-provisioning, and {match[2]} are unallocated",
            f"choose a smaller size, or {_hint_more_space(device)}",
        )
    hint = (
        "move the data, or add --lose-data to discard data beyond the end"
        if "without loss" in message
        else "choose a smaller size, or take OPS blocks or space from another namespace first"
    )
    return UserError(re.sub(r" \(tenant would keep [^)]*\)", "", message), hint)


def _may_have_record(folder: Path) -> bool:
    """Whether the directory has a record, or this user may not read it."""
    try:
        return (folder / RECORD_FILE).exists()
    except PermissionError:
        return True


# Preconditioning: writing to a device until its WAF is steady.


def check_preconditionable(store: DeviceStore, record: DeviceRecord) -> None:
    """Raise UserError if `precondition` would be refused, before progress is shown."""
    require_ssd(record, "`device precondition`")
    find_server()
    store.check_files(record.name)
    if store.is_served(record.name):
        raise _is_served(record.name)


def _is_served(name: str) -> UserError:
    return UserError(f"device {name} is being served", f"stop `slo-ctl device serve {name}` first")


def precondition(
    store: DeviceStore, record: DeviceRecord, progress: Callable[[float], None]
) -> Preconditioned:
    """Precondition a device that is not served; `progress` receives the drive writes so far.

    Guest data is neither read nor written. Raises UserError while the device is served.
    """
    require_ssd(record, "`device precondition`")
    try:
        reply = run_offline(
            store, record, {"op": "precondition"}, lambda message: progress(float(message["drive_writes"]))
        )
    except ServedError:
        raise _is_served(record.name) from None
    except ControlError as error:
        raise UserError(f"device {record.name}: {error.message}", "the device is unchanged") from None
    return Preconditioned.model_validate(reply["preconditioned"])
