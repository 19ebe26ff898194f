"""`scripts/guest-host.sh build` builds the guest; `shell` boots one with drives and opens a shell in it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from .build import CannotBuildError, ensure, ready
from .guests import GENERAL
from .machine import Guest, GuestError


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0 done, 1 not possible on this machine, 2 usage error."""
    try:
        match arguments:
            case ["ready"]:
                return 0 if ready() is not None else 1
            case ["build"]:
                sys.stdout.write(f"{ensure().folder}\n")
            case ["shell", *command]:
                return _shell(command)
            case _:
                _say("build, ready, or shell [COMMAND]")
                return 2
    except (CannotBuildError, GuestError) as error:
        _say(str(error))
        return 1
    return 0


def _shell(command: list[str]) -> int:
    logs = Path(tempfile.mkdtemp(prefix="slo-guest-logs-"))
    guest = Guest(ensure(), GENERAL.drives, logs)
    try:
        guest.start()
        _say(f"up in {guest.boot_s:.0f} s; logs go to {logs}")
        return subprocess.run([*guest.ssh_command(), *command], check=False).returncode
    finally:
        guest.close()


def _say(text: str) -> None:
    sys.stderr.write(f"guest-host: {text}\n")


sys.exit(main(sys.argv[1:]))
