"""Reading a file as a stream of decompressed bytes; gzip, xz and zstd are known by their magic numbers."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from traces.errors import TraceError

_READ_BYTES = 1 << 20
# One compressed KiB of zstd expands to at most about 32 MiB, so this bounds the memory a bomb can take.
_ZSTD_FEED_BYTES = 1 << 10
_XZ_MEMORY_BYTES = 1 << 28

_MAGIC = {b"\x1f\x8b": "gz", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zst"}


def compression_of(head: bytes) -> str:
    """`gz`, `xz`, `zst` or `none`, from the first bytes of a file (a zstd skippable frame counts as zstd)."""
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            return name
    if len(head) >= 4 and head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50:
        return "zst"
    return "none"


class Source:
    """The decompressed bytes of one file, read forwards, in bounded memory whatever it expands to."""

    def __init__(self, path: Path) -> None:
        self.path = path
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
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise TraceError(
                path, error.strerror or str(error), hint="check the path and its permissions"
            ) from error
        self.size_bytes = path.stat().st_size
        """Of the file as stored."""
        head = self._file.read(8)
        self._file.seek(0)
        self.compression = compression_of(head)
        self._pieces = self._decompressed()
        self._rest = b""

    @property
    def consumed_bytes(self) -> int:
        """Stored bytes read so far, for a progress bar."""
        return self.size_bytes if self._file.closed else self._file.tell()

    def close(self) -> None:
        """Close the file; further reads give nothing."""
        self._pieces.close()
        self._file.close()

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer only at the end.

        Raises TraceError where the compressed data is damaged or cut short.
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
                f"the {self.compression} data ends early",
                hint="the file is cut short; fetch it again",
            ) from error
        except (OSError, zlib.error, lzma.LZMAError, _DamagedError) as error:
            raise TraceError(
                self.path,
                f"damaged {self.compression} data: {error}" if self.compression != "none" else str(error),
                hint="fetch the file again",
            ) from error

    def _decompressed(self) -> Generator[bytes]:
        match self.compression:
            case "gz":
                return _gzip_pieces(self._file)
            case "xz":
                return _xz_pieces(self._file)
            case "zst":
                return _zstd_pieces(self._file)
            case _:
                return _plain_pieces(self._file)


class _DamagedError(Exception):
    """A decompressor's complaint, whatever its own class."""


def _plain_pieces(file: BinaryIO) -> Generator[bytes]:
    while piece := file.read(_READ_BYTES):
        yield piece


def _gzip_pieces(file: BinaryIO) -> Generator[bytes]:
    with gzip.GzipFile(fileobj=file, mode="rb") as stream:
        while piece := stream.read(_READ_BYTES):
            yield piece


def _xz_pieces(file: BinaryIO) -> Generator[bytes]:
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
        # Streams may follow one another, with zero padding in multiples of four bytes between them.
        data = (stream.unused_data or file.read(_READ_BYTES)).lstrip(b"\x00")


def _zstd_pieces(file: BinaryIO) -> Generator[bytes]:
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
