"""slo-ctl.toml(5)."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest
from installed_tree import TREE

from slo_ctl.config.schema import known_keys


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
    for section, keys in known_keys().items():
        assert f"[{section}" in shown
        for key in keys:
            assert key in shown
