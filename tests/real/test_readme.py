"""The live lines of the README, typed in order on a fresh root."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from libvirt_host import (
    LibvirtHost,
    libvirt_host,  # noqa: F401 - a fixture
)
from own_process import READY_S

GROUP = "VMs called web or db"
pytestmark = pytest.mark.slow
TREE = Path(__file__).parents[2]
README_ROOT = "/tmp/slo"  # noqa: S108 - as it is written there


def live_lines() -> list[str]:
    section = (TREE / "README.md").read_text().partition("## A live host")[2].partition("\n## ")[0]
    found = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert found
    return found[1].replace("\\\n", " ").splitlines()


class Shell:
    """Types lines as a user does, with `slo-ctl` of this tree."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bin").mkdir()
        program = root / "bin" / "slo-ctl"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m slo_ctl.cli "$@"\n')
        program.chmod(0o755)
        self._env = os.environ | {
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(TREE),
        }
        self._background: list[subprocess.Popen[str]] = []

    def type(self, line: str) -> tuple[int, str]:
        """Exit status and output; of a line in the background as soon as it is ready."""
        words = line.partition("  #")[0].strip().replace(README_ROOT, str(self.root / "slo"))
        if words.endswith("&"):
            return self._start(words.removesuffix("&"))
        done = subprocess.run(
            ["bash", "-c", words], env=self._env, capture_output=True, text=True, check=False, timeout=READY_S
        )
        return done.returncode, done.stdout + done.stderr

    def _start(self, words: str) -> tuple[int, str]:
        log = self.root / f"{len(self._background)}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {words}"], env=self._env, stdout=output, stderr=output, text=True
            )
        self._background.append(process)
        deadline_s = time.monotonic() + READY_S
        while "\nready\n" not in f"\n{log.read_text()}" and process.poll() is None:
            assert time.monotonic() < deadline_s, log.read_text()
            time.sleep(0.05)
        return process.poll() or 0, log.read_text()

    def close(self) -> None:
        for process in reversed(self._background):
            process.terminate()
            process.wait(READY_S)


@pytest.fixture
def shell(root: Path) -> Iterator[Shell]:
    root.chmod(0o755)
    (root / "slo").mkdir(mode=0o755)
    shell = Shell(root)
    yield shell
    shell.close()


def test_every_readme_line_works_with_libvirt(libvirt_host: LibvirtHost, shell: Shell) -> None:  # noqa: F811
    libvirt_host.start_domain("web")
    (shell.root / "slo" / "slo-ctl.toml").write_text(f'[libvirt]\nuri = "{libvirt_host.uri}"\n')
    lines = live_lines()
    assert len(lines) == 6
    for line in lines[:-1]:
        status, output = shell.type(line)
        assert status == 0, f"{line}\n{output}"
    deadline_s = time.monotonic() + READY_S
    while True:
        # The daemon's next look at libvirt is within an epoch.
        status, output = shell.type(lines[-1])
        (row,) = re.findall(r"^web .*", output, re.MULTILINE) or [""]
        if re.search(r"\b3\b.*\(50/.\).*EMULATED SSD.* idle", row):
            break
        assert time.monotonic() < deadline_s, output
    assert status == 0


def test_readme_lines_that_need_libvirt_say_so_without_it(shell: Shell) -> None:
    # Others' VMs may be processes of this host.
    config = f'[libvirt]\nuri = "none"\n[cgroup]\nroot = "{shell.root}/none"\n'
    (shell.root / "slo" / "slo-ctl.toml").write_text(config)
    *works, attach, set_slo, status = live_lines()
    assert [shell.type(line)[0] for line in works] == [0, 0, 0]
    for line in (attach, set_slo):
        code, output = shell.type(line)
        assert code == 2, output
        assert re.search(r"^hint: ", output, re.MULTILINE), output
    code, output = shell.type(status)
    assert code == 0, output
    assert "slo-ctl.toml" in output, "no VM: what to write"
