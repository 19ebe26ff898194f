"""Opens a trace: detects its format, or uses the given one, and yields its records as batches."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from traces.compression import Source
from traces.errors import TraceError
from traces.formats.format import ACTIONS, ReadOptions, TraceFormat
from traces.formats.registry import FORMATS, detect
from traces.formats.screen import OnError, Screen
from traces.parts import Streams, TraceFiles, files_of, grouped, head_of

if TYPE_CHECKING:
    from traces.batch import Batch

DEFAULT_BATCH_RECORDS = 1 << 16


class TraceReader:
    """A trace file, which can be iterated repeatedly; each iteration reads the file again, in bounded memory.

    Results of a pass (`volumes`, `skipped`, `bad_records`, `records`, `notes`, `origin_ns`) grow while it
    runs and are reset by the next one.
    """

    def __init__(
        self,
        files: TraceFiles,
        row: TraceFormat,
        named: bool,
        on_error: OnError,
        batch_records: int,
        options: ReadOptions,
        actions: Sequence[str] = ("Q",),
    ) -> None:
        """`actions`: events to search for; the next one is used if the file has none of the previous."""
        self.path = path = files.paths[0]
        self._files = files
        self._parts: list[Streams] = [((path,),)] if files.per_cpu else grouped(files.paths, row)
        self._actions = actions
        self._row = row
        self._named = named
        self._on_error: OnError = on_error
        self._batch_records = batch_records
        self._options = options
        self._screen = Screen(path, row.name, on_error)
        self._source: Source | None = None
        self._read_bytes = 0
        self.size_bytes = sum(each.stat().st_size for each in files.paths)
        """Size of the stored file (all files of the trace)."""

    @property
    def format(self) -> str:
        return self._row.name

    @property
    def has_responses(self) -> bool:
        """Whether the format has durations of requests."""
        return self._row.has_responses

    @property
    def is_text(self) -> bool:
        """Whether the file has lines of text rather than binary records."""
        return self._row.is_text

    @property
    def paths(self) -> tuple[Path, ...]:
        return self._files.paths

    @property
    def volumes(self) -> Sequence[str]:
        """Names of the volumes met so far; `Batch.volume` indexes them."""
        return self._screen.volumes

    @property
    def skipped(self) -> Counter[str]:
        """Number of lines or records that were not yielded, by reason: bad ones and non-requests."""
        return self._screen.skipped

    @property
    def bad_records(self) -> int:
        """Number of bad records in `skipped`, which `on_error="raise"` would have refused."""
        return self._screen.bad_records

    @property
    def records(self) -> int:
        """Requests yielded so far."""
        return self._screen.records

    @property
    def notes(self) -> Sequence[str]:
        """Peculiarities of the trace, one sentence each."""
        return self._screen.notes

    @property
    def origin_ns(self) -> int:
        """Time of the first record on the trace's own clock, from which times in batches count."""
        return self._screen.origin_ns

    @property
    def consumed_bytes(self) -> int:
        """Stored bytes read so far in this pass, of `size_bytes`."""
        return self._read_bytes + (self._source.consumed_bytes if self._source else 0)

    def __iter__(self) -> Iterator[Batch]:
        """Batches of at most `batch_records` requests. Raises TraceError if something cannot be read."""
        for action in self._actions:
            options = replace(self._options, action=action)
            yield from self._one_pass(options)
            if self._screen.records:
                return
            if not self._screen.skipped[f"event other than {action}"]:
                break
        self._refuse_empty()

    def _one_pass(self, options: ReadOptions) -> Iterator[Batch]:
        screen = self._screen = Screen(self.path, self._row.name, self._on_error)
        screen.notes.extend(self._files.notes)
        self._read_bytes = 0
        for streams in self._parts:
            source = self._source = Source(*streams)
            screen.path = source.path
            try:
                for batch in self._decoded(source, screen, options):
                    if options.action != self._actions[0] and not screen.records - len(batch):
                        screen.notes.append(
                            f"no {self._actions[0]} events; {options.action} "
                            f"({ACTIONS[options.action]}) was taken for a request"
                        )
                    for start in range(0, len(batch), self._batch_records):
                        yield batch.slice(start, start + self._batch_records)
            finally:
                source.close()
            self._read_bytes += source.consumed_bytes
            self._source = None

    def _decoded(self, source: Source, screen: Screen, options: ReadOptions) -> Iterator[Batch]:
        try:
            yield from self._row.read(source, screen, options)
        except TraceError as error:
            if screen.records == 0:
                error.hint = self._hint_of_other_format() or self._with_format_found(error)
            raise

    def _with_format_found(self, error: TraceError) -> str:
        """The hint; with the format if other lines than the first, which is refused, resemble it."""
        if self._named or error.line != 1 or self._row.sniff(head_of(self._parts[0][0])) == 1.0:
            return error.hint
        found = f"it was read as {self.format}, which its lines resemble: --format names another format"
        return f"{found}; {error.hint}" if error.hint else found

    def _hint_of_other_format(self) -> str | None:
        if not self._named:
            return None
        found = detect(head_of(self._parts[0][0]))
        return (
            f"it looks like {found.name}: try --format {found.name}"
            if found and found is not self._row
            else None
        )

    def _refuse_empty(self) -> None:
        most = self._screen.skipped.most_common(1)
        why = f" ({most[0][1]} x {most[0][0]})" if most else ""
        hint = self._hint_of_other_format() or "name the right format with --format, or choose another file"
        raise TraceError(self.path, f"no {self.format} request in the file{why}", hint=hint)


