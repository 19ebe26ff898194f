"""The location of the real traces, and files written by tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def real() -> Callable[[str], Path]:
    """The path of a real trace; skips the test with its name if it is missing."""
    folder = Path(os.environ.get("SLO_CTL_TRACES", _ROOT.parent / "shared" / "traces"))

    def find(name: str) -> Path:
        path = folder / name
        if not path.exists():
            pytest.skip(f"no real trace {name}: set SLO_CTL_TRACES to the directory that holds it")
        return path

    return find


@pytest.fixture
def trace_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes bytes or text to a file and returns its path."""

    def write(content: bytes | str, name: str = "trace") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write
