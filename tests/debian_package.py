"""The Debian package of this tree, built once for all processes of a run."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

_TREE = Path(__file__).parents[1]
_BUILD_S = 1800.0
_FOLDER_VARIABLE = "SLO_CTL_TEST_FOLDER"
"""Set by scripts/test.sh, which runs pytest more than once: a folder for all of these runs."""


class CannotPackageError(Exception):
    """There is no package, and why."""


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """One folder for all processes of the run."""
    if given := os.environ.get(_FOLDER_VARIABLE):
        return Path(given)
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def debian_package(shared: Path, release: str = "trixie") -> Path:
    """As `make deb` makes it, by whichever process needs it first. Raises CannotPackageError."""
    folder = shared / f"debian-package-{release}"
    with (shared / f"debian-package-{release}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (found := sorted(folder.glob("slo-ctl_*.deb"))):
            folder.mkdir(exist_ok=True)
            _build(folder, release)
            found = sorted(folder.glob("slo-ctl_*.deb"))
    return found[0]


def _build(folder: Path, release: str) -> None:
    # build/env.sh is what make runs commands under.
    command = f". build/env.sh && DEB_FOR={release} DEB_DIR='{folder}' scripts/deb.sh"
    try:
        done = subprocess.run(
            ["bash", "-c", command], cwd=_TREE, capture_output=True, text=True, check=False, timeout=_BUILD_S
        )
    except subprocess.TimeoutExpired as error:
        raise CannotPackageError(f"scripts/deb.sh took more than {_BUILD_S:.0f} s") from error
    if done.returncode:
        raise CannotPackageError(f"scripts/deb.sh: {done.stderr[-500:]}")
