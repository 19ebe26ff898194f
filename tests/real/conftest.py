"""Tests against real programs and the real kernel. A test skips, with a reason, if something is missing."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def root(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A root with a short path, as socket names are limited in length. The parameter is its parent folder."""
    folder = Path(tempfile.mkdtemp(prefix="slo-", dir=getattr(request, "param", None)))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
