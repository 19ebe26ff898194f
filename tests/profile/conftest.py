"""What tests of this folder share is beside them; commands run below a root of the test's own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from command_line import CommandLine


@pytest.fixture
def device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """`slo-ctl device`."""
    return CommandLine(capsys, "device", root=tmp_path / "root")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty directory to be measured."""
    folder = tmp_path / "place"
    folder.mkdir()
    return folder
