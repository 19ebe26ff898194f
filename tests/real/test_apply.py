"""`slo-ctl plan` and `slo-ctl apply` on a real cgroup and a real block device, without a daemon."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from cgroup_groups import loop_device, remove_group
from own_process import READY_S

from slo_ctl.cli import app
from slo_ctl.daemon.files import DeviceClaims
from slo_ctl.host.block_device import device_behind

BLKIO = Path("/sys/fs/cgroup/blkio")


@pytest.fixture
def loop() -> Iterator[str]:
    # Without a scheduler: a reused device number may have bfq, and then weights would be set as well.
    with loop_device(16 << 20, "none") as (path, _):
        yield path


@pytest.fixture
def group() -> Iterator[Path]:
    if not (BLKIO / "blkio.throttle.read_iops_device").exists():
        pytest.skip("no cgroup v1 with blkio here")
    folder = BLKIO / f"slo-ctl-apply-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    yield folder
    remove_group(folder)


@pytest.fixture
def root(tmp_path: Path, loop: str, group: Path) -> Path:
    (tmp_path / "slo-ctl.toml").write_text(
        f"""
        [daemon]
        epoch = "200ms"
        [libvirt]
        uri = "none"
        [[device]]
        name = "fast"
        path = "{loop}"
        [vm.web]
        cgroup = "/{group.name}"
        max_iops = 500
        """
    )
    # The kernel lists the I/O of a group on a device only after its first request.
    script = f'echo $$ > "{group}/cgroup.procs"; exec dd if={loop} of=/dev/null bs=4096 count=64 iflag=direct'
    subprocess.run(["sh", "-c", script], check=True, capture_output=True)
    return tmp_path


def slo_ctl(root: Path, *words: str) -> int:
    return app.run([words[0], "--root", str(root), *words[1:]])


def throttled(group: Path) -> str:
    names = ("read_iops_device", "write_iops_device")
    return "".join((group / f"blkio.throttle.{name}").read_text() for name in names)


@pytest.fixture
def stranger(group: Path) -> Iterator[Path]:
    """A group of another program, with the name that libvirt gives the group of a VM `web`."""
    parent = group.with_name(f"{group.name}-others")
    folder = parent / "qemu-9-web.libvirt-qemu"
    folder.mkdir(parents=True)
    yield folder
    folder.rmdir()
    parent.rmdir()


def test_plan_apply_and_undo(
    root: Path, group: Path, stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert slo_ctl(root, "plan") == 3
    assert "planned" in capsys.readouterr().out
    assert throttled(group) == ""
    assert slo_ctl(root, "apply", "--dry-run") == 3
    assert throttled(group) == ""
    capsys.readouterr()
    assert slo_ctl(root, "apply") == 0
    output = capsys.readouterr().out
    # The split depends on the reads so far, if they were counted: recent kernels count only with a limit.
    limits = [int(each) for each in re.findall(r"unset -> (\d+) +applied", output)]
    assert len(limits) == 2, output
    # An idle side keeps 2 IOPS, the lowest io.max, beside the maximum (docs/hosts.md, "Steps of limits").
    assert 500 <= sum(limits) <= 502
    assert throttled(group) != ""
    assert throttled(stranger) == ""
    assert slo_ctl(root, "plan") == 0
    assert slo_ctl(root, "apply", "--undo") == 0
    assert "restored" in capsys.readouterr().out
    assert throttled(group) == ""


def test_apply_is_refused_while_a_daemon_runs(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    daemon = subprocess.Popen(
        [sys.executable, "-m", "slo_ctl.cli", "daemon", "--root", str(root)], stdout=subprocess.PIPE
    )
    try:
        assert daemon.stdout is not None
        assert daemon.stdout.readline().strip() == b"ready"
        assert slo_ctl(root, "apply") == 2
        assert "daemon already running" in capsys.readouterr().err
        deadline = time.monotonic() + READY_S
        while slo_ctl(root, "plan") != 0:  # asks the daemon, which needs one or two epochs
            assert time.monotonic() < deadline, capsys.readouterr().out
            time.sleep(0.1)
        assert slo_ctl(root, "status") in (0, 3)
        assert "web" in capsys.readouterr().out
        # The first verdict follows the second reading of its counters.
        history = ""
        while "verdict" not in history:
            assert time.monotonic() < deadline, history
            assert slo_ctl(root, "history", "web") == 0
            history = capsys.readouterr().out
    finally:
        daemon.terminate()
        assert daemon.wait(READY_S) == 0
        daemon.stdout.close()  # type: ignore[union-attr]


def test_a_device_of_another_daemon_is_a_failure_of_apply_and_a_note_of_the_plan(
    root: Path, loop: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`apply` set nothing but exited with 0, and `plan` did not report the other daemon."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "slo-ctl.toml").write_text((root / "slo-ctl.toml").read_text())
    number = device_behind(loop, Path("/sys"))
    assert number is not None
    claims = DeviceClaims(Path("/run/slo-ctl"))
    assert claims.take(number) == ""
    try:
        assert slo_ctl(other, "plan") == 3
        note = f"note: device fast: another daemon (PID {os.getpid()}) manages it"
        assert note in capsys.readouterr().err
        assert slo_ctl(other, "apply", "--json") == 1
        answer = json.loads(capsys.readouterr().out)
        assert answer["outcomes"] == []
        assert "is managed by another daemon" in answer["notes"][0]
        assert slo_ctl(other, "daemon", "--once") == 1
        assert "1 device problem, see above" in capsys.readouterr().err
    finally:
        claims.keep([])
    assert slo_ctl(other, "daemon", "--once") == 0