_UTF_8 = "convert it to UTF-8: iconv -f UTF-16 -t UTF-8"
_NO_TRACES = (
    (0, b"PK\x03\x04", "a zip archive", "unpack it: unzip"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it: 7z x"),
    (257, b"ustar", "a tar archive", "unpack it: tar -xf"),
    (0, b"BZh", "compressed with bzip2", "decompress it with bunzip2, or compress it with gzip, xz or zstd"),
    (0, b"PAR1", "a Parquet file", "write its requests as CSV, as described in docs/replay.md (Traces)"),
    (0, b"\xff\xfe", "text in UTF-16", _UTF_8),
    (0, b"\xfe\xff", "text in UTF-16", _UTF_8),
)
"""Files in which a trace may be: offset and magic number, what has it, and what to do."""


def open_trace(
    path: str | os.PathLike[str],
    format: str | None = None,  # noqa: A002 - the field's word, and the option's name
    on_error: OnError = "raise",
    batch_records: int = DEFAULT_BATCH_RECORDS,
    *,
    action: str | None = None,
    responses: bool = False,
) -> TraceReader:
    """Open the trace at `path`, plain or compressed with gzip, xz or zstd (known by magic, not by name).

    `format` is a name of `traces.formats.registry.FORMATS`; None detects it. `on_error` "raise" stops at the
    first bad record, "skip" counts bad records by reason. `action` (Q, D or C) selects the event that
    represents a request in blktrace and blkparse; None: the first of them in the file. The base name of
    blktrace's per-CPU files (``sda`` for ``sda.blktrace.0`` ...) opens all of them; so do the common name of
    parts and a pattern (see `traces.parts`). `responses` requests `Batch.response_ns`, if the format has it.
    Raises TraceError for a file that is missing, unreadable, empty or in an unknown format, and ValueError
    for an invalid argument.
    """
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error is '{on_error}', not raise or skip")
    if batch_records < 1:
        raise ValueError(f"batch_records is {batch_records}, not positive")
    if action is not None and action not in ACTIONS:
        raise ValueError(f"action is '{action}', not Q, D or C")
    if format is not None and format not in FORMATS:
        raise ValueError(f"format '{format}' is unknown; known are {', '.join(FORMATS)}")
    files = files_of(Path(path))
    first = files.paths[0]
    head = head_of(files.paths)
    row = FORMATS[format] if format is not None else detect(head)
    if not head.data and not files.paths[1:]:
        raise TraceError(first, "the file is empty", hint="choose another file")
    if row is None:
        problem = "no known trace format"
        hint = f"name it: --format FORMAT; known are {', '.join(FORMATS)}"
        for offset, magic, what, remedy in _NO_TRACES:
            if head.data[offset:].startswith(magic):
                problem, hint = f"is {what}", remedy
        raise TraceError(first, problem, hint=hint)
    return TraceReader(
        files,
        row,
        format is not None,
        on_error,
        batch_records,
        ReadOptions(more_paths=files.paths[1:] if files.per_cpu else (), responses=responses),
        tuple(ACTIONS) if action is None else (action,),
    )
