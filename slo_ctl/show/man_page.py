"""Commands as manual pages (man macros, section 1)."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_EXIT = (
    ("0", "done"),
    ("1", "an unexpected failure, or a setting that did not take"),
    ("2", "a mistake in what was asked"),
    (
        "3",
        "a check found something: an SLO not met, changes pending, a requirement missing",
    ),
    ("4", "the daemon, or the server of a device, does not answer"),
    ("130", "interrupted"),
)


def pages(root: Any, date: str, version: str) -> dict[str, str]:
    """A page for each command below `root` (a click command), by file name; `date` is YYYY-MM-DD."""
    found = list(_commands(root, ("slo-ctl",)))
    names = ["-".join(path) for path, _ in found]
    return {
        f"{name}.1": "\n".join(
            [
                f'.TH "{name.upper()}" 1 "{date}" "slo-ctl {_text(version)}" "User Commands"',
                *_page(path, command, [each for each in names if each != name]),
                "",
            ]
        )
        for name, (path, command) in zip(names, found, strict=True)
    }


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, each in sorted(getattr(command, "commands", {}).items()):
        yield from _commands(each, (*path, name))


def _page(path: tuple[str, ...], command: Any, others: list[str]) -> Iterator[str]:
    name, paragraphs = "-".join(path), _paragraphs(command)
    yield ".SH NAME"
    yield rf"{_text(name)} \- {_text(_first_sentence(paragraphs))}"
    yield ".SH SYNOPSIS"
    yield rf".B {_text(' '.join(path))}"
    yield from _synopsis(command)
    if paragraphs:
        yield ".SH DESCRIPTION"
        yield from _separated(paragraphs)
    yield from _parameters("ARGUMENTS", [each for each in command.params if _is_argument(each)])
    yield from _parameters("OPTIONS", [each for each in command.params if not _is_argument(each)])
    subcommands = sorted(getattr(command, "commands", {}).items())
    if subcommands:
        yield ".SH COMMANDS"
        for verb, each in subcommands:
            yield ".TP"
            yield rf".BR {_text('-'.join((*path, verb)))} (1)"
            yield _text(_first_sentence(_paragraphs(each)))
    yield ".SH EXIT STATUS"
    for status, meaning in _EXIT:
        yield from (".TP", f".B {status}", _text(meaning))
    related = _related(name, others)
    if related:
        yield ".SH SEE ALSO"
        for position, each in enumerate(related):
            yield rf".BR {_text(each)} (1){',' if position < len(related) - 1 else ''}"


def _synopsis(command: Any) -> Iterator[str]:
    if any(not _is_argument(each) for each in command.params):
        yield r"[\fIOPTION\fR]..."
    for each in command.params:
        if _is_argument(each):
            yield rf"\fI{_text(each.metavar or each.name.upper())}\fR"
    if getattr(command, "commands", None):
        yield r"\fICOMMAND\fR ..."


def _parameters(title: str, parameters: list[Any]) -> Iterator[str]:
    told = [each for each in parameters if not getattr(each, "hidden", False)]
    if not told:
        return
    yield f".SH {title}"
    for each in told:
        yield ".TP"
        if _is_argument(each):
            yield rf"\fI{_text(each.metavar or each.name.upper())}\fR"
        else:
            names = ", ".join(rf"\fB{_text(name)}\fR" for name in (*each.opts, *each.secondary_opts))
            value = "" if each.is_flag else rf" \fI{_text(each.metavar or each.name.strip('_').upper())}\fR"
            yield names + value
        yield _text(getattr(each, "help", None) or "See the description.")


def _related(name: str, others: list[str]) -> list[str]:
    """The pages of the same noun, and the main one."""
    noun = "-".join(name.split("-")[:3])
    return [each for each in others if each == "slo-ctl" or (noun != "slo-ctl" and each.startswith(noun))]


def _paragraphs(command: Any) -> list[str]:
    text = inspect.cleandoc(command.help or "").partition("\f")[0]
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip()]


def _first_sentence(paragraphs: list[str]) -> str:
    return paragraphs[0].partition(". ")[0].rstrip(".") if paragraphs else "a command of slo-ctl"


def _separated(paragraphs: list[str]) -> Iterator[str]:
    for position, paragraph in enumerate(paragraphs):
        if position:
            yield ".PP"
        yield _text(paragraph)


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _text(text: str) -> str:
    """Literal text: no escapes, no requests, hyphens that can be pasted into a shell."""
    escaped = " ".join(text.split()).replace("\\", r"\(rs").replace("-", r"\-")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped
