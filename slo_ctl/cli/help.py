"""How `--help` and usage lines look: the same with every release of typer and click.

Releases mark arguments in ways of their own; click 8.5 drops the help of arguments that typer before 0.26
declares, and click 8.2 passes a context to `make_metavar`, which typer 0.15 does not expect.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any, get_type_hints

from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo

_EXAMPLES = "\n\nExamples:\n"


class Command(TyperCommand):
    """A verb, or a command without verbs."""

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        _restore_argument_help(self)
        for parameter in self.params:
            vars(parameter)["make_metavar"] = partial(_make_metavar, parameter)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Arguments in the usage line of a command."""
        return list(_usage(self, ctx))

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """The description."""
        del ctx
        _write_description(self, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, options and examples."""
        _write_parameters(self, ctx, formatter)
        _write_examples(self, formatter)


class Group(TyperGroup):
    """A command with verbs, or the program."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Arguments in the usage line of a group."""
        return [*_usage(self, ctx), "COMMAND [ARGS]..."]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """The description."""
        del ctx
        _write_description(self, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Options, commands by section, and examples."""
        _write_parameters(self, ctx, formatter)
        for title, names in sections_of(self).items():
            with formatter.section(title):
                formatter.write_dl([(name, summary_of(self.commands[name])) for name in names])
        _write_examples(self, formatter)


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


def _usage(command: Any, ctx: Any) -> Iterator[str]:
    yield "[OPTIONS]"
    for parameter in command.get_params(ctx):
        if is_argument(parameter):
            name = value_name(parameter)
            yield name if parameter.required or name.startswith("[") else f"[{name}]"


def _write_description(command: Any, formatter: Any) -> None:
    for paragraph in paragraphs_of(command):
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(paragraph)


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            # typer 0.15 and 0.16 escape brackets for rich even where rich is not used.
            row = (_option_names(parameter), record[1].replace("\\[", "[").strip())
            rows["Arguments" if is_argument(parameter) else "Options"].append(row)
    for title, section in rows.items():
        if section:
            with formatter.section(title):
                formatter.write_dl(section)


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
