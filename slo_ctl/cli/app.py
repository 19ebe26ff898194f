"""Build the command line, run it, and tell every error in one line."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

import typer

from slo_ctl.cli.exit_codes import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_OK, EXIT_UNREACHABLE, EXIT_USAGE
from slo_ctl.cli.help_text import Command, Group
from slo_ctl.errors import UnreachableError, UserError
from slo_ctl.show.text import printable
from slo_ctl.version import tool_version

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "slo-ctl"
COMMANDS = (
    "replay",
    "demo",
    "trace",
    "device",
    "vm",
    "doctor",
    "daemon",
    "status",
    "history",
    "plan",
    "apply",
    "top",
    "completion",
    "man",
)
"""Each is a module of this package offering `app` (a noun with verbs) or `command` (a single command, of
`COMMAND_CLASS` if that is there)."""


@dataclass
class Session:
    """What the global options ask for."""

    debug: bool = False


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit status; every error has been told on stderr."""
    if "_SLO_CTL_COMPLETE" in os.environ:
        from slo_ctl.cli.completion import answer

        answer(build([]))
    session = Session(debug=os.environ.get("SLO_CTL_DEBUG", "") not in ("", "0"))
    try:
        status = build(arguments)(args=arguments, prog_name=PROGRAM, standalone_mode=False, obj=session)
    except UserError as error:
        status = EXIT_UNREACHABLE if isinstance(error, UnreachableError) else EXIT_USAGE
        return _refuse(error.message, error.hint, status)
    except (KeyboardInterrupt, typer.Abort):
        _say(f"{PROGRAM}: interrupted")
        return EXIT_INTERRUPTED
    except Exception as error:
        return _refuse_usage(error) or _refuse_trace(error) or _fail(error, session)
    return status if isinstance(status, int) else EXIT_OK


def build(arguments: Sequence[str]) -> typer.Typer:
    """The application, with the one command that `arguments` name, or all of them when they name none."""
    app = typer.Typer(
        name=PROGRAM,
        cls=Group,
        help="VM-aware storage QoS for KVM hosts.",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_global_options)
    named = next((word for word in arguments if not word.startswith("-")), "")
    for name in [named] if named in COMMANDS else COMMANDS:
        module = import_module(f"slo_ctl.cli.{name}")
        if hasattr(module, "app"):
            _add_noun(app, name, module.app)
        else:
            app.command(name, cls=getattr(module, "COMMAND_CLASS", Command))(module.command)
    return app


def _add_noun(app: typer.Typer, name: str, noun: typer.Typer) -> None:
    for verb in noun.registered_commands:
        verb.cls = Command
    noun.callback()(_help_without_verb)
    app.add_typer(noun, name=name, cls=Group, invoke_without_command=True)


def _help_without_verb(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{PROGRAM} {tool_version()}")
        raise typer.Exit


def _global_options(
    ctx: typer.Context,
    debug: bool = typer.Option(False, "--debug", help="Show a traceback when something unexpected fails."),
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    del version
    if debug and isinstance(ctx.obj, Session):
        ctx.obj.debug = True
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def _refuse_usage(error: Exception) -> int | None:
    """Tell a usage error of the parser in one line; None when `error` is not one."""
    # Some releases of typer import click, others have a copy of it. All of their errors have this method.
    describe = getattr(error, "format_message", None)
    if not callable(describe):
        return None
    # pydantic, with which the newest typer converts values, puts its own words first.
    message = " ".join(str(describe()).replace("Value error, ", "").split()).rstrip(".")
    path = getattr(getattr(error, "ctx", None), "command_path", PROGRAM)
    return _refuse(message, f"`{path} --help` lists what is accepted")


def _refuse(message: str, hint: str, status: int = EXIT_USAGE) -> int:
    _say(f"{PROGRAM}: {printable(message)}")
    if hint:
        _say(f"hint: {printable(hint)}")
    return status


def _refuse_trace(error: Exception) -> int | None:
    """Tell an error of trace reading, which is the user's to mend; None when `error` is no such thing."""
    # Whoever raised one has the module loaded; nobody else should pay for numpy.
    errors = sys.modules.get("traces.errors")
    if errors is None or not isinstance(error, errors.TraceError):
        return None
    return _refuse(error.message, error.hint)


def _fail(error: Exception, session: Session) -> int:
    if session.debug:
        import traceback

        _say("".join(traceback.format_exception(error)).rstrip())
    told = printable(str(error)) or "no details"
    _say(f"{PROGRAM}: unexpected {type(error).__name__}: {told}")
    if not session.debug:
        _say(f"hint: `{PROGRAM} --debug ...` or SLO_CTL_DEBUG=1 shows where; please report it")
    return EXIT_FAILURE


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
