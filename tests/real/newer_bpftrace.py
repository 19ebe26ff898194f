"""A bpftrace that attaches to raw tracepoints: that of the system, or that of Debian 13 below build/bpftrace.

If that of the system is too old, `python -m newer_bpftrace` unpacks Debian's (15 s, 290 MB) without
changing packages of the system.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from guest.build import CannotBuildError, apt_options, mirror
from guest.recipe import SUITE, TREE

from slo_ctl.base.errors import UserError
from slo_ctl.host.bio_latency import PROGRAM, find_program

FOLDER = TREE / "build" / "bpftrace"
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_UNPACK_S = 600.0


def search_path() -> str:
    """A value of PATH that finds a bpftrace which is new enough; skips the test if there is none."""
    if os.geteuid() != 0:
        pytest.skip("tracing needs root")
    own = FOLDER / "bin"
    before = os.environ["PATH"]
    if (own / PROGRAM).exists():
        return f"{own}:{before}"
    try:
        find_program()
    except UserError as error:
        pytest.skip(f"{error} (scripts/setup.sh --real)")
    return before


def unpack() -> None:
    """Unpack into `FOLDER`, with a script that runs it with its own libraries. Raises CannotBuildError."""
    partial = FOLDER.with_name("bpftrace.new")
    shutil.rmtree(partial, ignore_errors=True)
    options = ["--variant=extract", f"--include={PROGRAM}", "--dpkgopt=path-exclude=/usr/share/*"]
    options += ['--aptopt=APT::Install-Recommends "false"', *apt_options()]
    command = ["mmdebstrap", *options, SUITE, str(partial), mirror()]
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, check=True, timeout=_UNPACK_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotBuildError(f"mmdebstrap: {error}") from error
    script = partial / "bin" / PROGRAM
    script.parent.mkdir()
    script.write_text(
        f'#!/bin/sh\nroot="${{0%/bin/*}}"\nlibraries="$root/{_LIBRARIES}"\n'
        'exec "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" "$root/usr/bin/bpftrace" "$@"\n'
    )
    script.chmod(0o755)
    partial.chmod(0o755)
    shutil.rmtree(FOLDER, ignore_errors=True)
    partial.rename(FOLDER)


def files() -> list[Path]:
    """The unpacked files that are needed to run it."""
    libraries, program = FOLDER / _LIBRARIES, FOLDER / "usr" / "bin" / PROGRAM
    loader = libraries / "ld-linux-x86-64.so.2"
    command = [str(loader), "--library-path", str(libraries), "--list", str(program)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    needed = {libraries / Path(name).name for name in re.findall(r"^\s*(\S+) => ", listed, re.MULTILINE)}
    return sorted({FOLDER / "bin" / PROGRAM, program, loader} | needed)


def main() -> int:
    """Returns the exit code: 0 done, 1 not possible on this machine."""
    try:
        unpack()
    except CannotBuildError as error:
        sys.stderr.write(f"bpftrace: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
