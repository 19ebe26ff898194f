"""The devices there are: a directory for each, made and removed in one step."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from slo_ctl.base import numbers
from slo_ctl.base.errors import UnreachableError, UserError
from slo_ctl.base.files import open_lock, partial_of, read_regular, remove_leftovers, sync_folder, try_lock
from slo_ctl.base.keyvalue import did_you_mean
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.drives.control import VERSION, ControlClient, ControlError
from slo_ctl.drives.places import Places
from slo_ctl.drives.record import (
    RECORD_FILE,
    DeviceRecord,
    check_name,
    is_name,
    needs_flash,
    read_record,
    read_settings,
    to_toml,
)
from slo_ctl.drives.serving import find_server

_LOCK = "lock"
_AS_OWNER = "run as its owner"
_FILES = ("placement", "serving", "settings.json", "preconditioned.json")
"""Files of the server other than the record, the lock and the data of namespaces."""
_LOCK_TRIES = 10
_LOCK_PAUSE_S = 0.02


class ServedError(Exception):
    """The device is being served, so that it cannot be had."""


class DeviceStore:
    """Every device below one root."""

    def __init__(self, places: Places) -> None:
        self.places = places

    def names(self) -> list[str]:
        """Devices there are, by name, also of other users. Raises UserError if they cannot be listed."""
        folder = self.places.devices
        try:
            return sorted(
                item.name for item in folder.iterdir() if is_name(item.name) and _may_have_record(item)
            )
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise UserError(f"{folder}: {error.strerror}", _AS_OWNER) from None

    def load(self, name: str) -> DeviceRecord:
        """One device with the namespaces it has now. Raises UserError when there is none of that name."""
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
                else f"make one: slo-ctl device create {name} --size 8GiB"
            )
            raise UserError(f"device {name} not found in {self.places.devices}", hint) from None
        except OSError as error:
            raise UserError(f"{folder / RECORD_FILE}: {error.strerror}", _AS_OWNER) from None
        present = read_settings(folder).present(record.namespace)
        return record.model_copy(update={"namespace": present})

    def create(self, record: DeviceRecord) -> Path:
        """Create the directory of a device with empty sparse backing files. Raises UserError if it exists."""
        final = self.places.device(record.name)
        partial = partial_of(final)
        try:
            self.places.devices.mkdir(parents=True, exist_ok=True, mode=0o755)
        except OSError as error:
            # One of the parents may be a file, with which no device is in the way.
            raise _not_created(self.places.devices, error.strerror or "I/O error") from None
        try:
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
                    f"choose another name, or delete it: slo-ctl device delete {record.name}",
                ) from None
            raise _not_created(final, error.strerror or "I/O error") from None
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
        """Remove a device and the data on it. Raises UserError when there is none, or it is being served."""
        self.require(name)
        folder = self.places.device(name)
        try:
            with self.locked(name):
                trash = folder.with_name(f".{name}.{os.getpid()}.deleted")
                folder.rename(trash)
            shutil.rmtree(trash)
        except ServedError:
            raise _is_served(name) from None
        except OSError as error:
            raise UserError(f"cannot delete {folder}: {error.strerror}", _AS_OWNER) from None
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
        descriptor = open_lock(self.places.device(name) / _LOCK, _AS_OWNER)
        try:
            # A process that only looks whether the device is served holds the lock for a moment.
            for _ in range(_LOCK_TRIES):
                if try_lock(descriptor, fcntl.LOCK_EX):
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
            descriptor = open_lock(self.places.device(name) / _LOCK, _AS_OWNER, flags=0)
        except FileNotFoundError:
            return False
        try:
            return not try_lock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def capacity_bytes(self, record: DeviceRecord) -> int:
        """What all namespaces can have together, also where some are gone."""
        # Unless it was made with more, the device has what its first namespaces had.
        first = read_record(self.places.device(record.name)).namespace
        return record.capacity_bytes or sum(each.size_bytes for each in first)

    def allocated_bytes(self, record: DeviceRecord) -> dict[str, int]:
        """Bytes of each namespace's data on disk."""
        folder = self.places.device(record.name)
        allocated = {}
        for namespace in record.namespace:
            path = folder / f"{namespace.name}.img"
            allocated[namespace.name] = path.stat().st_blocks * 512 if path.exists() else 0
        return allocated


