"""`slo-ctl` as the tests of this folder call it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slo_ctl.cli.app import run


class CommandLine:
    """A command that is called with further words, after `first`."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *first: str, root: Path | None = None) -> None:
        """`root` is passed as --root; None: no such option."""
        self._capsys = capsys
        self._first = first
        self._root = root

    @property
    def root(self) -> Path:
        """The value of --root."""
        assert self._root is not None
        return self._root

    def verb(self, name: str) -> CommandLine:
        """One of its subcommands."""
        return CommandLine(self._capsys, *self._first, name, root=self._root)

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """Exit status, stdout, stderr."""
        where = ["--root", str(self._root)] if self._root is not None else []
        status = run([*self._first, *words, *where])
        captured = self._capsys.readouterr()
        return status, captured.out, captured.err

    def answer(self, *words: str) -> dict[str, Any]:
        """Its JSON output."""
        status, out, err = self(*words, "--json")
        assert status == 0, err
        found: dict[str, Any] = json.loads(out)
        return found

    def refused(self, *words: str) -> str:
        """Its error, which is one line and a hint."""
        status, out, err = self(*words)
        assert status == 2, (out, err)
        first, hint = err.strip().splitlines()[-2:]
        assert first.startswith("slo-ctl: ")
        assert hint.startswith("hint: ")
        return err


@pytest.fixture
def device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """`slo-ctl device`."""
    return CommandLine(capsys, "device", root=tmp_path / "root")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty directory to measure."""
    folder = tmp_path / "place"
    folder.mkdir()
    return folder
