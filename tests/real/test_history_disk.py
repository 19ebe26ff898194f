"""The history on a real file system that becomes full, and on a read-only one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "show"))

from collections.abc import Iterator

from fake_status import AT, host_status, vm_status
from tmpfs_mount import tmpfs

from slo_ctl.model.status import HostStatus
from slo_ctl.record.history import History
from slo_ctl.record.history_reader import read_vm
from slo_ctl.record.history_schema import HistoryError


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with tmpfs(tmp_path / "disk", "size=1536k") as folder:
        yield folder


def epoch(second: int) -> HostStatus:
    vms = tuple(vm_status(f"vm{i}", iops=second + i + 0.5) for i in range(50))
    return host_status(vms=vms, at=AT + second)


def fits(history: History, second: int) -> bool:
    try:
        history.add(epoch(second))
    except HistoryError:
        return False
    return second < 2000


def test_full_disk_is_reported_by_the_history(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(700 << 10))
    history = History(small_disk / "history.db", 86400.0, 1 << 30)
    try:
        second = 0
        while fits(history, second):
            second += 1
        assert 10 < second < 2000
        with pytest.raises(HistoryError, match="no space left") as refusal:
            history.add(epoch(second))
        assert "max_size" in refusal.value.hint
        before = read_vm(history.path, "vm7", AT, AT + second, limit=5000)
        assert sum(point.samples for point in before.points) == second
        ballast.unlink()
        history.add(epoch(second + 1))
        after = read_vm(history.path, "vm7", AT, AT + second + 1, limit=5000)
        assert sum(point.samples for point in after.points) == second + 1
    finally:
        history.close()


def test_history_recovers_from_a_read_only_disk(small_disk: Path) -> None:
    path = small_disk / "history.db"
    history = History(path, 86400.0, 1 << 30)
    history.add(epoch(0))
    history.close()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    try:
        with pytest.raises(HistoryError, match="is read-only"):
            history.add(epoch(1))
    finally:
        subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    history.add(epoch(2))
    assert sum(p.samples for p in read_vm(history.path, "vm7", AT, AT + 3).points) == 2
    history.close()