def _not_created(path: Path, why: str) -> UserError:
    return UserError(
        f"cannot create {path}: {why}",
        "name another directory with --root, or run as root for the system's devices",
    )


# Commands for a device that is not served: the server program carries one out, saves the placement and ends.
#
# The device stays as it was when that is killed in the middle: its placement is replaced in one step.

Progress = dict[str, Any]


def carry_out(
    store: DeviceStore,
    record: DeviceRecord,
    command: dict[str, object],
    progress: Callable[[Progress], None] = lambda _: None,
) -> dict[str, Any]:
    """Carry out a command of the control protocol and return its reply.

    `progress` gets what is reported meanwhile. Raises ControlError with its reason, ServedError
    while the device is served, UserError when the server cannot run.
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
    with subprocess.Popen(  # noqa: S603 - no shell, and every word is ours
        command,
        pass_fds=(lock_fd,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            for line in process.stdout or ():
                answer = json.loads(line)
                if "ok" in answer:
                    reply = answer
                else:
                    progress(answer)
            errors = process.stderr.read().decode("utf-8", "replace") if process.stderr else ""
        except BaseException:
            process.kill()
            raise
    if reply is None:
        raise UserError(
            _reason(errors) or f"the server ended with status {process.returncode}", "the device is unchanged"
        )
    if not reply["ok"]:
        raise ControlError(reply["error"]["code"], reply["error"]["message"])
    return reply


def _reason(errors: str) -> str:
    lines = [line.partition("error: ")[2] for line in errors.splitlines() if "error: " in line]
    return lines[-1] if lines else ""


# Namespaces that are resized, added and removed, whether their device is served or not.


def resize(
    store: DeviceStore, record: DeviceRecord, namespace: str, size_bytes: int, *, lose_data: bool
) -> bool:
    """Give a namespace another size, for good; returns whether the device is being served.

    Unless `lose_data`, it is never made smaller than the data it holds. Raises UserError saying why it does
    not go, and what would.
    """
    require_namespace(record, namespace)
    page = needs_flash(record, "`device resize`").drive.page_bytes
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
    return change(store, record, "resize", fields)[1]


def add_namespace(
    store: DeviceStore, record: DeviceRecord, name: str, size_bytes: int | None, weight: float | None
) -> tuple[int, int, bool]:
    """Create a namespace, by default of all that is free, with its part of the spare blocks as OPS.

    Returns its size, its OPS blocks, and whether the device is being served. Raises UserError.
    """
    check_name("namespace", name)
    page = needs_flash(record, "`device add`").drive.page_bytes
    if any(each.name == name for each in record.namespace):
        raise UserError(
            f"device {record.name} has a namespace {name} already",
            f"choose another name, or enlarge it: slo-ctl device resize {record.name}/{name} SIZE",
        )
    folder = store.places.device(record.name)
    sizes = read_settings(folder).of
    allocated = sum(sizes(each.name).size_bytes or each.size_bytes for each in record.namespace)
    capacity = store.capacity_bytes(record)
    free = max(0, capacity - allocated) // page * page
    wanted = free if size_bytes is None else size_bytes
    if not 0 < wanted <= free:
        asked = "a namespace" if size_bytes is None else f"{numbers.size(wanted)}"
        raise UserError(
            f"device {record.name} has no room for {asked}: {numbers.size(free)} of {numbers.size(capacity)} "
            "is unallocated",
            (f"write size={format_bytes_exact(free)}, or " if free else "") + _more_room(record.name),
        )
    if wanted % page:
        raise UserError(
            f"size={wanted} is not a multiple of the page size, {format_bytes_exact(page)}",
            f"write size={format_bytes_exact(max(1, wanted // page) * page)}",
        )
    fields: dict[str, object] = {"name": name, "size_bytes": wanted, "weight": weight}
    reply, served = change(store, record, "create_namespace", fields)
    return wanted, reply["ops_blocks"], served


def _more_room(device: str) -> str:
    return f"remove a namespace, whose blocks become unallocated: slo-ctl device remove {device}/NAMESPACE"


_NO_BLOCKS = re.compile(r"needs (\d+) blocks .* only (\d+) to spare")


def remove_namespace(store: DeviceStore, record: DeviceRecord, namespace: str) -> bool:
    """Delete a namespace and its data; returns whether the device is being served. Raises UserError."""
    require_namespace(record, namespace)
    return change(store, record, "delete_namespace", {"namespace": namespace})[1]


def require_namespace(record: DeviceRecord, namespace: str) -> None:
    """Raise UserError unless the device has a namespace of that name."""
    names = [each.name for each in record.namespace]
    if namespace not in names:
        raise UserError(f"device {record.name} has no namespace {namespace}", did_you_mean(namespace, names))


def change(
    store: DeviceStore, record: DeviceRecord, command: str, fields: dict[str, object]
) -> tuple[dict[str, Any], bool]:
    """Carry out a command whether the device is served or not; its reply, and whether it is served.

    Raises UserError.
    """
    try:
        return carry_out(store, record, {"op": command, **fields}), False
    except ServedError:
        return _ask_server(store, record, command, fields), True
    except ControlError as error:
        raise _refusal(record.name, error.message) from None


_CHANGE_TIMEOUT_S = 120.0
"""For a change of a namespace: requests under way and every page of it come first."""


def _ask_server(
    store: DeviceStore, record: DeviceRecord, command: str, fields: dict[str, object]
) -> dict[str, Any]:
    try:
        with ControlClient(store.places.run_of(record.name).control, _CHANGE_TIMEOUT_S) as client:
            return client.command(command, **fields)
    except ControlError as error:
        if error.code == "late":
            raise UnreachableError(
                f"device {record.name}: {error.message}, and may still carry it out",
                f"`slo-ctl device show {record.name}` shows whether it has",
            ) from None
        if error.code == "unreachable":
            raise UnreachableError(
                f"device {record.name} is being served, but its server does not answer: {error.message}",
                "run as its owner, or as a member of the group slo-ctl",
            ) from None
        raise _refusal(record.name, error.message) from None


def _refusal(device: str, message: str) -> UserError:
    if match := _NO_BLOCKS.search(message):
        return UserError(
            f"device {device}: a namespace of that size needs {match[1]} blocks for its data and "
            f"over-provisioning, and {match[2]} are unallocated",
            f"choose a smaller size, or {_more_room(device)}",
        )
    hint = (
        "move the data, or add --lose-data to discard data beyond the end"
        if "without loss" in message
        else "choose a smaller size, or take OPS blocks or space from another namespace first"
    )
    return UserError(re.sub(r" \(tenant would keep [^)]*\)", "", message), hint)


# Preconditioning a device: its placement is brought to the steady state in which garbage collection matters.

FILE = "preconditioned.json"


class Preconditioned(BaseModel):
    """Result of the last preconditioning."""

    model_config = ConfigDict(frozen=True)

    waf: float
    """(host + GC) / host page writes over the last capacity written, of all namespaces together."""
    settled: bool
    """False when the WAF still moved after the most that preconditioning writes."""
    drive_writes: float
    """Capacities written, the first fill included."""
    at_s: int
    """When, seconds since 1970."""


def read_preconditioned(folder: Path) -> Preconditioned | None:
    """How the device in `folder` was preconditioned; None where it was not, or that is not known."""
    try:
        return Preconditioned.model_validate_json(read_regular(folder / FILE))
    except (OSError, ValidationError):
        return None


def _may_have_record(folder: Path) -> bool:
    """Whether it is the directory of a device, as far as this user may know."""
    try:
        return (folder / RECORD_FILE).exists()
    except PermissionError:
        return True


def check_preconditionable(store: DeviceStore, record: DeviceRecord) -> None:
    """Raise UserError where `precondition` would be refused, before anything is said about its progress."""
    needs_flash(record, "`device precondition`")
    find_server()
    store.check_files(record.name)
    if store.is_served(record.name):
        raise _is_served(record.name)


def _is_served(name: str) -> UserError:
    return UserError(f"device {name} is being served", f"stop `slo-ctl device serve {name}` first")


def precondition(
    store: DeviceStore, record: DeviceRecord, progress: Callable[[float], None]
) -> Preconditioned:
    """Precondition a device that is not served; `progress` gets the capacities written so far.

    Guest data is neither read nor written. Raises UserError while the device is served.
    """
    needs_flash(record, "`device precondition`")
    try:
        reply = carry_out(
            store, record, {"op": "precondition"}, lambda answer: progress(float(answer["drive_writes"]))
        )
    except ServedError:
        raise _is_served(record.name) from None
    except ControlError as error:
        raise UserError(f"device {record.name}: {error.message}", "the device is unchanged") from None
    return Preconditioned.model_validate_json(json.dumps(reply["preconditioned"]))
