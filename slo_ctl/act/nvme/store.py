"""Mappings of VMs onto NVMe namespaces, finished or not, on disk before each step."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ConfigDict, TypeAdapter, ValidationError

from slo_ctl.errors import UserError
from slo_ctl.model.mapping import Mapping
from slo_ctl.whole_file import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FORMAT_VERSION = 1
MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class _File:
    """What is in it. Keys that are not known are refused: they could be steps."""

    format_version: int
    mappings: tuple[Mapping, ...]
    __pydantic_config__ = ConfigDict(extra="forbid", strict=False)


_FILE = TypeAdapter(_File)


class MappingStore:
    """All mappings of this host. Read and written only while `locked`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def all(self) -> tuple[Mapping, ...]:
        """Every mapping. Raises UserError when the file is damaged: it is neither changed nor passed over."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise UserError(f"{self._path}: {error.strerror}", "run as root") from None
        try:
            if len(content) > MAX_BYTES:
                raise ValueError(f"it has {len(content)} bytes")
            file = _FILE.validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "it"
            raise self._damaged(f"{where}: {first['msg']}") from None
        except ValueError as error:
            raise self._damaged(str(error)) from None
        if file.format_version != FORMAT_VERSION:
            raise UserError(
                f"{self._path}: format_version {file.format_version}, this program reads {FORMAT_VERSION}",
                "use the slo-ctl that wrote it",
            )
        return file.mappings

    def put(self, old: Mapping | None, new: Mapping | None) -> None:
        """Have `new` in place of `old`; None: add, or remove. On disk when it returns. Raises UserError."""
        kept = [each for each in self.all() if each != old]
        file = _File(FORMAT_VERSION, (*kept, *([new] if new is not None else [])))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, _FILE.dump_json(file, indent=1) + b"\n", 0o600)
        except OSError as error:
            raise UserError(
                f"{self._path} cannot be written: {error.strerror}", "nothing more was done"
            ) from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else maps or unmaps meanwhile. Raises UserError when somebody does."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(
                self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        except OSError as error:
            raise UserError(f"{self._path.parent}: {error.strerror}", "run as root") from None
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    "another slo-ctl is mapping or unmapping", "try again when it has ended"
                ) from None
            yield
        finally:
            os.close(lock)

    def _damaged(self, problem: str) -> UserError:
        return UserError(
            f"{self._path} is damaged: {problem}",
            "put back a copy; without it, `slo-ctl vm map --adopt` takes the namespaces up again",
        )
