"""Reads a file as a stream of decompressed bytes; gzip, xz and zstd are detected by their magic numbers."""

from __future__ import annotations

import gzip
import lzma
import re
import zlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from traces.errors import TraceError

_READ_BYTES = 1 << 20
# One compressed KiB of zstd expands to at most about 32 MiB, which limits the memory for a decompression
# bomb.
_ZSTD_FEED_BYTES = 1 << 10
_XZ_MEMORY_BYTES = 1 << 28

# What liblzma and libzstd say; neither has a class of error for it.
_NEEDS_MEMORY = re.compile(r"memory usage limit|too much memory", re.IGNORECASE)
_COMPRESS_AGAIN = {"xz": "xz -dc FILE | xz > NEW", "zst": "zstd -dc --long=31 FILE | zstd > NEW"}

_MAGIC = {b"\x1f\x8b": "gz", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zst"}


def compression_of(head: bytes) -> str:
    """`gz`, `xz`, `zst` or `none`, from the first bytes of a file (a zstd skippable frame counts as zstd)."""
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            return name
    if len(head) >= 4 and head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50:
        return "zst"
    return "none"


class _Files:
    """Several files as one, open from the first read until they are closed."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.path = paths[0]
        """The file that is read."""
        self.consumed_bytes = 0
        self._paths = list(paths[1:])
        self._file = _opened(paths[0])
        self.compression = compression_of(self._file.read(8))
        self._file.seek(0)

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes; none at the end of the last."""
        while not (data := self._file.read(size)) and self._paths:
            self._file.close()
            self.path = self._paths.pop(0)
            self._file = _opened(self.path)
        self.consumed_bytes += len(data)
        return data

    def close(self) -> None:
        self._file.close()


def _opened(path: Path) -> BinaryIO:
    try:
        if not path.is_file():
            kind = (
                "is a directory"
                if path.is_dir()
                else "is not a regular file"
                if path.exists()
                else "no such file"
            )
            raise TraceError(path, kind, hint="give the path of a trace file")
        return path.open("rb")
    except OSError as error:
        raise TraceError(
            path, error.strerror or str(error), hint="check the path and its permissions"
        ) from error


class Source:
    """The decompressed bytes of a file, or of several that continue one another.

    Read forwards, in bounded memory however much it expands.
    """

    def __init__(self, *streams: Path | Sequence[Path]) -> None:
        """`streams` are concatenated; the files of a stream are parts of one file."""
        self._streams = [[stream] if isinstance(stream, Path) else list(stream) for stream in streams]
        self._done_bytes = 0
        self._files = _Files(self._streams[0])
        self._pieces = self._all_pieces()
        self._rest = b""

    @property
    def path(self) -> Path:
        """The file that is being read."""
        return self._files.path

    @property
    def compression(self) -> str:
        """`gz`, `xz`, `zst` or `none`, of the current file."""
        return self._files.compression

    @property
    def consumed_bytes(self) -> int:
        """Stored bytes read so far, for a progress bar."""
        return self._done_bytes + self._files.consumed_bytes

    def close(self) -> None:
        """Close the file; further reads give nothing."""
        self._pieces.close()
        self._files.close()

    def _all_pieces(self) -> Generator[bytes]:
        for number, stream in enumerate(self._streams):
            if number:
                self._done_bytes += self._files.consumed_bytes
                self._files.close()
                self._files = _Files(stream)
            yield from _decompressed(self._files)

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer only at the end.

        Raises TraceError if the compressed data is damaged or truncated.
        """
        parts: list[bytes] = []
        missing = size
        while missing > 0:
            if not self._rest:
                self._rest = self._next_piece()
                if not self._rest:
                    break
            part = self._rest[:missing]
            self._rest = self._rest[len(part) :]
            parts.append(part)
            missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def peek(self, size: int) -> bytes:
        """The next `size` bytes (fewer only at the end) without consuming them."""
        while len(self._rest) < size:
            piece = self._next_piece()
            if not piece:
                break
            self._rest += piece
        return self._rest[:size]

    def _next_piece(self) -> bytes:
        try:
            return next(self._pieces, b"")
        except EOFError as error:
            raise TraceError(
                self.path,
                f"the {self._files.compression} data ends early",
                hint="the file is cut short; fetch it again",
            ) from error
        except (OSError, zlib.error, lzma.LZMAError, _DamagedError) as error:
            compression = self._files.compression
            if _NEEDS_MEMORY.search(str(error)):
                raise TraceError(
                    self.path,
                    f"decompressing its {compression} data needs more memory than is allowed",
                    hint=f"compress it again: {_COMPRESS_AGAIN[compression]}",
                ) from error
            raise TraceError(
                self.path,
                f"damaged {compression} data: {error}" if compression != "none" else str(error),
                hint="fetch the file again",
            ) from error


def _decompressed(files: _Files) -> Generator[bytes]:
    match files.compression:
        case "gz":
            return _gzip_pieces(files)
        case "xz":
            return _xz_pieces(files)
        case "zst":
            return _zstd_pieces(files)
        case _:
            return _plain_pieces(files)


class _DamagedError(Exception):
    """An error of a decompressor, of any class."""


def _plain_pieces(file: _Files) -> Generator[bytes]:
    while piece := file.read(_READ_BYTES):
        yield piece


def _gzip_pieces(file: _Files) -> Generator[bytes]:
    with gzip.GzipFile(fileobj=cast("BinaryIO", file), mode="rb") as stream:
        while piece := stream.read(_READ_BYTES):
            yield piece


def _xz_pieces(file: _Files) -> Generator[bytes]:
    data = file.read(_READ_BYTES)
    while data:
        stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
        while not stream.eof:
            if stream.needs_input and not data:
                data = file.read(_READ_BYTES)
                if not data:
                    raise EOFError
            piece = stream.decompress(data, _READ_BYTES)
            data = b""
            if piece:
                yield piece
        # Streams may be concatenated, with zero padding in multiples of four bytes between them.
        data = stream.unused_data.lstrip(b"\x00")
        while not data and (more := file.read(_READ_BYTES)):
            data = more.lstrip(b"\x00")


def _zstd_pieces(file: _Files) -> Generator[bytes]:
    import zstandard

    decompressor = zstandard.ZstdDecompressor()
    data = file.read(_ZSTD_FEED_BYTES)
    while data:
        frame = decompressor.decompressobj()
        while not frame.eof:
            if not data:
                data = file.read(_ZSTD_FEED_BYTES)
                if not data:
                    raise EOFError
            try:
                piece = frame.decompress(data)
            except zstandard.ZstdError as error:
                raise _DamagedError(str(error)) from error
            data = b""
            if piece:
                yield piece
        data = frame.unused_data or file.read(_ZSTD_FEED_BYTES)
