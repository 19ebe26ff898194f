"""On a terminal of 40 columns: nothing is wider, nothing is cut off."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len
from test_history_cli import record_a_minute

from slo_ctl.cli import app

WIDTH = 40
CONFIG = """\
[libvirt]
uri = "none"
[vm.web]
cgroup = "/slo/web"
namespaces = ["ssd0/web"]
weight = 3
[vm.a-vm-with-quite-a-long-name]
namespaces = ["ssd0/db"]
"""


@pytest.fixture
def root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    (tmp_path / "slo-ctl.toml").write_text(CONFIG)
    namespaces = ("--namespace", "name=web,size=100MiB", "--namespace", "name=db")
    words = ("device", "create", "ssd0", "--size", "256MiB", *namespaces)
    assert app.run([*words, "--root", str(tmp_path)]) == 0
    capsys.readouterr()
    return tmp_path


def lines_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """Output of a command on such a terminal."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with monkeypatch.context() as patch:
        patch.setattr(sys.stdout, "isatty", lambda: True)
        assert app.run([*words]) == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    return [line.rstrip() for line in shown.splitlines()]


@pytest.mark.parametrize(
    "command",
    [
        "vm list",
        "vm show web",
        "device list",
        "device show ssd0",
        "history web --since 2min",
        "report --since 2min",
        "vm set web max=5k,max_bandwidth=100MiB --dry-run",
    ],
)
def test_nothing_is_wider_than_the_terminal(
    root: Path, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record_a_minute(root, range(30, 60), range(30, 60), "410 of 1,000 IOPS, below its minimum")
    lines = lines_of(capsys, monkeypatch, *command.split(), "--root", str(root))
    # The terminal itself wraps addresses, so that they can be pasted.
    assert [line for line in lines if cell_len(line) > WIDTH and "nbd+unix" not in line] == []
    assert "…" not in "".join(lines)


def test_a_table_that_does_not_fit_becomes_facts(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = lines_of(capsys, monkeypatch, "vm", "list", "--root", str(root))
    at = lines.index("a-vm-with-quite-a-long-name")
    assert lines[at + 1] == "  DEVICE  ssd0/db"
    lines = lines_of(capsys, monkeypatch, "device", "show", "ssd0", "--root", str(root))
    at = lines.index("web")
    assert lines[at + 1 : at + 4] == ["  SIZE        100 MiB", "  ON DISK     0 B", "  WEIGHT      1"]


def test_events_are_wrapped_below_their_text(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record_a_minute(root, range(30, 60), range(0), "410 of 1,000 IOPS, below its minimum")
    lines = lines_of(capsys, monkeypatch, "history", "web", "--since", "2min", "--root", str(root))
    at = next(
        i for i, line in enumerate(lines) if "ok -> insufficient" in line or "ssd0: verdict ok ->" in line
    )
    assert lines[at + 1].startswith(" " * 12)
