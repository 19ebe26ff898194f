"""`slo-ctl man`: manual pages, one for each command."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from slo_ctl import tool_version
from slo_ctl.base.errors import UserError
from slo_ctl.cli.app import build
from slo_ctl.cli.exit_status import EXIT_STATUSES
from slo_ctl.cli.help import examples_of, is_argument, paragraphs_of, sections_of, summary_of, value_name

_ESCAPES = str.maketrans({"\\": r"\(rs", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"})
"""Characters that groff would replace by typographic ones, since 1.23 also in manual pages."""


def pages(root: Any, date: str, version: str) -> dict[str, str]:
    """A page in man macros for each command below `root` (a click command), by file name.

    `date` is YYYY-MM-DD.
    """
    commands = list(_commands(root, ("slo-ctl",)))
    names = ["-".join(path) for path, _ in commands]
    return {
        f"{name}.1": "\n".join(
            [
                f'.TH "{name.upper()}" 1 "{date}" "slo-ctl {_text(version)}" "User Commands"',
                *_page(path, command, [other for other in names if other != name]),
                "",
            ]
        )
        for name, (path, command) in zip(names, commands, strict=True)
    }


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from _commands(subcommand, (*path, name))


def _page(path: tuple[str, ...], command: Any, others: list[str]) -> Iterator[str]:
    name, paragraphs = "-".join(path), paragraphs_of(command)
    yield ".SH NAME"
    yield rf"{_text(name)} \- {_text(summary_of(command))}"
    yield ".SH SYNOPSIS"
    yield rf".B {_text(' '.join(path))}"
    yield from _synopsis(command)
    if paragraphs:
        yield ".SH DESCRIPTION"
        for position, paragraph in enumerate(paragraphs):
            yield from ([".PP"] if position else [])
            yield _text(paragraph)
    yield from _parameters("ARGUMENTS", [each for each in command.params if is_argument(each)])
    yield from _parameters("OPTIONS", [each for each in command.params if not is_argument(each)])
    if getattr(command, "commands", None):
        for title, verbs in sections_of(command).items():
            yield ".SH COMMANDS" if title == "Commands" else f".SH {title.upper()} COMMANDS"
            for verb in verbs:
                yield ".TP"
                yield rf".BR {_text('-'.join((*path, verb)))} (1)"
                yield _text(summary_of(command.commands[verb]))
    examples = examples_of(command)
    if examples:
        yield from (".SH EXAMPLES", ".nf", *(_literal(line) for line in examples), ".fi")
    yield ".SH EXIT STATUS"
    for status, meaning in EXIT_STATUSES.items():
        yield from (".TP", f".B {status}", _text(meaning))
    related = _related(name, others)
    if related:
        yield ".SH SEE ALSO"
        for position, each in enumerate(related):
            yield rf".BR {_text(each)} (1){',' if position < len(related) - 1 else ''}"


def _synopsis(command: Any) -> Iterator[str]:
    if any(not is_argument(parameter) for parameter in command.params):
        yield r"[\fIOPTION\fR]..."
    for parameter in command.params:
        if is_argument(parameter):
            yield rf"\fI{_text(value_name(parameter))}\fR"
    if getattr(command, "commands", None):
        yield r"\fICOMMAND\fR ..."


def _parameters(title: str, parameters: list[Any]) -> Iterator[str]:
    visible = [parameter for parameter in parameters if not getattr(parameter, "hidden", False)]
    if visible:
        yield f".SH {title}"
    for parameter in visible:
        yield ".TP"
        if is_argument(parameter):
            yield rf"\fI{_text(value_name(parameter))}\fR"
        else:
            names = ", ".join(
                rf"\fB{_text(name)}\fR" for name in (*parameter.opts, *parameter.secondary_opts)
            )
            yield names if parameter.is_flag else rf"{names} \fI{_text(value_name(parameter))}\fR"
        yield _text(getattr(parameter, "help", None) or "See the description.")


def _related(name: str, others: list[str]) -> list[str]:
    """The pages of the same group of commands, and the main one."""
    group = "-".join(name.split("-")[:3])
    return [each for each in others if each == "slo-ctl" or (group != "slo-ctl" and each.startswith(group))]


def _text(text: str) -> str:
    """Literal text: no escapes, no requests, and characters that can be pasted into a shell."""
    return _literal(" ".join(text.split()))


def _literal(line: str) -> str:
    escaped = line.translate(_ESCAPES)
    return rf"\&{escaped}" if escaped.startswith(".") else escaped


def command(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="Directory for the pages. [default: print slo-ctl(1)]"),
    ] = None,
) -> None:
    """Generate manual pages, one for each command.

    Examples:
    slo-ctl man /usr/local/share/man/man1
    slo-ctl man man1 && man man1/slo-ctl-status.1
    """
    # SOURCE_DATE_EPOCH makes builds of packages reproducible.
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or str(int(time.time()))
    try:
        date = time.strftime("%Y-%m-%d", time.gmtime(int(epoch)))
    except (ValueError, OverflowError, OSError):
        raise UserError(f"SOURCE_DATE_EPOCH: {epoch} is not a time", "set it to seconds since 1970") from None
    page_by_file = pages(typer.main.get_command(build([])), date, tool_version())
    if folder is None:
        sys.stdout.write(page_by_file["slo-ctl.1"])
        return
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is not a directory", "name one for the pages: slo-ctl man man1")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in page_by_file.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror}", "name another directory") from None
    sys.stdout.write(f"{len(page_by_file)} pages in {folder}\n")
