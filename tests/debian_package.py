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
"""Set by scripts/test.sh, which runs pytest several times: a folder that these runs share."""


class CannotPackageError(Exception):
    """The package cannot be built; the message is the reason."""


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of the run share."""
    if given := os.environ.get(_FOLDER_VARIABLE):
        return Path(given)
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def debian_package(shared: Path, release: str = "trixie") -> Path:
    """The package as `make deb` builds it; the first process to need it builds it."""
    folder = shared / f"debian-package-{release}"
    with (shared / f"debian-package-{release}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (found := sorted(folder.glob("slo-ctl_*.deb"))):
            folder.mkdir(exist_ok=True)
            _build(folder, release)
            found = sorted(folder.glob("slo-ctl_*.deb"))
    return found[0]


def _build(folder: Path, release: str) -> None:
    # make runs commands in the environment of build/env.sh.
    command = f". build/env.sh && DEB_FOR={release} DEB_DIR='{folder}' scripts/deb.sh"
    try:
        done = subprocess.run(
            ["bash", "-c", command], cwd=_TREE, capture_output=True, text=True, check=False, timeout=_BUILD_S
        )
    except subprocess.TimeoutExpired as error:
        raise CannotPackageError(f"scripts/deb.sh took more than {_BUILD_S:.0f} s") from error
    if done.returncode:
        raise CannotPackageError(f"scripts/deb.sh: {done.stderr[-500:]}")
