"""The wheel contains the server of devices and works in an environment without this tree."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from installed_tree import TREE, script

sys.path.insert(0, str(TREE / "scripts"))

from wheel_with_server import INSIDE, oldest_glibc, platform_tag, with_server

GROUP = "installed tree"


def test_tag_promises_no_older_c_library_than_core_and_server_need() -> None:
    tag = "cp311-abi3-manylinux_2_34_x86_64"
    assert platform_tag(tag, (2, 36)) == "cp311-abi3-manylinux_2_36_x86_64"
    assert platform_tag(tag, (2, 4)) == tag
    assert platform_tag("cp311-abi3-linux_x86_64", (2, 36)) == "cp311-abi3-linux_x86_64"
    assert oldest_glibc(b"\0GLIBC_2.4\0GLIBC_2.34\0GLIBC_2.5\0") == (2, 34)
    assert oldest_glibc(b"a static program") == (0, 0)


def test_server_is_recorded_and_executable(tmp_path: Path) -> None:
    built, program = (
        tmp_path / "a-1-cp311-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        tmp_path / "b",
    )
    with zipfile.ZipFile(built, "w") as wheel:
        wheel.writestr("a/__init__.py", "")
        wheel.writestr("a-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: cp311-abi3-manylinux_2_17_x86_64\n")
        wheel.writestr("a-1.dist-info/RECORD", "")
    program.write_bytes(b"GLIBC_2.36")
    (tmp_path / "dist").mkdir()
    result = with_server(built, program, tmp_path / "dist")
    assert result.name == "a-1-cp311-abi3-manylinux_2_36_x86_64.whl"
    with zipfile.ZipFile(result) as wheel:
        assert wheel.getinfo(INSIDE).external_attr >> 16 & 0o777 == 0o755
        tags = [line for line in wheel.read("a-1.dist-info/WHEEL").decode().splitlines() if "Tag" in line]
        assert tags == ["Tag: cp311-abi3-manylinux_2_36_x86_64"]
        rows = list(csv.reader(wheel.read("a-1.dist-info/RECORD").decode().splitlines()))
        assert {name for name, *_ in rows} == set(wheel.namelist())
        for name, digest, size in rows:
            if digest:
                data = wheel.read(name)
                found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                assert (digest, size) == (f"sha256={found}", str(len(data)))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (TREE / ".venv" / "bin" / "maturin").exists():
        pytest.skip("maturin is not in .venv (make setup)")
    folder = tmp_path_factory.mktemp("wheel")
    done = script("wheel.sh", str(folder), variables={})
    assert done.returncode == 0, done.stderr
    (found,) = folder.iterdir()
    return found


def test_wheel_has_neither_sources_of_the_core_nor_inputs_of_fuzzing(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert INSIDE in names
    assert "slo_ctl/cli/guest/bare_writer.c" in names, "the program that guests of `slo-ctl try` boot"
    assert not [name for name in names if name.endswith(".rs") or "/fuzz/" in name]


def test_server_in_the_wheel_does_not_depend_on_the_directory_of_the_tree(wheel: Path) -> None:
    """Neither by a path nor by its build ID, which depends on paths."""
    server = zipfile.ZipFile(wheel).read(INSIDE)
    assert server.startswith(b"\x7fELF")
    for part in (b".note.gnu.build-id", bytes(TREE)):
        assert part not in server


def test_installed_wheel_serves_a_device(wheel: Path, tmp_path: Path) -> None:
    """Dependencies come from this environment, all of slo-ctl from the wheel."""
    environment = tmp_path / "environment"
    program = environment / "bin" / "slo-ctl"
    python = [sys.executable, "-m"]
    subprocess.run([*python, "venv", "--without-pip", environment], check=True, timeout=120)
    pip = [*python, "pip", "--disable-pip-version-check", f"--python={environment / 'bin' / 'python'}"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], check=True, timeout=120)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def slo_ctl(*words: str) -> str:
        env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "SLO_CTL_SERVER")}
        done = subprocess.run(
            [program, *words, "--root", tmp_path / "s"],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    slo_ctl("device", "create", "ssd0", "--size", "64MiB", "--op", "15%", "--namespace", "name=web")
    server = subprocess.Popen(
        [program, "device", "serve", "ssd0", "--root", tmp_path / "s"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        assert any(line == "ready\n" for line in server.stdout)
        assert "web" in slo_ctl("device", "show", "ssd0")
        (running,) = (
            path.resolve()
            for pid in (server.pid, *_children(server.pid))
            if (path := Path(f"/proc/{pid}/exe")).resolve().name == "ftl-serve"
        )
        assert running == (packages / INSIDE).resolve()
    finally:
        server.terminate()
        server.wait(60)


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
