"""Runs in a guest: runs commands of slo-ctl and scripts, each in a fork of this process, which has imported
the modules they need.

`commands.py` starts it and explains why; its argument is the folder of the pipes.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
from importlib import import_module
from pathlib import Path

from slo_ctl.cli import main

_IMPORTED_BY_COMMANDS = (
    "slo_ctl.act.mapping",
    "slo_ctl.act.queue",
    "slo_ctl.act.systemd",
    "slo_ctl.api.client",
    "slo_ctl.api.routes",
    "slo_ctl.cli.app",
    "slo_ctl.cli.device",
    "slo_ctl.cli.doctor",
    "slo_ctl.cli.status",
    "slo_ctl.cli.vm",
    "slo_ctl.decide.namespace_plan",
    "slo_ctl.host.requirements",
    "slo_ctl.profile.store",
    "slo_ctl.show.drives",
    "slo_ctl.show.status",
    "slo_ctl.show.vms",
)


def run(folder: Path, path: str, *arguments: str) -> None:
    """Run a program as a shell would, with this PATH."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ["PATH"] = path
    if arguments[0].endswith(".py"):
        sys.argv = list(arguments)
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")
        sys.exit()
    sys.argv[1:] = arguments
    main()


def serve(folder: Path) -> None:
    """Run one command after the other."""
    # Imports leave no garbage, and collecting it takes a seventh of their time.
    gc.disable()
    for name in _IMPORTED_BY_COMMANDS:
        import_module(name)
    for name in ("request", "status"):
        os.mkfifo(folder / name)
    while True:
        words = (folder / "request").read_bytes().split(b"\0")[:-1]
        child = os.fork()
        if child == 0:
            run(folder, *map(os.fsdecode, words))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        (folder / "status").write_text(f"{code if code >= 0 else 128 - code}\n")


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
