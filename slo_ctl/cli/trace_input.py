"""A trace as an input of `slo-ctl trace`: its options, opening and reading it, what is wrong with it."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from traces.batch import Batch
    from traces.formats.screen import OnError
    from traces.reader import TraceReader

ON_ERROR = typer.Option(
    "--on-error", metavar="raise|skip", help="Stop at a bad record, or count it and go on."
)
ACTION = typer.Option(
    "--action", metavar="Q|D", help="Event that stands for a request in blktrace and blkparse."
)


def open_named(path: Path, format_: str | None, on_error: str, action: str) -> TraceReader:
    """The reader of the trace that the options name. Raises UserError, and what `told` is for."""
    from traces.reader import open_trace

    return open_trace(path, format_, on_error_of(on_error), action=action)


def on_error_of(text: str) -> OnError:
    """What --on-error says. Raises UserError."""
    if text == "raise":
        return "raise"
    if text == "skip":
        return "skip"
    raise UserError(f"--on-error: '{text}' is neither raise nor skip", "raise stops, skip counts")


@contextmanager
def told() -> Iterator[None]:
    """Turn what `traces` has to say about the input into the command line's own error."""
    from traces.errors import TraceError

    try:
        yield
    except TraceError as error:
        raise UserError(error.message, error.hint) from None
    except ValueError as error:
        raise UserError(str(error), "`slo-ctl trace --help` lists what is accepted") from None


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
