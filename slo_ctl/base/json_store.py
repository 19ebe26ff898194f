"""A JSON file of typed content: read as a whole, replaced atomically, never overwritten when damaged."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import from_json

from slo_ctl.base.clock import wait_for
from slo_ctl.base.errors import UserError
from slo_ctl.base.files import MAX_BYTES, hint_for, open_lock, read_regular, replace_file, try_lock

T = TypeVar("T")

FORMAT_VERSION = 1
"""Value of the field `format_version` in every file."""
_NOT_OWNER = "run as its owner, or use another directory with --root"
_LOCK_TIMEOUT_S = 5.0
_LOCK_POLL_S = 0.01


class StrictModel(BaseModel):
    """Content of a file or a result: immutable, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def to_json(self) -> str:
        """The indented text of one JSON object, without NaN and infinite numbers."""
        return json.dumps(self.model_dump(mode="json"), indent=2, allow_nan=False, ensure_ascii=False)


class JsonStore(Generic[T]):
    """One JSON file. Methods raise UserError when it cannot be read or written, and leave it unchanged."""

    def __init__(self, path: Path, content: type[T], *, repair: str, mode: int | None = None) -> None:
        """`content`: a dataclass or model; `repair`: what the user should do when the file is damaged."""
        self.path = path
        self._adapter: TypeAdapter[T] = TypeAdapter(content)
        self._repair = repair
        self._mode = mode

    def read(self) -> T | None:
        """The content; None when there is no file."""
        try:
            text = read_regular(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise self.damaged(f"it has more than {MAX_BYTES} bytes") from None
            hint = self._repair if error.errno == errno.EINVAL else _NOT_OWNER
            raise UserError(f"{self.path}: {error.strerror}", hint) from None
        if not text.strip():
            raise self.damaged("it is empty")
        try:
            return self._adapter.validate_json(text)
        except ValidationError as error:
            version = _version_of(text)
            if version not in (None, FORMAT_VERSION):
                raise UserError(
                    f"{self.path}: format_version {version!r}, this program reads {FORMAT_VERSION}",
                    f"use the slo-ctl that wrote it, or {self._repair}",
                ) from None
            if error.errors()[0]["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
                unknown = ".".join(map(str, error.errors()[0]["loc"]))
                raise UserError(
                    f"{self.path}: {unknown} is not known to this version of slo-ctl",
                    f"use the slo-ctl that wrote it, or {self._repair}",
                ) from None
            raise self.damaged(problem_of(error)) from None

    def write(self, content: T) -> None:
        """Replace the file atomically, also in a crash; the content is on disk on return."""
        text = self._adapter.dump_json(content, indent=2)
        try:
            path = self.path.resolve()  # a link of the operator stays
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, text + b"\n", self._mode)
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be written: {error.strerror}; nothing was changed",
                "check its directory and the free space of its file system",
            ) from None

    @contextmanager
    def locked(self, busy: str, timeout_s: float = _LOCK_TIMEOUT_S) -> Iterator[None]:
        """Lock the file against other writers; UserError `busy` when it stays locked for `timeout_s`."""
        # The lock is a separate file, because writing replaces the content file.
        lock, hint = self.path.with_name(f".{self.path.name}.lock"), _NOT_OWNER
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = open_lock(lock, hint)
        except OSError as error:
            raise UserError(f"{lock}: {error.strerror}", hint_for(error, hint)) from None
        try:
            if not wait_for(lambda: try_lock(descriptor), timeout_s, _LOCK_POLL_S):
                raise UserError(busy, f"try again when it has finished; `fuser {lock}` shows the process")
            yield
        finally:
            os.close(descriptor)

    def damaged(self, problem: str) -> UserError:
        """The error for invalid content."""
        return UserError(f"{self.path} is damaged: {problem}", self._repair)


def problem_of(error: ValidationError) -> str:
    """The first error, such as `vms[0].u: Input should be a valid number, not 'x'`."""
    first = error.errors(include_url=False)[0]
    where = ""
    for part in first["loc"]:
        where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else part
    problem, value = first["msg"].removeprefix("Value error, "), first["input"]
    if where and (value is None or isinstance(value, str | int | float)):
        problem = f"{problem}, not {value!r:.40}"
    return f"{where}: {problem}" if where else problem


def _version_of(text: bytes) -> Any:
    try:
        content = from_json(text)
    except ValueError:
        return None
    return content.get("format_version") if isinstance(content, dict) else None
