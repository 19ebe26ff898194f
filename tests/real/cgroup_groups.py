"""A loop device of the test's own, and cgroups that account I/O on it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from slo_ctl.host.cgroup import CgroupTree, find_tree
from slo_ctl.model.host import DeviceNumber
from slo_ctl.profile.fio import CLOCK

MIB = 1 << 20


@contextmanager
def loop_device(
    size_bytes: int, scheduler: str = "none", **iosched: int
) -> Iterator[tuple[str, DeviceNumber]]:
    """Its path and number; backed by a file that is written once, so that its blocks are there."""
    if os.geteuid() != 0:
        pytest.skip("a loop device needs root")
    with tempfile.TemporaryDirectory(prefix="slo-ctl-loop-", dir="/var/tmp") as folder:
        image = Path(folder) / "image"
        with image.open("wb") as file:
            for _ in range(0, size_bytes, MIB):
                file.write(bytes(MIB))
        made = subprocess.run(
            ["losetup", "--find", "--show", "--direct-io=on", str(image)],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            pytest.skip(f"no loop device can be made here: {made.stderr.strip()}")
        path = made.stdout.strip()
        # The number is somebody else's next, and would come with the scheduler of this test.
        queue = Path("/sys/block") / Path(path).name / "queue"
        before = re.findall(r"\[(.*)\]", (queue / "scheduler").read_text())
        try:
            try:
                (queue / "scheduler").write_text(scheduler)
                for name, value in iosched.items():
                    (queue / "iosched" / name).write_text(str(value))
            except OSError as error:
                pytest.skip(f"no scheduler {scheduler} here: {error.strerror}")
            number = Path(path).stat().st_rdev
            yield path, DeviceNumber(os.major(number), os.minor(number))
        finally:
            if before:
                (queue / "scheduler").write_text(before[0])
            subprocess.run(["losetup", "--detach", path], check=False)


def io_tree() -> CgroupTree:
    tree = find_tree()
    if tree is None or not tree.io:
        pytest.skip("this host has no cgroup tree with block I/O")
    return tree


REMOVED_S = 60.0


def remove_group(folder: Path) -> None:
    """Remove a cgroup once its last process is gone: one that was killed is in it a moment longer."""
    deadline = time.monotonic() + REMOVED_S
    while folder.exists():
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@contextmanager
def groups(tree: CgroupTree, *names: str) -> Iterator[list[str]]:
    """Groups below one of the test's own, as in /proc/PID/cgroup."""
    parent = tree.root / f"slo-ctl-test-{uuid.uuid4().hex[:8]}"
    made: list[Path] = []
    try:
        try:
            for folder in (parent, *(parent / name for name in names)):
                folder.mkdir()
                made.append(folder)
        except OSError as error:
            pytest.skip(f"no cgroup can be made here: {error.strerror}")
        yield [f"/{parent.name}/{name}" for name in names]
    finally:
        for folder in reversed(made):
            remove_group(folder)


@cache
def prompt() -> tuple[str, ...]:
    """What goes before the command of a client so that it never waits for a CPU while others work, as root.

    A client that waits leaves its queue empty and its share to whoever comes first: weights 1:3:6 on a loop
    device with bfq gave 0.38, 0.30 and 0.32 beside seven busy loops, and with this 0.10, 0.30 and 0.60.
    Its I/O stays that of everybody: what runs at once is otherwise served at once, and nobody else at all.
    """
    words = ("ionice", "--class", "2", "--classdata", "4", "chrt", "--rr", "1")
    if shutil.which("ionice") is None or shutil.which("chrt") is None:
        return ()
    allowed = subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
    return words if allowed else ()


@contextmanager
def prompted() -> Iterator[None]:
    """Whatever is started meanwhile is started as with `prompt`, where that is allowed."""
    if not prompt():
        yield
        return
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    own_priority = ("ionice", "--class", "2", "--classdata", "4", "--pid", str(os.getpid()))
    subprocess.run(own_priority, check=True)
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


def fio(cgroup: str, path: str, *options: str) -> subprocess.Popen[str]:
    """Start fio in a v1 group by cgroup-tools; its result is JSON on stdout."""
    for program in ("fio", "cgexec"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    return subprocess.Popen(
        [
            *("cgexec", "-g", f"blkio:{cgroup.lstrip('/')}", *prompt()),
            *("fio", "--name=job", f"--filename={path}", "--direct=1", "--bs=4k", "--ioengine=libaio"),
            *("--time_based", "--output-format=json", CLOCK, *options),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def iops_of(process: subprocess.Popen[str], kind: str) -> float:
    """The result of a `fio`, once it has ended."""
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return float(json.loads(out)["jobs"][0][kind]["iops"])
