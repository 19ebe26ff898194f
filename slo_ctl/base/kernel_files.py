"""Bounded reads of small kernel files, which may disappear at any time; writes of one line."""

from __future__ import annotations

import errno
import math
import os
import resource
import select
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

LIMIT_BYTES = 1 << 20
"""More than any file of cgroup, proc or sysfs that slo-ctl reads has on the largest hosts."""

_READ_BYTES = 1 << 13
"""Length of one read; of most of these files the kernel returns no more than that at a time."""
_READING = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags of open(2); non-blocking, so that a FIFO in the place of a kernel file cannot block."""
_REMOVED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESRCH, errno.ENODEV})
"""Errors of a file that no longer exists. kernfs answers ENODEV when it is removed after open(2)."""


class FileText(NamedTuple):
    """Content of a file; bytes that are not UTF-8 are kept as surrogates."""

    text: str
    cut: bool
    """The file is larger than the limit; `text` ends with its last whole line below it."""


def read_bounded(path: Path | str) -> FileText | None:
    """The text of a file; None when it does not exist (any more). Raises OSError otherwise."""
    try:
        descriptor = os.open(path, _READING)
        try:
            content = _content(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in _REMOVED:
            return None
        raise
    cut = len(content) > LIMIT_BYTES
    if cut:
        content = content[: content.rfind(b"\n", 0, LIMIT_BYTES) + 1]
    return FileText(content.decode("utf-8", "surrogateescape"), cut)


def read_text(path: Path | str) -> str:
    """The text of a file; empty when it does not exist or cannot be read."""
    try:
        file = read_bounded(path)
    except OSError:
        return ""
    return "" if file is None else file.text


def read_record(path: str, keep: Callable[[int], bool] | None = None) -> FileText | None:
    """As `read_bounded`, with one system call less, for files that one read returns completely (kernfs).

    `keep` is called with the descriptor of a file with content, and returns whether it stays open.
    """
    try:
        descriptor, kept = os.open(path, _READING), False
        try:
            content = os.read(descriptor, _READ_BYTES)
            kept = keep is not None and bool(content) and keep(descriptor)
        finally:
            if not kept:
                os.close(descriptor)
    except OSError as error:
        if error.errno in _REMOVED:
            return None
        if isinstance(error, BlockingIOError):
            return FileText("", False)
        raise
    if len(content) == _READ_BYTES:
        return read_bounded(path)
    return FileText(content.decode("utf-8", "surrogateescape"), False)


@dataclass(slots=True)
class _OpenFile:
    """An open file, and what it contained when it was last read."""

    descriptor: int
    content: bytes | None = None
    """None: it was not read again since it was opened."""
    file: FileText | None = None


class OpenFiles:
    """Kernel files that are read again and again, and stay open: to open one costs more than to read it.

    No more than `most` do, and none of an ordinary file system, where a removed file can still be read.
    """

    def __init__(self, most: int | None = None) -> None:
        """`most` is by default half of the descriptors that this process may have."""
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 if most is None else most
        self._open: dict[str, _OpenFile] = {}

    def __len__(self) -> int:
        return len(self._open)

    def read(self, path: str) -> FileText | None:
        """As `read_record`; the same object as before if the content of an open file has not changed."""
        opened = self._open.get(path)
        if opened is None:
            return self._first_read(path)
        try:
            content = os.pread(opened.descriptor, _READ_BYTES, 0)
        except OSError:
            # It was removed, and another may have its name.
            self.close(path)
            return self._first_read(path)
        if len(content) == _READ_BYTES:
            return read_bounded(path)
        if content != opened.content:
            opened.content, opened.file = content, FileText(content.decode("utf-8", "surrogateescape"), False)
        return opened.file

    def _first_read(self, path: str) -> FileText | None:
        return read_record(path, lambda descriptor: self._keep(path, descriptor))

    def _keep(self, path: str, descriptor: int) -> bool:
        if len(self._open) >= self._most or os.fstat(descriptor).st_size != 0:
            return False
        # Content without a size: the kernel makes it up.
        self._open[path] = _OpenFile(descriptor)
        return True

    def close(self, path: str) -> None:
        """Keep it open no longer."""
        opened = self._open.pop(path, None)
        if opened is not None:
            os.close(opened.descriptor)


def _content(descriptor: int) -> bytes:
    """All content, up to the first read that exceeds the limit."""
    content = b""
    try:
        while len(content) <= LIMIT_BYTES and (more := os.read(descriptor, _READ_BYTES)):
            content += more
    except BlockingIOError:
        # A FIFO would block.
        return b""
    return content


def write_line(path: Path | str, text: str) -> None:
    """Write a line with one system call; never creates the file. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode("ascii") + b"\n")
    finally:
        os.close(descriptor)


def is_readable(descriptor: int, within_s: float) -> bool:
    """Whether a pipe or socket has something to read, or has ended, within that time.

    Of any descriptor: select() takes only those below 1024.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(math.ceil(within_s * 1000)))
