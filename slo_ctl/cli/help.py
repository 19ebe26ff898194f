"""`--help`: the same with every release of typer and click.

Releases mark arguments in ways of their own; click 8.5 drops the help of arguments that typer before 0.26
declares, and click 8.2 passes a context to `make_metavar`, which typer 0.15 does not expect.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, get_type_hints

from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo

from slo_ctl.base.quantity import format_number

_EXAMPLES = "\n\nExamples:\n"
_HYPHEN = "\u2011"
"""In place of hyphens while lines are filled, which would break `slo-ctl` and names of files and options."""


class _Described:
    """Writes the description of a command as paragraphs."""

    def get_help_option(self, ctx: Any) -> Any:
        """`--help`."""
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            _leave_missing_value(option)
        return option

    def get_help(self, ctx: Any) -> str:
        """The whole text."""
        return str(super().get_help(ctx)).replace(_HYPHEN, "-")  # type: ignore[misc]

    def format_help_text(self, _ctx: Any, formatter: Any) -> None:
        """The description."""
        for paragraph in paragraphs_of(self):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(_unbroken(paragraph))


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
        for title, names in sections_of(self).items():
            with formatter.section(title):
                formatter.write_dl([(name, _unbroken(summary_of(self.commands[name]))) for name in names])
        _write_examples(self, formatter)


def _unbroken(text: str) -> str:
    """For the formatter of click, which would break lines at hyphens."""
    return text.replace("-", _HYPHEN)


def is_argument(parameter: Any) -> bool:
    """Rather than an option."""
    return bool(parameter.param_type_name == "argument")


def value_name(parameter: Any) -> str:
    """The placeholder for the value of a parameter."""
    return str(parameter.metavar or parameter.name.strip("_").upper())


def paragraphs_of(command: Any) -> list[str]:
    """The description of a command, a line for each paragraph."""
    text = _help_of(command).partition(_EXAMPLES)[0]
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip()]


def examples_of(command: Any) -> list[str]:
    """The lines below `Examples:` in the help of a command."""
    return inspect.cleandoc(_help_of(command).partition(_EXAMPLES)[2]).splitlines()


def summary_of(command: Any) -> str:
    """The first sentence of the description."""
    paragraphs = paragraphs_of(command)
    return paragraphs[0].partition(". ")[0].rstrip(".") if paragraphs else ""


def sections_of(group: Any) -> dict[str, list[str]]:
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
    return value_name(parameter)


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
        if is_argument(parameter):
            name = value_name(parameter)
            yield name if parameter.required or name.startswith("[") else f"[{name}]"


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    # The same order everywhere: first what is the command's own.
    for parameter in sorted(command.get_params(ctx), key=_place_of):
        record = parameter.get_help_record(ctx)
        if record is not None:
            # typer 0.15 and 0.16 escape brackets for rich even where rich is not used.
            text = _RANGE.sub(_range_text, record[1].replace("\\[", "["))
            row = (_option_names(parameter), _unbroken(text.strip()))
            panel = getattr(parameter, "rich_help_panel", None)
            title = "Arguments" if is_argument(parameter) else panel if isinstance(panel, str) else "Options"
            rows.setdefault(title, []).append(row)
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
    if is_argument(parameter):
        return value_name(parameter)
    names = ", ".join(sorted(parameter.opts, key=lambda name: name.startswith("--")))
    if parameter.secondary_opts:
        names += f" / {', '.join(parameter.secondary_opts)}"
    return names if parameter.is_flag else f"{names} {value_name(parameter)}"


def _restore_argument_help(command: Any) -> None:
    """Give arguments the help that they were declared with, where click has dropped it."""
    if all(getattr(each, "help", None) for each in command.params if is_argument(each)):
        return
    declared = get_type_hints(command.callback, include_extras=True)
    for parameter in command.params:
        for note in getattr(declared.get(parameter.name), "__metadata__", ()):
            if is_argument(parameter) and isinstance(note, ArgumentInfo) and not parameter.help:
                parameter.help = note.help
