"""Commands and their `--help`: the same with the typer and click of every distribution, which mark arguments
in ways of their own.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from typer.core import TyperCommand, TyperGroup

from slo_ctl.base.errors import UserError
from slo_ctl.base.quantity import format_number

_EXAMPLES = "\n\nExamples:\n"
_HYPHEN = "\u2011"
"""In place of hyphens while lines are filled, which would break `slo-ctl` and names of files and options."""


class _Described:
    """A command whose description is written as paragraphs."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            _replace_process_value(option, dict)
        return option

    def get_help(self, ctx: Any) -> str:
        return str(super().get_help(ctx)).replace(_HYPHEN, "-")  # type: ignore[misc]

    def format_help_text(self, _ctx: Any, formatter: Any) -> None:
        for paragraph in paragraphs_of(self):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(_unbroken(paragraph))


class Command(_Described, TyperCommand):
    """A verb, or a command without verbs."""

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        declarations = cache(partial(get_type_hints, self.callback, include_extras=True))
        for parameter in self.params:
            _replace_process_value(parameter, declarations)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an option in place of the value of another one, which click would take for the value."""
        if not ctx.resilient_parsing:
            _require_option_values(self, ctx, args)
        return super().parse_args(ctx, args)

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
    """The text for click's formatter, which breaks lines at hyphens."""
    return text.replace("-", _HYPHEN)


def is_argument(parameter: Any) -> bool:
    """Whether a parameter is an argument and not an option."""
    return bool(parameter.param_type_name == "argument")


def value_name(parameter: Any) -> str:
    """The placeholder for the value of a parameter."""
    return str(parameter.metavar or parameter.name.strip("_").upper())


def value_name_of(command: Any, option: str) -> str:
    """The placeholder for the value of an option of a command; empty for an unknown option."""
    parameter = _options_by_name(command).get(option)
    return "" if parameter is None else value_name(parameter)


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


def _options_by_name(command: Any) -> dict[str, Any]:
    options = [parameter for parameter in command.params if not is_argument(parameter)]
    return {name: option for option in options for name in (*option.opts, *option.secondary_opts)}


def _require_option_values(command: Any, ctx: Any, args: list[str]) -> None:
    """Report an option without its value as click does."""
    options = _options_by_name(command)
    for position, word in enumerate(args):
        if word == "--":
            return
        option, following = options.get(word), args[position + 1 : position + 2]
        if option is None or option.is_flag:
            continue
        if not following or following[0].partition("=")[0] in options:
            ctx.fail(f"Option '{word}' requires an argument.")


# Conversion of values.


_Declarations = Callable[[], dict[str, Any]]
"""Returns the annotations of the parameters of a command, evaluated when they are first needed."""


def _replace_process_value(parameter: Any, declarations: _Declarations) -> None:
    """Convert values without typer where that is simple.

    The newest typer imports pydantic for every conversion, which takes longer than many a command.
    """
    convert = parameter.process_value
    vars(parameter)["process_value"] = partial(_process_value, parameter, declarations, convert)


def _process_value(
    parameter: Any, declarations: _Declarations, convert: Callable[[Any, Any], Any], ctx: Any, value: Any
) -> Any:
    """Replaces `process_value`, which is `convert`."""
    multiple = parameter.nargs == -1 or getattr(parameter, "multiple", False)
    converted: Any
    if value is None or value == ():
        if parameter.required:
            return convert(ctx, value)
        converted = () if multiple else None
    else:
        elements = [
            _simply_converted(element, parameter, declarations)
            for element in (value if multiple else [value])
        ]
        if None in elements:
            return convert(ctx, value)
        converted = elements if multiple else elements[0]
    return converted if parameter.callback is None else parameter.callback(ctx, parameter, converted)


def _simply_converted(value: Any, parameter: Any, declarations: _Declarations) -> Any:
    """The value of a flag, a default, a string or a path; None where typer has to convert or refuse it."""
    if not isinstance(value, str):
        return value
    element_type = _element_type(declarations().get(parameter.name))
    if element_type is str:
        return value
    return _path(value, parameter) if element_type is Path else None


def _path(value: str, parameter: Any) -> Path:
    """Raises UserError if it is empty, or exists and cannot be read, of which typer says less."""
    name = value_name(parameter) if is_argument(parameter) else parameter.opts[0]
    if not value:
        # As a path it would be the current directory.
        raise UserError(f"{name}: the path is empty", "give a path; was a variable of the shell not set?")
    if os.access(value, os.F_OK) and not os.access(value, os.R_OK):
        raise UserError(f"{name}: {value} cannot be read: Permission denied", "run as its owner or as root")
    return Path(value)


def _element_type(declaration: Any) -> Any:
    """The type of a value, such as `str` for `Annotated[list[str] | None, ...]`."""
    while types := [each for each in get_args(declaration) if each is not NoneType]:
        declaration = types[0]
    return declaration


def _usage(command: Any, ctx: Any) -> Iterator[str]:
    yield "[OPTIONS]"
    for parameter in command.get_params(ctx):
        if is_argument(parameter):
            name = value_name(parameter)
            yield name if parameter.required or name.startswith("[") else f"[{name}]"


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    # First the command's own parameters, then those of all commands, always in the same order.
    for parameter in sorted(command.get_params(ctx), key=_position_of):
        record = parameter.get_help_record(ctx)
        if record is not None:
            # typer before 0.22 escapes brackets for rich even where rich is not used.
            text = _RANGE.sub(_range_text, record[1].replace("\\[", "["))
            row = (_option_names(parameter), _unbroken(text.strip()))
            panel = getattr(parameter, "rich_help_panel", None)
            title = "Arguments" if is_argument(parameter) else panel if isinstance(panel, str) else "Options"
            rows.setdefault(title, []).append(row)
    for title, section in rows.items():
        if section:
            with formatter.section(title):
                formatter.write_dl(section)


def _position_of(parameter: Any) -> int:
    return max(_POSITIONS.get(name, 0) for name in parameter.opts)


_POSITIONS = {"--json": 1, "--root": 2, "--help": 3}
_RANGE = re.compile(r"(?:(-?[\d.e+-]+)<=)?x(<=|>=)(-?[\d.e+-]+)")
"""What click writes for the range of a number, such as `0.1<=x<=3600`."""


def _range_text(match: re.Match[str]) -> str:
    bound = format_number(float(match[3]))
    if match[1]:
        return f"{format_number(float(match[1]))} to {bound}"
    return f"at {'most' if match[2] == '<=' else 'least'} {bound}"


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
