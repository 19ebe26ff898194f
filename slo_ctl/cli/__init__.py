"""The command line: a module for each command, imported only when that command runs."""

from __future__ import annotations

import codecs
import gc
import os
import signal
import sys

from slo_ctl.cli.exit_status import EXIT_INTERRUPTED

_COLLECT_AFTER_OBJECTS = 300_000
"""Objects after which cyclic garbage is collected: more than most commands create, which is by imports."""


_IN_ASCII = {
    "\N{EN DASH}": "-",
    "\N{NON-BREAKING HYPHEN}": "-",
    "\N{MINUS SIGN}": "-",
    "\N{PLUS-MINUS SIGN}": "+-",
    "\N{MICRO SIGN}": "u",
    "\N{NO-BREAK SPACE}": " ",
}


def _in_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    """What stands for characters that an output cannot take; `?` for those without a like."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    unknown = error.object[error.start : error.end]
    return "".join(_IN_ASCII.get(character, "?") for character in unknown), error.end


def _prepare_output() -> None:
    """Have an output that was closed lead nowhere, and one of a few characters take all: ASCII for others."""
    codecs.register_error("ascii", _in_ascii)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - until the end
        elif stream.encoding.lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="ascii")


def _flush_output() -> None:
    """Write what is left, or drop it: Python would try again at its end, and print a traceback."""
    try:
        sys.stdout.flush()
    except OSError:  # `run` has reported it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Run the command line of this process and exit with one of EXIT_STATUSES."""
    # Nothing that is created here may be changed by every user, whatever started it: sockets and state.
    os.umask(os.umask(0o077) | 0o002)
    gc.set_threshold(_COLLECT_AFTER_OBJECTS)
    _prepare_output()
    # During the imports there is nothing to clean up, and a KeyboardInterrupt would print a traceback.
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(EXIT_INTERRUPTED))
    from slo_ctl.cli.app import run

    try:
        signal.signal(signal.SIGINT, before)
        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        status = EXIT_INTERRUPTED
    _flush_output()
    if status == EXIT_INTERRUPTED:
        # After an interrupt in code compiled from text, as in an import of a named tuple, `python -m` would
        # end by the signal instead of this status. Python forgets that when it runs other such code.
        exec("")  # noqa: S102
    # All memory is freed by the end of the process.
    gc.disable()
    sys.exit(status)
