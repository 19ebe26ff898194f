"""The usage line and `--help` of every command: the same text whatever typer and click are installed.

Releases of typer and click mark arguments in ways of their own, click 8.5 drops the help of arguments that
typer before 0.26 declares, and click 8.2 asks for the names of values in a way that typer 0.15 does not know.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, get_type_hints

from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo

if TYPE_CHECKING:
    from collections.abc import Iterator


class Command(TyperCommand):
    """A verb, or a command without verbs."""

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        _restore_help(self)
        for each in self.params:
            vars(each)["make_metavar"] = partial(_value_name, each)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What stands behind the name of the command."""
        return list(_usage(self, ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments and options."""
        _write_parameters(self, ctx, formatter)


class Group(TyperGroup):
    """A noun, or the program."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What stands behind the name of the group."""
        return [*_usage(self, ctx), "COMMAND [ARGS]..."]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Options, then commands."""
        _write_parameters(self, ctx, formatter)
        self.format_commands(ctx, formatter)


def is_argument(parameter: Any) -> bool:
    """Rather than an option."""
    return bool(parameter.param_type_name == "argument")


def value_name(parameter: Any) -> str:
    """What usage and help call the value of a parameter."""
    return str(parameter.metavar or parameter.name.strip("_").upper())


def _value_name(parameter: Any, ctx: Any = None) -> str:
    """In the place of `make_metavar`, which is called with and without a context."""
    del ctx
    return value_name(parameter)


def _usage(command: Any, ctx: Any) -> Iterator[str]:
    yield "[OPTIONS]"
    for each in command.get_params(ctx):
        if is_argument(each):
            name = value_name(each)
            yield name if each.required or name.startswith("[") else f"[{name}]"


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            # typer 0.15 and 0.16 escape brackets for rich even where rich is not used.
            row = (_names(parameter), record[1].replace("\\[", "[").strip())
            rows["Arguments" if is_argument(parameter) else "Options"].append(row)
    for title, section in rows.items():
        if section:
            with formatter.section(title):
                formatter.write_dl(section)


def _names(parameter: Any) -> str:
    if is_argument(parameter):
        return value_name(parameter)
    names = ", ".join(sorted(parameter.opts, key=lambda name: name.startswith("--")))
    if parameter.secondary_opts:
        names += f" / {', '.join(parameter.secondary_opts)}"
    return names if parameter.is_flag else f"{names} {value_name(parameter)}"


def _restore_help(command: Any) -> None:
    """Give arguments the help that they were declared with, where click has dropped it."""
    if all(getattr(each, "help", None) for each in command.params if is_argument(each)):
        return
    declared = get_type_hints(command.callback, include_extras=True)
    for each in command.params:
        for note in getattr(declared.get(each.name), "__metadata__", ()):
            if is_argument(each) and isinstance(note, ArgumentInfo) and not each.help:
                each.help = note.help
