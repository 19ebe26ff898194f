"""`promises.json`: the SLOs given with `slo-ctl vm set`. They survive crashes of every kind."""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from slo_ctl.errors import UserError
from slo_ctl.promises.check import SloError, SloFields, check_fields, check_vm_name
from slo_ctl.whole_file import replace_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

FORMAT_VERSION = 1
MAX_BYTES = 64 << 20
_LOCK_PATIENCE_S = 5.0
_LOCK_PAUSE_S = 0.01


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    format_version: Literal[1]
    vms: dict[str, dict[str, float]]


class PromiseStore:
    """Some fields of an SLO for each of some VMs. Every method raises UserError on a damaged file, or none
    that can be read or written; the file is then left as it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self) -> dict[str, SloFields]:
        """Everything promised, by VM. A file that is not there promises nothing."""
        try:
            content = self._content()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise UserError(f"{self.path}: {error.strerror}", "run as root, or with --root DIR") from None
        try:
            file = _File.model_validate_json(content)
            for fields in file.vms.values():
                check_fields(fields)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise self._damaged(f"{where}: {first['msg']}" if where else first["msg"]) from None
        except SloError as error:
            raise self._damaged(error.message) from None
        return file.vms

    def set(self, vm: str, fields: Mapping[str, float]) -> None:
        """Promise these fields besides those there are. Raises UserError when they cannot all be promised."""
        check_vm_name(vm)
        with self._locked():
            vms = self.all()
            merged = vms.get(vm, {}) | dict(fields)
            try:
                check_fields(merged)
            except SloError as error:
                raise UserError(f"VM {vm}: {error.message}", error.hint) from None
            if not merged or vms.get(vm) == merged:
                return
            self._write(vms | {vm: merged})

    def unset(self, vm: str, names: Collection[str] | None = None) -> None:
        """Take back the fields of these names, or all of the VM's. What is not there is no error."""
        with self._locked():
            vms = self.all()
            before = vms.pop(vm, {})
            left = {} if names is None else {name: before[name] for name in before if name not in names}
            if left == before:
                return
            self._write(vms | ({vm: left} if left else {}))

    def _damaged(self, why: str) -> UserError:
        return UserError(
            f"{self.path}: damaged, or of another version of slo-ctl: {why}",
            "restore it, or move it away to start without what `slo-ctl vm set` promised",
        )

    def _content(self) -> bytes:
        # Non-blocking: a FIFO in its place must not stop us.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(MAX_BYTES + 1) or b""
        if len(content) > MAX_BYTES:
            raise self._damaged(f"more than {MAX_BYTES} bytes")
        return content

    def _write(self, vms: Mapping[str, SloFields]) -> None:
        """Replace the file in one step that a crash leaves done or not done."""
        text = json.dumps({"format_version": FORMAT_VERSION, "vms": dict(sorted(vms.items()))}, indent=2)
        try:
            replace_file(self.path, f"{text}\n".encode(), 0o644)
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be written: {error.strerror}; nothing was changed",
                "see its folder and the space on its file system",
            ) from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold off other writers. The lock is a file of its own, because the other one is replaced."""
        lock = self.path.with_name(f".{self.path.name}.lock")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        except OSError as error:
            raise UserError(f"{lock}: {error.strerror}", "run as root, or with --root DIR") from None
        try:
            deadline = time.monotonic() + _LOCK_PATIENCE_S
            while not _try_lock(descriptor):
                if time.monotonic() > deadline:
                    raise UserError(f"somebody else keeps {lock} locked", "see who with `fuser`")
                time.sleep(_LOCK_PAUSE_S)
            yield
        finally:
            os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
