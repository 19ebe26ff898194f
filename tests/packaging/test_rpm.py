"""The .rpm, built and installed into a separate root.

This is not Fedora: dependencies are not resolved, and scriptlets do not run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from installed_tree import TREE, script
from test_install import EXPECTED

SPEC = (TREE / "rpm" / "slo-ctl.spec").read_text()


def test_every_dependency_is_required_as_pyproject_has_it() -> None:
    needed = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    there = dict(re.findall(r"^Requires: python3dist\(([\w-]+)\) >= ([\d.]+)$", SPEC, re.MULTILINE))
    wanted = [*needed["dependencies"], *needed["optional-dependencies"]["host"]]
    assert there == {name: least.removesuffix(".0") for name, least in (each.split(">=") for each in wanted)}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for program in ("rpmbuild", "rpm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (scripts/setup.sh --real)")
    if not (TREE / ".venv" / "bin" / "maturin").exists():
        pytest.skip("maturin is not in .venv (make setup)")
    done = script("rpm.sh", variables={"RPM_DIR": str(tmp_path_factory.mktemp("dist"))})
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def rpm(*options: str | Path) -> str:
    done = subprocess.run(["rpm", *options], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_package_is_complete_and_declares_dependencies(package: Path) -> None:
    files = {re.sub(r"\.gz$", "", line[1:]) for line in rpm("-qpl", package).split()}
    assert files >= EXPECTED
    assert "usr/lib/slo-ctl/installed-files" not in files
    assert rpm("-qpc", package).split() == [
        "/etc/libvirt/hooks/qemu.d/slo-ctl",
        "/etc/slo-ctl/slo-ctl.toml",
    ]
    required = rpm("-qpR", package)
    assert "python3dist(pydantic) >= 2.7\n" in required
    assert "libc.so.6" in required, "that of the server, found by rpmbuild"
    scripts = rpm("-qp", "--scripts", package)
    for word in ("systemd-sysusers", "systemd-tmpfiles", "preset slo-ctld", "disable --now slo-ctld"):
        assert word in scripts


@pytest.mark.slow
def test_removed_package_leaves_a_changed_configuration(package: Path, tmp_path: Path) -> None:
    root = ("--root", tmp_path)
    rpm(*root, "--initdb")
    rpm(*root, "-i", "--nodeps", "--noscripts", "--ignorearch", package)
    home = tmp_path / "usr" / "lib" / "slo-ctl"
    ask = (
        f"import sys; sys.path.insert(0, {str(home)!r}); import slo_ctl, ftl_emul; "
        "from slo_ctl.cli import app; "
        "print(slo_ctl.__file__, ftl_emul._core.__file__); sys.exit(app.run(['--version']))"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", ask], cwd=tmp_path, env={}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    where, version = done.stdout.splitlines()
    assert all(file.startswith(str(home)) for file in where.split()), where
    assert version.startswith("slo-ctl ")
    assert rpm(*root, "-V", "--nodeps", "slo-ctl") == ""
    configuration = tmp_path / "etc" / "slo-ctl" / "slo-ctl.toml"
    configuration.write_text("[daemon]\n")
    rpm(*root, "-e", "--noscripts", "slo-ctl")
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    of_rpm = ("var/lib/rpm", "usr/lib/sysimage", str(Path.home()).removeprefix("/"))
    assert {name for name in left if not name.startswith(of_rpm)} == {"etc/slo-ctl/slo-ctl.toml.rpmsave"}
