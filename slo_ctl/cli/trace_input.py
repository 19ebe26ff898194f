"""Reading a trace for `slo-ctl trace`: options, opening, progress and errors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from slo_ctl.base.errors import UserError

if TYPE_CHECKING:
    from traces.batch import Batch
    from traces.formats.screen import OnError
    from traces.reader import TraceReader

ON_ERROR = typer.Option(
    "--on-error", metavar="raise|skip", help="Stop at a bad record, or skip and count it."
)
ACTION = typer.Option(
    "--action",
    metavar="Q|D|C",
    help="Event of blktrace and blkparse that counts as a request. [default: Q, else D, else C]",
)


def open_named(path: Path, format_: str | None, on_error: str, action: str | None) -> TraceReader:
    """The reader of the trace that the options name. Raises UserError, TraceError and ValueError."""
    from traces.reader import open_trace

    return open_trace(path, format_, on_error_of(on_error), action=action)


def on_error_of(text: str) -> OnError:
    """Value of --on-error. Raises UserError."""
    if text == "raise":
        return "raise"
    if text == "skip":
        return "skip"
    raise UserError(f"--on-error: '{text}' is not known", "known: raise (stop), skip (count and continue)")


@contextmanager
def trace_errors() -> Iterator[None]:
    """Convert errors of `traces` to UserError."""
    from traces.errors import TraceError

    try:
        yield
    except TraceError as error:
        raise UserError(error.message, error.hint) from None
    except ValueError as error:
        raise UserError(str(error), "see `slo-ctl trace --help`") from None


def with_progress(reader: TraceReader, label: str) -> Iterator[Batch]:
    """The reader's batches, with a bar on stderr where that is a terminal."""
    from slo_ctl.show.progress import progress_on_stderr

    with progress_on_stderr(quiet=not sys.stderr.isatty()) as progress:
        phase = progress.phase(label, reader.size_bytes, "bytes")
        before = 0
        for batch in reader:
            yield batch
            phase.advance(reader.consumed_bytes - before)
            before = reader.consumed_bytes
        phase.done()
