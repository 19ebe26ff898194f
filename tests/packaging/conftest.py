"""slo-ctl installed below a folder, and its Debian package, once for all tests of a process."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from installed_tree import TREE, Installed, install, script


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Shared: not to be changed."""
    if not (TREE / ".venv" / "bin" / "maturin").exists():
        pytest.skip("maturin is not in .venv (make setup)")
    return install(tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="session")
def debian_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As scripts/deb.sh builds it. Files that ask for it have the same GROUP, so that it is built once."""
    for program in ("dh", "dpkg-deb"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (scripts/setup.sh --real)")
    folder = tmp_path_factory.mktemp("dist")
    done = script("deb.sh", variables={"DEB_DIR": str(folder)})
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.strip().rpartition("/")[2]
