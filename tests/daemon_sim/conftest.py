"""Makes helpers of tests/real importable."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "real"))


@pytest.fixture
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short name, as socket names are limited in length."""
    return tmp_path_factory.mktemp("s")
