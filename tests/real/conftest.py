"""Tests against real programs and the real kernel; each skips where something is missing, naming it."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def root() -> Iterator[Path]:
    """A root with a short path: the names of sockets are short."""
    folder = Path(tempfile.mkdtemp(prefix="slo-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
