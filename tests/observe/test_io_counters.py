"""Counters of block I/O as kernels write them, and malformed ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.base import kernel_files
from slo_ctl.base.kernel_files import read_bounded
from slo_ctl.host.cgroup import (
    COUNTED,
    RECHECK_SCANS,
    CounterReader,
    parse_blkio,
    parse_io_stat,
    require_tree,
)
from slo_ctl.model.host import DeviceNumber, IoCounters

NVME, SDA = DeviceNumber(259, 0), DeviceNumber(8, 0)


def no_note(text: str) -> None:
    raise AssertionError(text)


def test_devices_without_io_in_the_line_of_another_one_do_not_get_its_counters() -> None:
    """Linux before commit 3607849df478, "always terminate io.stat lines"."""
    devices, bad_lines = parse_io_stat("7:1 7:0 8:0 rbytes=4096 wbytes=0 rios=1 wios=0\n8:16 ")
    assert (devices.get(DeviceNumber(7, 1)), bad_lines) == (None, 0)
    assert devices[DeviceNumber(8, 0)] == {"read_bytes": 4096, "written_bytes": 0, "reads": 1, "writes": 0}


def test_io_stat_is_parsed() -> None:
    text = (
        "259:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=512 dios=3 cost.vrate=100.00 cost.usage=77\n"
        "8:0 \n"
        "253:1 rbytes=1\n"
    )
    devices, bad_lines = parse_io_stat(text)
    assert bad_lines == 0
    assert devices == {
        NVME: dict(zip(COUNTED, (4096, 8192, 1, 2, 512, 3, 77), strict=True)),
        SDA: {},
        DeviceNumber(253, 1): {"read_bytes": 1},
    }


def test_missing_counter_is_not_zero() -> None:
    devices, _ = parse_io_stat("8:0 rbytes=0 wios=nan")
    assert devices[SDA] == {"read_bytes": 0}


def test_unparsable_lines_are_counted() -> None:
    assert parse_io_stat("(unknown) rbytes=1\n\nsda x\n")[1] == 3
    assert parse_blkio("8:0 Read\n8:0 Read -1\nTotal 5\n", {"Read": "reads"}) == ({}, 2)


def test_v1_adds_devices_from_bfq_counters(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, version=1)
    host.group(
        "machine/qemu-1-a.libvirt-qemu",
        blkio__throttle__io_service_bytes_recursive="8:0 Read 4096\n8:0 Write 0\n8:0 Sync 1\nTotal 4096\n",
        blkio__throttle__io_serviced_recursive="8:0 Read 1\n8:0 Write 0\nTotal 1\n",
        blkio__bfq__io_service_bytes_recursive="8:0 Read 9\n259:0 Read 7\n259:0 Discard 5\nTotal 16\n",
    )
    found = CounterReader(require_tree(host.root)).read("/machine/qemu-1-a.libvirt-qemu", no_note)
    assert found == {
        SDA: IoCounters(read_bytes=4096, written_bytes=0, reads=1, writes=0),
        NVME: IoCounters(read_bytes=7, discarded_bytes=5),
    }


def test_v1_totals_are_skipped_and_invalid_lines_counted() -> None:
    text = "8:0 Read 1\n8:0 Sync 7\n8:0 Total 8\n\n8:0 Read x\n8:0  Write 2 \nWrite 3\nTotal 10\nTotal"
    assert parse_blkio(text, {"Read": "reads", "Write": "writes"}) == ({SDA: {"reads": 1, "writes": 2}}, 3)


def test_unchanged_v1_files_are_skipped_and_rechecked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = FakeHost(tmp_path, version=1)
    folder = host.group(
        "a",
        blkio__throttle__io_service_bytes_recursive="8:0 Read 4096\nTotal 4096\n",
        blkio__throttle__io_serviced_recursive="8:0 Read 1\nTotal 1\n",
        blkio__throttle__io_service_bytes="8:0 Read 4096\nTotal 4096\n",
        blkio__throttle__io_serviced="8:0 Read 1\nTotal 1\n",
        blkio__bfq__io_service_bytes_recursive="Total 0\n",
        blkio__bfq__io_serviced_recursive="8:0 Read 1\nTotal 1\n",
    )
    read: list[str] = []
    read_record = kernel_files.read_record

    def counting(path: str, *keep: Callable[[int], bool]) -> kernel_files.FileText | None:
        read.append(path.rpartition("/")[2])
        return read_record(path, *keep)

    monkeypatch.setattr("slo_ctl.host.cgroup.read_record", counting)
    monkeypatch.setattr(kernel_files, "read_record", counting)
    reader = CounterReader(require_tree(host.root))
    first = reader.read("/a", no_note)
    assert (first, len(read)) == ({SDA: IoCounters(read_bytes=4096, reads=1)}, 6)
    read.clear()
    for _ in range(100):
        assert reader.read("/a", no_note) is first
    assert 100 <= len(read) <= 100 + 5 * (100 / RECHECK_SCANS + 1)
    (folder / "blkio.bfq.io_serviced_recursive").write_text("259:0 Write 3\nTotal 3\n")
    found = [reader.read("/a", no_note) for _ in range(RECHECK_SCANS)][-1]
    assert found == {**first, NVME: IoCounters(writes=3)}
    # The file now has useful contents: from here on it is read each time, for every group.
    (folder / "blkio.bfq.io_serviced_recursive").write_text("259:0 Write 4\nTotal 4\n")
    assert reader.read("/a", no_note)[NVME] == IoCounters(writes=4)


def test_files_that_add_nothing_are_parsed_only_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files of a group were parsed after each change of one: most of an epoch with 300 busy VMs."""
    host = FakeHost(tmp_path, version=1)
    requests = ("blkio.throttle.io_serviced_recursive", "blkio.throttle.io_serviced")
    folder = host.group("a", **{name.replace(".", "__"): "8:0 Read 1\n" for name in requests})
    parsed: list[str] = []

    def counting(text: str, fields: dict[str, str]) -> Any:
        parsed.append(text)
        return parse_blkio(text, fields)

    monkeypatch.setattr("slo_ctl.host.cgroup.parse_blkio", counting)
    reader = CounterReader(require_tree(host.root))
    assert (reader.read("/a", no_note), len(parsed)) == ({SDA: IoCounters(reads=1)}, 2)
    (folder / requests[1]).write_text("8:0 Read 1\nbad\n259:0 Read 9\n")
    notes: list[str] = []
    for _ in range(RECHECK_SCANS):
        reader.read("/a", notes.append)
    assert reader.read("/a", notes.append) == {SDA: IoCounters(reads=1), NVME: IoCounters(reads=9)}
    assert notes == notes[:1] * len(notes) != []
    (folder / requests[1]).write_text("8:0 Read 1\n")
    reader = CounterReader(require_tree(host.root))
    reader.read("/a", no_note)
    parsed.clear()
    for number in range(2, 2 + RECHECK_SCANS):
        (folder / requests[0]).write_text(f"8:0 Read {number}\n")
        assert reader.read("/a", no_note) == {SDA: IoCounters(reads=number)}
    assert len(parsed) == RECHECK_SCANS
    # Values that only another file has are still counted.
    (folder / requests[0]).write_text("Total 0\n")
    assert reader.read("/a", no_note) == {SDA: IoCounters(reads=1)}


