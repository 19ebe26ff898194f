"""slo-ctl installed below a folder, once for all tests here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from installed_tree import TREE, Installed, install


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Shared: not to be changed."""
    if not (TREE / ".venv" / "bin" / "maturin").exists():
        pytest.skip("maturin is not in .venv (make setup)")
    return install(tmp_path_factory.mktemp("installed"))
