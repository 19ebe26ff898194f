"""A trace format: name, detection, reader and optionally writer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from traces.batch import Batch
    from traces.compression import Source
    from traces.formats.screen import Screen

HEAD_BYTES = 1 << 16


@dataclass(frozen=True)
class Head:
    """The decompressed beginning of a file (at most 64 KiB) and its name, to detect the format."""

    data: bytes
    name: str = ""
    """File name without the compression's extension."""

    @cached_property
    def is_text(self) -> bool:
        """No NUL bytes: every binary format here has some in its first record."""
        return bool(self.data) and b"\0" not in self.data

    @cached_property
    def lines(self) -> list[str]:
        """The first complete, non-empty lines, at most 20, stripped; a single incomplete one counts."""
        if not self.is_text:
            return []
        text = self.data.removeprefix(b"\xef\xbb\xbf")
        parts = text.split(b"\n", 40)
        if len(parts) > 1 and (len(parts) > 40 or len(self.data) == HEAD_BYTES):
            parts.pop()
        stripped = (part.decode("utf-8", "replace").strip() for part in parts)
        return [line for line in stripped if line][:20]

    def share_of_lines(self, matches: Callable[[str], object]) -> float:
        """The share of lines for which `matches` is true; 0 without lines."""
        return sum(1 for line in self.lines if matches(line)) / len(self.lines) if self.lines else 0.0


ACTIONS = {"Q": "queued", "D": "issued", "C": "completed"}
"""Events of the block layer, in the order in which they are searched for."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a reader."""

    action: str = "Q"
    """Which block-layer event represents a request in blktrace and blkparse, one of ACTIONS."""
    more_paths: tuple[Path, ...] = ()
    """Further files of the same trace (blktrace's other CPUs)."""
    responses: bool = False
    """Fill `Batch.response_ns`, if the format has it."""


class Reader(Protocol):
    """Decodes a file's bytes into batches of any size, and reports errors to the screen."""

    def __call__(self, source: Source, screen: Screen, options: ReadOptions, /) -> Iterator[Batch]:
        """Decode."""


class Writer(Protocol):
    """Encodes batches; one per file written."""

    def header(self) -> bytes:
        """Bytes before the first record."""

    def encode(self, batch: Batch, volumes: Sequence[str]) -> bytes:
        """The records' bytes. Raises ValueError, one line, if the format cannot express them."""

    def footer(self) -> bytes:
        """Bytes after the last record."""


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """One row of the table of formats."""

    name: str
    description: str
    extensions: tuple[str, ...]
    sniff: Callable[[Head], float]
    """Confidence that a file has this format, 0 .. 1."""
    read: Reader
    write: Callable[[], Writer] | None = None
    is_text: bool = True
    has_responses: bool = False
    """Whether records have the duration of the request."""
