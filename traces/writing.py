"""Writes a trace file atomically."""

from __future__ import annotations

import contextlib
import errno
import gzip
import lzma
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self, cast

from traces.errors import TraceError
from traces.formats.registry import FORMATS, writable

if TYPE_CHECKING:
    from traces.batch import Batch

DEFAULT_FORMAT = "slo-ctl"
_RESERVE_BYTES = 256 << 10
"""Space for buffered data of a compressor, and for the footer: zstd has blocks of 128 KiB."""


_OTHER_KINDS = (".bz2", ".zip", ".7z", ".lz4", ".lzma", ".tgz", ".parquet")
"""Suffixes of files that a trace is not: other compressions, and tables."""


class TraceWriter:
    """Writes a trace in one of the writable formats; a context manager.

    The records go to a hidden file beside `path`, which is renamed to `path` when the `with` block ends
    without an exception and removed otherwise. A name ending in .gz, .xz, .zst or .zstd is compressed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        format_: str = DEFAULT_FORMAT,
        *,
        overwrite: bool = False,
        mode: int | None = None,
        reserve: bool = False,
    ) -> None:
        """`mode` are the permissions; None: the process's default for new files.

        `reserve`: space is allocated before each batch, so that a batch that does not fit on the disk fails
        before anything of it is written, and the trace can still be completed. Raises ValueError for a format
        without a writer, TraceError for a file that exists or has the suffix of another kind of file.
        """
        row = FORMATS.get(format_)
        if row is None or row.write is None:
            raise ValueError(f"format '{format_}' cannot be written; {', '.join(writable())} can")
        self.path = Path(path)
        self.records = 0
        self._mode = mode
        self._reserve = reserve
        self._reserved_bytes = 0
        self._writer = row.write()
        if self.path.suffix.lower() in _OTHER_KINDS:
            reason = f"{self.path.suffix} cannot be written"
            raise TraceError(
                self.path, reason, hint="name a file with .gz, .xz or .zst, or without any of them"
            )
        if str(path) == "-":
            raise TraceError(self.path, "standard output cannot be written to", hint="name a file")
        if self.path.is_dir():
            raise TraceError(self.path, "is a directory", hint="name a file")
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_file()):
            # It would be replaced, such as /dev/stdout.
            raise TraceError(self.path, "is not a regular file", hint="name a new file, or one to replace")
        if self.path.exists() and not overwrite:
            raise TraceError(self.path, "exists already", hint="--force overwrites it")
        # As in slo_ctl.base.files, which removes files of killed processes: hosts may share the directory.
        own = f"{os.getpid()}@{os.uname().nodename}"
        self._partial = self.path.with_name(f".{self.path.name}.{own}.partial")
        self._streams = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            self._file = self._streams.enter_context(self._partial.open("xb"))
            if self._mode is not None:
                os.fchmod(self._file.fileno(), self._mode)
            if self._reserve:
                # Called when the compressor is closed: the file ends with the last byte.
                self._streams.callback(self._file.truncate)
            self._stream = self._streams.enter_context(_compressed(self._file, self.path.suffix))
            self._stream.write(self._writer.header())
        except FileExistsError as error:
            raise self._failure(error) from error
        except BaseException as error:  # also Ctrl-C: `__exit__` is not called if this does not return
            self._streams.close()
            self._partial.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise self._failure(error) from error
            raise
        return self

    def write(self, batch: Batch, volumes: Sequence[str]) -> None:
        """Append a batch. Raises TraceError if the format cannot express it or the disk is full."""
        try:
            encoded = self._writer.encode(batch, volumes)
            if self._reserve:
                self._allocate(len(encoded))
            self._stream.write(encoded)
        except ValueError as error:
            raise TraceError(self.path, str(error)) from error
        except OSError as error:
            raise self._failure(error) from error
        self.records += len(batch)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del error, trace
        try:
            if kind is None:
                self._stream.write(self._writer.footer())
            self._streams.close()
            if kind is None:
                self._partial.replace(self.path)
        except OSError as failure:
            raise self._failure(failure) from failure
        finally:
            self._partial.unlink(missing_ok=True)

    def _allocate(self, more_bytes: int) -> None:
        """Allocate space for `more_bytes` and for buffered data. Raises OSError."""
        needed = self._file.tell() + more_bytes + _RESERVE_BYTES
        if needed > self._reserved_bytes:
            os.posix_fallocate(self._file.fileno(), self._reserved_bytes, needed - self._reserved_bytes)
            self._reserved_bytes = needed

    def _failure(self, error: OSError) -> TraceError:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "free space there, or write elsewhere" if is_full else "name another file"
        return TraceError(self.path, f"cannot be written: {error.strerror or error}", hint=hint)


def _compressed(file: BinaryIO, suffix: str) -> contextlib.AbstractContextManager[BinaryIO]:
    match suffix.lower():
        case ".gz":
            # No time and name in the header, so that the same trace gives the same bytes.
            return cast("BinaryIO", gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0))
        case ".xz":
            return cast("BinaryIO", lzma.LZMAFile(file, "wb"))
        case ".zst" | ".zstd":
            import zstandard

            stream: BinaryIO = zstandard.ZstdCompressor().stream_writer(file, closefd=False)
            return stream
        case _:
            return contextlib.nullcontext(file)