def test_bytes_of_v1_are_read_again_after_new_requests_even_of_no_bytes(tmp_path: Path) -> None:
    """A flush counts as a request, and the kernel counts the bytes of a request before the request."""
    host = FakeHost(tmp_path, version=1)
    requests, length = "blkio.throttle.io_serviced_recursive", "blkio.throttle.io_service_bytes_recursive"
    folder = host.group("a", **{name.replace(".", "__"): "8:0 Write 1\n" for name in (requests, length)})
    reader = CounterReader(require_tree(host.root))
    assert reader.read("/a", no_note) == {SDA: IoCounters(writes=1, written_bytes=1)}
    reader.read("/a", no_note)  # the second complete one
    for writes, written in ((2, 1), (3, 4097), (4, 8193)):
        (folder / requests).write_text(f"8:0 Write {writes}\n")
        (folder / length).write_text(f"8:0 Write {written}\n")
        assert reader.read("/a", no_note) == {SDA: IoCounters(writes=writes, written_bytes=written)}


def test_missing_files_and_groups_give_no_counters(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.group("a")
    tree = require_tree(host.root)
    assert CounterReader(tree).read("/a", no_note) == CounterReader(tree).read("/gone", no_note) == {}


def test_huge_files_are_cut_at_a_line_and_noted(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    lines = (kernel_files.LIMIT_BYTES // 10) + 10
    host.group("a", io__stat="8:0 rios=1\n" * lines)
    notes: list[str] = []
    assert CounterReader(require_tree(host.root)).read("/a", notes.append) == {SDA: IoCounters(reads=1)}
    assert len(notes) == 1
    assert "too large" in notes[0]


def test_unreadable_files_are_noted(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    (host.group("a") / "io.stat").mkdir()
    notes: list[str] = []
    assert CounterReader(require_tree(host.root)).read("/a", notes.append) == {}
    assert notes[0].endswith("Is a directory")


def test_bytes_that_are_not_utf8_are_kept_as_escapes(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xff\n")
    file = read_bounded(tmp_path / "f")
    assert file is not None
    assert file.text == "\udcff\n"
    assert read_bounded(tmp_path / "f" / "g") is None


@given(st.text())
def test_no_content_of_io_stat_raises(text: str) -> None:
    parse_io_stat(text)
    parse_blkio(text, {"Read": "reads"})
