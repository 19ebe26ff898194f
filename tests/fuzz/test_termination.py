"""Fuzzing that is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
ATHERIS = """
import contextlib, os, pathlib, time

@contextlib.contextmanager
def instrument_imports(include):
    yield

def Setup(words, check):
    seeds = pathlib.Path(words[-1])
    pathlib.Path("started.new").write_text(f"{os.getpid()} {seeds.parent}")
    os.rename("started.new", "started")

def Fuzz():
    time.sleep(600)
"""
"""A substitute for the package: it reports where it runs, and continues."""


def test_terminated_fuzzing_ends_its_process_and_removes_its_files(tmp_path: Path) -> None:
    (tmp_path / "atheris.py").write_text(ATHERIS)
    started = tmp_path / "started"
    paths = [tmp_path, TREE / "tests", TREE]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    words = [sys.executable, "-m", "fuzz", "words", "--minutes", "10"]
    with subprocess.Popen(words, cwd=tmp_path, env=environment) as fuzzing:
        try:
            deadline = time.monotonic() + 180
            while not started.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            fuzzing.send_signal(signal.SIGTERM)
        assert fuzzing.wait(60) == 128 + signal.SIGTERM
    pid, folder = started.read_text().split()
    assert not Path("/proc", pid).exists()
    assert not Path(folder).exists()


@pytest.mark.parametrize("target", ["campaign", "fuzz"])
def test_signals_reach_the_program_and_not_a_shell(target: str) -> None:
    words = ["make", "--dry-run", "--old-file=setup", "--old-file=setup-test", target, "NAME=x"]
    printed = subprocess.run(words, cwd=TREE, capture_output=True, text=True, check=True).stdout
    assert " exec .venv/bin/python -m " in printed
