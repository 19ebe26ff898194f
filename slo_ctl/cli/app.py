"""Build the command line, run it, and report every error in one line."""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from typing import Any

import typer

from slo_ctl import tool_version
from slo_ctl.base.errors import (
    OPTIONAL_PACKAGES,
    FailedError,
    MissingPackageError,
    UnreachableError,
    UserError,
)
from slo_ctl.base.files import MORE_FILES
from slo_ctl.base.text import printable
from slo_ctl.cli.completion import PROGRAM, SLO_FIELDS
from slo_ctl.cli.exit_status import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_OK, EXIT_UNREACHABLE, EXIT_USAGE
from slo_ctl.cli.help import Command, Group, examples_of, value_name_of

COMMAND_GROUPS = {
    "First steps": {"try": "try_it:command", "demo": "replay:demo", "doctor": "doctor:command"},
    "Operation": {
        "device": "device:app",
        "daemon": "daemon:command",
        "vm": "vm:app",
        "config": "config:app",
        "status": "status:status:WatchCommand",
        "top": "status:top",
        "history": "history:history",
        "report": "history:report",
        "plan": "plan:plan",
        "apply": "plan:apply",
    },
    "Validation": {"replay": "replay:replay", "sweep": "sweep:command", "trace": "trace:app"},
    "Laboratory": {"paper": "paper:command", "fsim": "fsim:command"},
    "Shell": {"completion": "completion:command", "man": "man:command"},
}
"""Commands in order of use, as `slo-ctl --help` lists them, each as MODULE:ATTRIBUTE[:CLASS] of
`slo_ctl.cli`: a function or a typer application with verbs, and its class if it is not `Command`."""
COMMANDS = {name: target for group in COMMAND_GROUPS.values() for name, target in group.items()}


