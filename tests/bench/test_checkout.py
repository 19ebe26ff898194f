"""Benchmarks measure the checkout that they belong to, whatever is installed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import checkout
import pytest

BENCH = Path(__file__).parents[2] / "bench"
SCRIPTS = sorted(path for path in BENCH.glob("*.py") if "__main__" in path.read_text())


def test_benches_and_their_children_use_packages_of_this_checkout(tmp_path: Path) -> None:
    for package in ("bench", "slo_ctl"):
        (tmp_path / package).mkdir()
    (tmp_path / "slo_ctl" / "__init__.py").touch()
    (tmp_path / "bench" / "checkout.py").write_text((BENCH / "checkout.py").read_text())
    script = tmp_path / "bench" / "script.py"
    script.write_text(
        "import checkout, slo_ctl, subprocess, sys\n"
        "print(slo_ctl.__file__, flush=True)\n"
        "subprocess.run([sys.executable, '-c', 'import slo_ctl; print(slo_ctl.__file__)'], check=True)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.split() == [str(tmp_path / "slo_ctl" / "__init__.py")] * 2


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_benchmark_imports_checkout_first(script: Path) -> None:
    modules = []
    for node in ast.parse(script.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            modules.append(node.module or "")
        elif isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
    ours = ("checkout", "slo_ctl", "ftl_emul", "traces", "fsim", "lab", "daemon_sim")
    assert [name for name in modules if name.partition(".")[0] in ours][:1] == ["checkout"]


def test_a_measured_daemon_has_the_environment_of_its_unit() -> None:
    unit = (checkout.ROOT / "systemd" / "slo-ctld.service").read_text()
    assert re.findall(r"^Environment=(\w+)=(\S+)$", unit, re.MULTILINE) == list(checkout.OF_UNIT.items())
