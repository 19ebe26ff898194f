"""Output of commands: results on stdout, notes and warnings on stderr, and the files of a run."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import typer

from slo_ctl.base.errors import UserError, require_package
from slo_ctl.base.files import check_writable, write_whole
from slo_ctl.base.termination import terminable
from slo_ctl.base.text import printable
from slo_ctl.cli.exit_status import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from rich.console import Console

    from slo_ctl.base.progress import ProgressSink


FORMAT_VERSION = 1
"""Version of the JSON objects that commands print."""


def print_lines(*lines: str) -> None:
    """Lines on stdout, flushed; control characters are escaped."""
    for line in lines:
        sys.stdout.write(printable(line) + "\n")
    sys.stdout.flush()


def stdout_console() -> Console:
    """The console for tables on stdout. Only commands that print some import Rich."""
    from slo_ctl.show.terminal import console_for

    return console_for(sys.stdout)


@contextmanager
def command_progress(*, quiet: bool) -> Iterator[ProgressSink]:
    """Progress of a command on stderr, none if quiet; SIGTERM and SIGHUP end the command as Ctrl-C does."""
    from slo_ctl.show.terminal import progress_on_stderr

    with terminable(), progress_on_stderr(quiet=quiet) as progress:
        yield progress


def print_json(value: dict[str, Any]) -> None:
    """One versioned JSON object on stdout."""
    sys.stdout.write(json.dumps({"format_version": FORMAT_VERSION, **value}, indent=2) + "\n")


def warn(line: str) -> None:
    """A line on stderr; control characters are escaped."""
    sys.stderr.write(printable(line) + "\n")


def warn_notes(notes: Iterable[str]) -> None:
    """A line on stderr for each note."""
    for note in notes:
        warn(f"note: {note}")


_AFTER_SUBJECT = (":", ",", "/", " (", " is ", " could ")
_SHARED_DISK = re.compile(r"\S+ is used by \d+ VMs \((?P<vms>.*)\): ")


def notes_about(subjects: Collection[str], notes: Iterable[str], others: Iterable[str] = ()) -> list[str]:
    """The notes about these VMs and devices and about the host, each once.

    Left out are those about other VMs, and about the VMs and devices in `others`. A note is a string, also in
    the API, and begins with its subject.
    """
    of_subjects, of_others = _beginnings(subjects), _beginnings(others)

    def is_about(note: str) -> bool:
        if shared := _SHARED_DISK.match(note):
            return any(f", {name}, " in f", {shared['vms']}, " for name in subjects)
        start = note.casefold()
        return start.startswith(of_subjects) or not start.startswith(("vm ", *of_others))

    return list(filter(is_about, dict.fromkeys(notes)))


def _beginnings(names: Iterable[str]) -> tuple[str, ...]:
    """How notes about these VMs and devices begin, in lower case."""
    return tuple(
        f"{kind}{name}{after}".casefold()
        for name in names
        if name
        for kind in ("", "VM ", "device ")
        for after in _AFTER_SUBJECT
    )


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where the result of a replay or simulation goes."""

    json: bool
    """One JSON object on stdout instead of the tables."""
    save_json: Path | None
    report: Path | None
    quiet: bool
    """Whether progress is not shown."""

    def check(self, taken: Mapping[str, Path | None] = MappingProxyType({})) -> None:
        """Raise UserError when a file could not be written.

        `taken`: files that must not be replaced, by what they are.
        """
        if self.save_json is not None:
            check_writable("--save-json", self.save_json, taken)
        if self.report is not None:
            check_writable("--report", self.report, {**taken, "the file of --save-json": self.save_json})
            check_suffix("--report", self.report, "HTML")
            require_package("jinja2")
        if self.save_json is not None:
            check_suffix("--save-json", self.save_json, "JSON")


_SUFFIXES = {"HTML": ("", ".html", ".htm"), "JSON": ("", ".json")}


def check_suffix(option: str, path: Path, kind: Literal["HTML", "JSON"]) -> None:
    """Raise UserError for a file name with a suffix of another kind of file."""
    if path.suffix.lower() not in _SUFFIXES[kind]:
        raise UserError(
            f"{option}: {path} would be {kind}, not {path.suffix[1:]}",
            f"write {path.with_suffix(f'.{kind.lower()}')}",
        )


class Deliverable(Protocol):
    """Result of a replay or simulation."""

    @property
    def complete(self) -> bool:
        """Whether it was not interrupted."""
        ...

    def to_json(self) -> str: ...


_RunResult = TypeVar("_RunResult", bound=Deliverable)


def deliver(
    result: _RunResult,
    outputs: Outputs,
    render: Callable[[_RunResult], str],
    print_tables: Callable[[Console, _RunResult], None],
) -> None:
    """Write the requested files, then print; raises typer.Exit(130) after an interrupted run.

    `render` makes the HTML report.
    """
    if outputs.save_json is not None:
        write_whole("--save-json", outputs.save_json, result.to_json() + "\n")
    if outputs.report is not None:
        write_whole("--report", outputs.report, render(result))
    if outputs.json:
        sys.stdout.write(result.to_json() + "\n")
    else:
        print_tables(stdout_console(), result)
        if outputs.report is not None:
            sys.stdout.write(f"report: {printable(str(outputs.report))}\n")
    sys.stdout.flush()
    if not result.complete:
        raise typer.Exit(EXIT_INTERRUPTED)