class RootGroup(Group):
    """The commands in the order of COMMANDS: typer puts those with verbs last."""

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        self.commands = {name: self.commands[name] for name in COMMANDS if name in self.commands}

    def invoke(self, ctx: Any) -> Any:
        """Run the command. typer would end the process without a message after Ctrl-C."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Abort from None


@dataclass
class GlobalOptions:
    """Values of the global options."""

    debug: bool = False


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit status; every error has been reported on stderr."""
    if "_SLO_CTL_COMPLETE" in os.environ:
        from slo_ctl.cli.completion import answer

        answer(build([]))
    arguments = _help_last(arguments)
    session = GlobalOptions(debug=os.environ.get("SLO_CTL_DEBUG", "") not in ("", "0"))
    try:
        status = build(arguments)(args=arguments, prog_name=PROGRAM, standalone_mode=False, obj=session)
        sys.stdout.flush()  # an error is reported here, and not by Python at its end
    except UserError as error:
        return _report_error(error.message, _with_root(error.hint, arguments), _exit_status(error))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in OPTIONAL_PACKAGES:
            return _report_unexpected(error, session)
        missing = MissingPackageError(package)
        return _report_error(missing.message, missing.hint)
    except (KeyboardInterrupt, typer.Abort):
        _write_error(f"{PROGRAM}: interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # such as of `| head`
        return EXIT_FAILURE
    except Exception as error:
        return (
            _report_usage_error(error, arguments)
            or _report_file_error(error)
            or _report_unexpected(error, session)
        )
    return status if isinstance(status, int) else EXIT_OK


def _exit_status(error: UserError) -> int:
    if isinstance(error, UnreachableError):
        return EXIT_UNREACHABLE
    return EXIT_FAILURE if isinstance(error, FailedError) else EXIT_USAGE


def _help_last(arguments: list[str]) -> list[str]:
    """`help vm set`, `-h vm set` and `vm help set` as `vm set --help`."""
    first, second = (*arguments[:2], "", "")[:2]
    if first in ("help", "-h", "--help"):
        return [*arguments[1:], "--help"]
    if second == "help" and COMMANDS.get(first, "").endswith(":app"):
        return [first, *arguments[2:], "--help"]
    return arguments


def build(arguments: Sequence[str]) -> typer.Typer:
    """The application with the command that `arguments` name, or with all commands when they name none."""
    app = typer.Typer(
        name=PROGRAM,
        cls=RootGroup,
        help="VM-aware storage QoS for KVM hosts.\n\nExamples:\nslo-ctl try\n"
        "slo-ctl vm set web weight=3,min=500\nslo-ctl status",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_global_options)
    command = next((word for word in arguments if not word.startswith("-")), "")
    for title, group in COMMAND_GROUPS.items():
        for name, target in group.items():
            if command == name or command not in COMMANDS:
                _add_command(app, name, target, title)
    return app


def _add_command(app: typer.Typer, name: str, target: str, section: str) -> None:
    module_name, attribute, *class_name = target.split(":")
    module = import_module(f"slo_ctl.cli.{module_name}")
    command = getattr(module, attribute)
    if not isinstance(command, typer.Typer):
        command_class = getattr(module, class_name[0]) if class_name else Command
        app.command(name, cls=command_class, rich_help_panel=section)(command)
        return
    for verb in command.registered_commands:
        if verb.cls is None or not issubclass(verb.cls, Command):
            verb.cls = Command
    command.callback()(_help_without_verb)
    app.add_typer(command, name=name, cls=Group, invoke_without_command=True, rich_help_panel=section)


def _help_without_verb(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"{PROGRAM} {tool_version()}")
        raise typer.Exit


def _global_options(
    ctx: typer.Context,
    debug: bool = typer.Option(False, "--debug", help="Print a traceback on unexpected errors."),
    version: bool = typer.Option(
        False, "--version", "-V", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    del version
    if debug and isinstance(ctx.obj, GlobalOptions):
        ctx.obj.debug = True
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def _with_root(hint: str, arguments: Sequence[str]) -> str:
    """The hint, with the --root of the command line in the commands that it names."""
    roots = [value for word, value in pairwise(arguments) if word == "--root"]
    roots += [word.partition("=")[2] for word in arguments if word.startswith("--root=")]
    return with_root(hint, roots[0]) if roots and roots[0] else hint


def with_root(text: str, root: str) -> str:
    """A hint or a note, with --root in the commands that it names."""
    if "--root" in text:
        return text
    option = f" --root {shlex.quote(root)}"

    def takes_root(command: str) -> bool:
        name = f"{command} ".split(" ")[1]
        return name in COMMAND_GROUPS["Operation"] and "--help" not in command and " or " not in command

    if "`" in text:
        return re.sub(
            rf"`({PROGRAM} [^`]+)`",
            lambda match: f"`{match[1]}{option}`" if takes_root(match[1]) else match[0],
            text,
        )
    return re.sub(
        rf"(^|: )({PROGRAM} (?:'[^']*'|[^;:'])+)(?=;|$)",  # names in quotes may contain anything
        lambda match: match[0] + option if takes_root(match[2]) else match[0],
        text,
    )


def _report_usage_error(error: Exception, arguments: Sequence[str]) -> int | None:
    """Report a usage error of the parser in one line; None when `error` is not one."""
    # Some releases of typer import click, others have a copy of it. All of their errors have this method.
    format_message = getattr(error, "format_message", None)
    if not callable(format_message):
        return None
    # pydantic starts messages with words of its own.
    message = " ".join(str(format_message()).replace("Value error, ", "").split()).rstrip(".")
    for pattern, plain in _PLAIN_MESSAGES.items():
        message = re.sub(pattern, plain, message)
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", PROGRAM)
    if message.startswith("No such command"):
        name = _quoted_in(message)
        if hint := _COMMAND_HINTS.get(f"{path} {name}".removeprefix(f"{PROGRAM} ")):
            return _report_error(message.partition(". Did")[0], hint)
    if path == PROGRAM and (option := _OPTIONS_OF_COMMANDS.get(_option_in(message))):
        return _report_error(message, f"write it after the command, such as: {PROGRAM} status {option}")
    if hint := _argument_or_option_hint(path, message) or _hint_for_a_dash(path, message, arguments):
        return _report_error(message, hint)
    if context is not None and message.startswith(("Missing argument", "Missing option")):
        option = _quoted_in(message) if "option" in message else ""
        if example := _example_with(examples_of(context.command), option):
            return _report_error(message, _with_root(f"such as: {example}", arguments))
    if "does not take a value" in message:
        return _report_error(message, f"write {_quoted_in(message)} alone")
    if context is not None and "requires an argument" in message:
        value = value_name_of(context.command, _quoted_in(message))
        return _report_error(message, f"write {_quoted_in(message)} {value}, see `{path} --help`")
    return _report_error(message, f"`{path} --help` lists commands, options and their values")


def _argument_or_option_hint(path: str, message: str) -> str:
    """What to write for an option that is an argument of the command at `path`, or the other way round."""
    option = _option_in(message)
    key = option.lstrip("-").replace("-", "_")
    if path == f"{PROGRAM} vm set" and key in SLO_FIELDS:
        return f"write {key}=VALUE, such as: {PROGRAM} vm set web weight=3,min=500"
    if path in (f"{PROGRAM} history", f"{PROGRAM} report") and option == "--vm":
        return f"write the VM alone, such as: {path} web"
    extra = re.match(r"Got unexpected extra argument\S* \((\S+)\)", message)
    if extra and path in (f"{PROGRAM} config check", f"{PROGRAM} config show") and "/" in extra[1]:
        return f"write --config {shlex.quote(extra[1])}"
    return ""


def _hint_for_a_dash(path: str, message: str, arguments: Sequence[str]) -> str:
    """How to write a name that begins with a hyphen, such as that of a VM, where it was taken for options."""
    letter = _option_in(message)
    words = [word for word in arguments if len(word) > 2 and word[0] == "-" != word[1] and word[:2] == letter]
    takes_vms = ("vm ", "status", "history", "report")
    if not words or not path.removeprefix(f"{PROGRAM} ").startswith(takes_vms):
        return ""
    return (
        f"if {words[0]} is a name, write it after all options and --: {path} ... -- {shlex.quote(words[0])}"
    )


def _example_with(examples: Sequence[str], option: str) -> str:
    """The first example that runs this program, with `option` in it unless that is empty."""
    joined = "\n".join(examples).replace("\\\n", "")
    commands = (" ".join(line.partition("  #")[0].split()) for line in joined.splitlines())
    return next(
        (
            command
            for command in commands
            if command.startswith(f"{PROGRAM} ") and (not option or option in command.split())
        ),
        "",
    )


def _quoted_in(message: str) -> str:
    """The first part of a message that is between quotes."""
    return message.split("'")[1] if message.count("'") > 1 else ""


def _option_in(message: str) -> str:
    """The option that `No such option: --root Did you mean ...` is about."""
    return message.partition("No such option: ")[2].partition(" ")[0].rstrip(".")


_OPTIONS_OF_COMMANDS = {
    "--root": "--root DIR",
    "--json": "--json",
    "--watch": "--watch",
    "-w": "-w",
    "--verdict": "--verdict insufficient",
}
"""Options of commands, not of the program, with an example for `status`."""
_PLAIN_MESSAGES = {
    r"Input should be a valid (?:number|integer).*": "it is not a number",
    r"Input should be greater than or equal to": "it must be at least",
    r"Input should be less than or equal to": "it must be at most",
    r"\S+ is not in the range x>=": "it must be at least ",
    r"\S+ is not in the range x<=": "it must be at most ",
}
"""Plain messages for those of pydantic, with which the newest typer converts values, and of click."""
_COMMAND_HINTS = {
    "reload": "slo-ctl config reload",
    "undo": "slo-ctl apply --undo",
    "list": "slo-ctl vm list, or slo-ctl device list",
    "set": "slo-ctl vm set NAME weight=3",
    "show": "slo-ctl vm show NAME, or slo-ctl device show NAME",
    "attach": "slo-ctl vm attach NAME DEVICE/NAMESPACE",
    "create": "slo-ctl device create NAME --size 8GiB",
    "serve": "slo-ctl device serve NAME",
    "profile": "slo-ctl device profile TARGET",
    "start": "systemctl start slo-ctld, or slo-ctl daemon in a terminal",
    "stop": "systemctl stop slo-ctld",
    "check": "slo-ctl config check",
    "version": "slo-ctl --version",
    "config list": "slo-ctl config show",
    "config get": "slo-ctl config show",
    "config set": "edit slo-ctl.toml, then slo-ctl config check && slo-ctl config reload",
    "config validate": "slo-ctl config check",
    "config test": "slo-ctl config check",
    "device stop": "systemctl stop slo-ctl-ftl@NAME, or Ctrl-C where `slo-ctl device serve` runs",
    "device start": "slo-ctl device serve NAME, or systemctl start slo-ctl-ftl@NAME",
    "device attach": "slo-ctl vm attach VM DEVICE/NAMESPACE",
    "device detach": "slo-ctl vm detach VM DISK",
    "device rm": "slo-ctl device remove NAME/NAMESPACE, or slo-ctl device delete NAME",
    "vm create": "VMs are made with libvirt: virt-install, or virsh define",
    "vm start": "virsh start NAME",
    "vm stop": "virsh shutdown NAME",
    "vm status": "slo-ctl status NAME",
    "vm get": "slo-ctl vm show NAME",
}
"""What to type instead of commands that do not exist, many of which other programs have."""


_FILE_ERRORS = {
    errno.ENOSPC: ("free space there, or write elsewhere", EXIT_FAILURE),
    errno.EDQUOT: ("free space there, or write elsewhere", EXIT_FAILURE),
    errno.EACCES: ("use a path that this user may read, or run as its owner", EXIT_USAGE),
    errno.EROFS: ("mount that file system for writing, or write elsewhere", EXIT_USAGE),
    errno.ENAMETOOLONG: ("give a shorter path", EXIT_USAGE),
    errno.EMFILE: (MORE_FILES, EXIT_FAILURE),
    errno.ENFILE: ("the host has too many: see /proc/sys/fs/file-nr", EXIT_FAILURE),
}
"""Hint and exit status for errors of files that any command may meet."""


def _report_file_error(error: Exception) -> int | None:
    """Report a file, or the output, that cannot be used; None when `error` is something else."""
    if isinstance(error, FileNotFoundError) and "temporary directory" in str(error.strerror):
        hint = "set TMPDIR to a directory with free space that this user may write to"
        return _report_error(str(error.strerror), hint, EXIT_FAILURE)
    if not isinstance(error, OSError) or error.errno not in _FILE_ERRORS:
        return None
    hint, status = _FILE_ERRORS[error.errno]
    # A socket or a pipe that cannot be opened has no name.
    unnamed = "cannot open a file" if error.errno in (errno.EMFILE, errno.ENFILE) else "output"
    return _report_error(f"{error.filename or unnamed}: {error.strerror}", hint, status)


def _report_unexpected(error: Exception, session: GlobalOptions) -> int:
    if session.debug:
        import traceback

        _write_error("".join(traceback.format_exception(error)).rstrip())
    details = printable(str(error)) or "no details"
    _write_error(f"{PROGRAM}: unexpected {type(error).__name__}: {details}")
    if not session.debug:
        _write_error(f"hint: `{PROGRAM} --debug ...` prints a traceback; please report this as a bug")
    return EXIT_FAILURE


def _report_error(message: str, hint: str, status: int = EXIT_USAGE) -> int:
    _write_error(f"{PROGRAM}: {printable(message)}")
    if hint:
        _write_error(f"hint: {printable(hint)}")
    return status


def _write_error(line: str) -> None:
    sys.stderr.write(line + "\n")
