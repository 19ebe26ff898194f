"""slo-ctl installed below a folder, and its Debian package, once per process."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import debian_package as built
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from installed_tree import TREE, Installed, install


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Shared: tests must not change it."""
    if not (TREE / ".venv" / "bin" / "maturin").exists():
        pytest.skip("maturin is not in .venv (make setup)")
    return install(tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="session")
def debian_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As scripts/deb.sh builds it."""
    if shutil.which("dh") is None:
        pytest.skip("dh is not installed (scripts/setup.sh --real)")
    return built.debian_package(built.shared_folder(tmp_path_factory))
