"""slo-ctl.toml(5)."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest
from installed_tree import TREE


def test_man_page_has_every_key_and_passes_groff() -> None:
    script, text = TREE / "scripts" / "config_page.py", TREE / "docs" / "configuration.md"
    made = subprocess.run(
        [sys.executable, script], input=text.read_text(), capture_output=True, text=True, check=True
    )
    assert made.stderr == ""
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tascii", "-P-c"],
        input=made.stdout,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    shown = re.sub(".\b", "", done.stdout)
    assert re.findall(r"^ {7}\S.*`", shown, re.MULTILINE) == [], "code is set in bold"
    keys = re.findall(r"^\| `(?:(\[+[\w.]+\]+) )?(\w+)` \|", text.read_text(), re.MULTILINE)
    assert {key for _, key in keys} >= {"weight", "on_verdict", "namespaces"}
    for table, key in keys:
        assert table in shown
        assert key in shown
