"""`--help` and the manual pages of `slo-ctl man`: the same with every release of typer and click.

Releases mark arguments in ways of their own; click 8.5 drops the help of arguments that typer before 0.26
declares, and click 8.2 passes a context to `make_metavar`, which typer 0.15 does not expect.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo

from slo_ctl.base.errors import UserError
from slo_ctl.base.quantity import format_number
from slo_ctl.base.version import tool_version
from slo_ctl.cli import EXIT_STATUSES

_EXAMPLES = "\n\nExamples:\n"


class _Described:
    """Writes the description of a command as paragraphs."""

    def get_help_option(self, ctx: Any) -> Any:
        """`--help`."""
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            _leave_missing_value(option)
        return option

    def format_help_text(self, _ctx: Any, formatter: Any) -> None:
        """The description."""
        for paragraph in _paragraphs_of(self):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(paragraph)


class Command(_Described, TyperCommand):
    """A verb, or a command without verbs."""

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        _restore_argument_help(self)
        for parameter in self.params:
            vars(parameter)["make_metavar"] = partial(_make_metavar, parameter)
            _leave_missing_value(parameter)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Arguments in the usage line of a command."""
        return list(_usage(self, ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, options and examples."""
        _write_parameters(self, ctx, formatter)
        _write_examples(self, formatter)


class Group(_Described, TyperGroup):
    """A command with verbs, or the program."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Arguments in the usage line of a group."""
        return [*_usage(self, ctx), "COMMAND [ARGS]..."]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Options, commands by section, and examples."""
        _write_parameters(self, ctx, formatter)
        for title, names in _sections_of(self).items():
            with formatter.section(title):
                formatter.write_dl([(name, _summary_of(self.commands[name])) for name in names])
        _write_examples(self, formatter)


def _is_argument(parameter: Any) -> bool:
    """Rather than an option."""
    return bool(parameter.param_type_name == "argument")


def _value_name(parameter: Any) -> str:
    """The placeholder for the value of a parameter."""
    return str(parameter.metavar or parameter.name.strip("_").upper())


def _paragraphs_of(command: Any) -> list[str]:
    """The description of a command, a line for each paragraph."""
    text = _help_of(command).partition(_EXAMPLES)[0]
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip()]


def examples_of(command: Any) -> list[str]:
    """The lines below `Examples:` in the help of a command."""
    return inspect.cleandoc(_help_of(command).partition(_EXAMPLES)[2]).splitlines()


def _summary_of(command: Any) -> str:
    """The first sentence of the description."""
    paragraphs = _paragraphs_of(command)
    return paragraphs[0].partition(". ")[0].rstrip(".") if paragraphs else ""


def _sections_of(group: Any) -> dict[str, list[str]]:
    """Names of the commands of a group by section, in the order in which they were added."""
    sections: dict[str, list[str]] = {}
    for name, command in group.commands.items():
        title = getattr(command, "rich_help_panel", None)
        sections.setdefault(title if isinstance(title, str) else "Commands", []).append(name)
    return sections


def _help_of(command: Any) -> str:
    return inspect.cleandoc(command.help or "").partition("\f")[0]


def _make_metavar(parameter: Any, ctx: Any = None) -> str:
    """Replaces `make_metavar`, which is called with and without a context."""
    del ctx
    return _value_name(parameter)


def _leave_missing_value(parameter: Any) -> None:
    """Keep a parameter from converting a value that is missing.

    The newest typer imports pydantic for that, which takes longer than many a command.
    """
    if not parameter.required and "process_value" not in vars(parameter):
        vars(parameter)["process_value"] = partial(_process_value, parameter, parameter.process_value)


def _process_value(parameter: Any, convert: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    """Replaces `process_value`, which is `convert`."""
    if value is not None:
        return convert(ctx, value)
    missing = () if parameter.nargs == -1 or getattr(parameter, "multiple", False) else None
    return missing if parameter.callback is None else parameter.callback(ctx, parameter, missing)


def _usage(command: Any, ctx: Any) -> Iterator[str]:
    yield "[OPTIONS]"
    for parameter in command.get_params(ctx):
        if _is_argument(parameter):
            name = _value_name(parameter)
            yield name if parameter.required or name.startswith("[") else f"[{name}]"


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    # The same order everywhere: first what is the command's own.
    for parameter in sorted(command.get_params(ctx), key=_place_of):
        record = parameter.get_help_record(ctx)
        if record is not None:
            # typer 0.15 and 0.16 escape brackets for rich even where rich is not used.
            text = _RANGE.sub(_range_text, record[1].replace("\\[", "["))
            row = (_option_names(parameter), text.strip())
            rows["Arguments" if _is_argument(parameter) else "Options"].append(row)
    for title, section in rows.items():
        if section:
            with formatter.section(title):
                formatter.write_dl(section)


def _place_of(parameter: Any) -> int:
    return max(_LAST.get(name, 0) for name in parameter.opts)


_LAST = {"--json": 1, "--root": 2, "--help": 3}
_RANGE = re.compile(r"(?:(-?[\d.e+-]+)<=)?x(<=|>=)(-?[\d.e+-]+)")
"""What click writes for the range of a number, such as `0.1<=x<=3600`."""


def _range_text(found: re.Match[str]) -> str:
    bound = format_number(float(found[3]))
    if found[1]:
        return f"{format_number(float(found[1]))} to {bound}"
    return f"at {'most' if found[2] == '<=' else 'least'} {bound}"


def _write_examples(command: Any, formatter: Any) -> None:
    lines = examples_of(command)
    if lines:
        with formatter.section("Examples"):
            for line in lines:
                formatter.write(f"  {line}\n")


def _option_names(parameter: Any) -> str:
    if _is_argument(parameter):
        return _value_name(parameter)
    names = ", ".join(sorted(parameter.opts, key=lambda name: name.startswith("--")))
    if parameter.secondary_opts:
        names += f" / {', '.join(parameter.secondary_opts)}"
    return names if parameter.is_flag else f"{names} {_value_name(parameter)}"


def _restore_argument_help(command: Any) -> None:
    """Give arguments the help that they were declared with, where click has dropped it."""
    if all(getattr(each, "help", None) for each in command.params if _is_argument(each)):
        return
    declared = get_type_hints(command.callback, include_extras=True)
    for parameter in command.params:
        for note in getattr(declared.get(parameter.name), "__metadata__", ()):
            if _is_argument(parameter) and isinstance(note, ArgumentInfo) and not parameter.help:
                parameter.help = note.help


def pages(root: Any, date: str, version: str) -> dict[str, str]:
    """A page in man macros for each command below `root` (a click command), by file name.

    `date` is YYYY-MM-DD.
    """
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
    for name, each in getattr(command, "commands", {}).items():
        yield from _commands(each, (*path, name))


def _page(path: tuple[str, ...], command: Any, others: list[str]) -> Iterator[str]:
    name, paragraphs = "-".join(path), _paragraphs_of(command)
    yield ".SH NAME"
    yield rf"{_text(name)} \- {_text(_summary_of(command))}"
    yield ".SH SYNOPSIS"
    yield rf".B {_text(' '.join(path))}"
    yield from _synopsis(command)
    if paragraphs:
        yield ".SH DESCRIPTION"
        for position, paragraph in enumerate(paragraphs):
            yield from ([".PP"] if position else [])
            yield _text(paragraph)
    yield from _parameters("ARGUMENTS", [each for each in command.params if _is_argument(each)])
    yield from _parameters("OPTIONS", [each for each in command.params if not _is_argument(each)])
    if getattr(command, "commands", None):
        for title, verbs in _sections_of(command).items():
            yield ".SH COMMANDS" if title == "Commands" else f".SH {title.upper()} COMMANDS"
            for verb in verbs:
                yield ".TP"
                yield rf".BR {_text('-'.join((*path, verb)))} (1)"
                yield _text(_summary_of(command.commands[verb]))
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
    if any(not _is_argument(each) for each in command.params):
        yield r"[\fIOPTION\fR]..."
    for each in command.params:
        if _is_argument(each):
            yield rf"\fI{_text(_value_name(each))}\fR"
    if getattr(command, "commands", None):
        yield r"\fICOMMAND\fR ..."


def _parameters(title: str, parameters: list[Any]) -> Iterator[str]:
    visible = [each for each in parameters if not getattr(each, "hidden", False)]
    if visible:
        yield f".SH {title}"
    for each in visible:
        yield ".TP"
        if _is_argument(each):
            yield rf"\fI{_text(_value_name(each))}\fR"
        else:
            names = ", ".join(rf"\fB{_text(name)}\fR" for name in (*each.opts, *each.secondary_opts))
            yield names if each.is_flag else rf"{names} \fI{_text(_value_name(each))}\fR"
        yield _text(getattr(each, "help", None) or "See the description.")


def _related(name: str, others: list[str]) -> list[str]:
    """The pages of the same group of commands, and the main one."""
    group = "-".join(name.split("-")[:3])
    return [each for each in others if each == "slo-ctl" or (group != "slo-ctl" and each.startswith(group))]


def _text(text: str) -> str:
    """Literal text: no escapes, no requests, hyphens that can be pasted into a shell."""
    return _literal(" ".join(text.split()))


def _literal(line: str) -> str:
    escaped = line.replace("\\", r"\(rs").replace("-", r"\-")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped


def man(
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
    from slo_ctl.cli.app import build

    # For reproducible builds of packages.
    made_at = float(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    date = time.strftime("%Y-%m-%d", time.gmtime(made_at))
    made = pages(typer.main.get_command(build([])), date, tool_version())
    if folder is None:
        sys.stdout.write(made["slo-ctl.1"])
        return
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is not a directory", "name one for the pages: slo-ctl man man1")
    try:
        _write(folder, made.items())
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror}", "name another directory") from None
    sys.stdout.write(f"{len(made)} pages in {folder}\n")


def _write(folder: Path, made: Iterable[tuple[str, str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in made:
        (folder / name).write_text(text, encoding="utf-8")
