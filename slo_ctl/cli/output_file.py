"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from slo_ctl.errors import UserError
from slo_ctl.whole_file import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def check_writable(option: str, path: Path) -> None:
    """Raise UserError when `path` cannot be written; asked before a long run, not after it."""
    if path.is_dir():
        raise UserError(f"{option}: {path} is a directory", "name a file")
    folder = path.parent
    if not folder.is_dir():
        raise UserError(f"{option}: there is no directory {folder}", "create it or name another file")
    if not os.access(folder, os.W_OK):
        raise UserError(f"{option}: {folder} is not writable", "name a file in a directory of yours")


def write_whole(option: str, path: Path, text: str) -> None:
    """Put `text` (UTF-8) at `path` in one step: a reader sees the old file or the new one.

    Raises UserError when the system refuses.
    """
    with writing(option, path):
        replace_file(path, text.encode())


@contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """While `path` is written: raises UserError when the system refuses."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{option}: cannot write {path}: {error.strerror}", "name another file") from None
