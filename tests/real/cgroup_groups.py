"""A loop device for one test, and cgroups that account I/O on it."""

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
    """Path and number of the device. Its file is written once, so that all blocks are allocated."""
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
        # The next user of this device number would get the scheduler of this test.
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
    """Remove a cgroup after its last process has left: a killed process stays in it for a moment."""
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
    """Groups below a group of this test, as in /proc/PID/cgroup."""
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
    """The command prefix that gives a client real-time CPU priority, as root.

    A client that waits for a CPU leaves its queue empty, and the others take its share: weights 1:3:6 on a
    loop device with bfq gave 0.38, 0.30 and 0.32 beside seven busy loops, and 0.10, 0.30 and 0.60 with this
    prefix. The I/O class stays best-effort: bfq serves real-time I/O first and starves all other I/O.
    """
    words = ("ionice", "--class", "2", "--classdata", "4", "chrt", "--rr", "1")
    if shutil.which("ionice") is None or shutil.which("chrt") is None:
        return ()
    allowed = subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
    return words if allowed else ()


@contextmanager
def prompted() -> Iterator[None]:
    """Start all processes of the block with `prompt`, where that is permitted."""
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
    """Start fio in a v1 group with cgroup-tools; it prints its result as JSON on stdout."""
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
    """IOPS of a `fio` process; waits for its end."""
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return float(json.loads(out)["jobs"][0][kind]["iops"])
