"""`slo-ctl paper` is interrupted while it measures on the block layer: nothing remains on the host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from own_process import READY_S, default_signals, written_to
from serving import require
from waiting import until

from slo_ctl.cli.exit_status import EXIT_INTERRUPTED
from slo_ctl.host.cgroup import CgroupTree, find_tree

pytestmark = pytest.mark.slow


class Measuring:
    """A run in its own process group, with its own directory for temporary files.

    The name of `folder` must not appear in any other command line on the host.
    """

    def __init__(self, tree: CgroupTree, folder: Path) -> None:
        self._tree, self.folder = tree, folder
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", "slo_ctl.cli", "paper", "fast15:1", "--jobs", "2"],
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env=os.environ | {"TMPDIR": str(folder)},
            start_new_session=True,
            preexec_fn=default_signals,
        )

    def measures(self) -> bool:
        """Whether fio of both processes is in its cgroup."""
        assert self.process.poll() is None, self.errors()
        groups = [group for group in self.groups() if (group / "VM-10" / "cgroup.procs").is_file()]
        return len(groups) == 2 and all((group / "VM-10" / "cgroup.procs").read_text() for group in groups)

    def groups(self) -> list[Path]:
        """Its cgroups; they are named like the temporary directories, with random letters."""
        made = {f"slo-paper-{folder.name.split('-')[2]}" for folder in self.folder.glob("slo-paper-*")}
        return [self._tree.root / name for name in made if (self._tree.root / name).is_dir()]

    def programs(self) -> list[str]:
        """Command lines that contain its directory."""
        found = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = file.read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(self.folder) in words:
                found.append(words)
        return found

    def loop_devices(self) -> list[str]:
        """Loop devices on its files."""
        listed = subprocess.run(
            ["losetup", "--noheadings", "--output", "BACK-FILE"], capture_output=True, text=True, check=True
        )
        return [path for path in listed.stdout.splitlines() if str(self.folder) in path]

    def mounts(self) -> list[str]:
        """Mounts of its files."""
        return [
            line for line in Path("/proc/self/mounts").read_text().splitlines() if str(self.folder) in line
        ]

    def errors(self) -> str:
        """Its stderr."""
        return written_to(self._errors)


@pytest.fixture
def tree() -> CgroupTree:
    require("fio", "losetup", "nbdfuse", "setpriv")
    tree = find_tree()
    if os.geteuid() != 0 or tree is None or not tree.io:
        pytest.skip("loop devices and cgroups need root and a cgroup tree with block I/O")
    return tree


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="slo-ended-") as name:
        yield Path(name)


@contextmanager
def measuring(tree: CgroupTree, folder: Path) -> Iterator[Measuring]:
    run = Measuring(tree, folder)
    try:
        until(run.measures, "fio in cgroups of both processes")
        yield run
    finally:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGTERM)
            run.process.wait(READY_S)


# Other handled signals behave alike (tests/test_termination.py); Python itself handles SIGINT.
@pytest.mark.parametrize(
    ("send", "number"),
    [
        (os.kill, signal.SIGTERM),
        (os.killpg, signal.SIGTERM),
        (os.killpg, signal.SIGINT),
    ],
)
def test_a_signal_leaves_nothing(
    tree: CgroupTree, folder: Path, send: Callable[[int, int], None], number: signal.Signals
) -> None:
    with measuring(tree, folder) as run:
        groups = run.groups()
        assert run.loop_devices()
        assert run.mounts()
        assert run.programs()
        send(run.process.pid, number)
        assert run.process.wait(READY_S) == EXIT_INTERRUPTED
        assert not [group for group in groups if group.exists()]
        assert not run.loop_devices()
        assert not run.mounts()
        assert not run.programs()
        assert not list(folder.iterdir())
        assert "Traceback" not in run.errors(), run.errors()
        assert "fio" not in run.errors(), run.errors()


def test_the_next_run_removes_what_a_killed_one_left(tree: CgroupTree, folder: Path) -> None:
    with measuring(tree, folder) as killed:
        groups, made = killed.groups(), list(folder.iterdir())
        os.killpg(killed.process.pid, signal.SIGKILL)
        killed.process.wait(READY_S)
        until(lambda: not killed.programs(), "the kernel ends its programs")
        until(lambda: not killed.loop_devices(), "the kernel detaches its loop devices")
        processes = [Path("/proc", group.name.removeprefix("slo-paper-")) for group in groups]
        until(lambda: not any(each.exists() for each in processes), "nothing is left of its processes")
    with measuring(tree, folder):
        assert not [each for each in (*groups, *made) if each.exists()]
