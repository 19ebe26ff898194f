"""A trace that is split over several files is read as one."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from trace_samples import batch_of

from slo_ctl.cli.app import run as slo_ctl
from traces import Batch, TraceError, open_trace
from traces.writing import TraceWriter

ROWS = [(10 * number, number % 2, 4096 * (number % 50), 4096, 0) for number in range(3000)]
COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def read(path: Path, format_: str | None = None) -> Batch:
    return Batch.concat(list(open_trace(path, format_)))


def written(path: Path, rows: list[tuple[int, int, int, int, int]] = ROWS, format_: str = "slo-ctl") -> bytes:
    with TraceWriter(path, format_) as writer:
        writer.write(batch_of(rows), ["disk"])
    data = path.read_bytes()
    path.unlink()
    return data


def is_whole(batch: Batch) -> bool:
    return (batch.time_ns.tolist(), batch.offset_bytes.tolist()) == (
        [row[0] for row in ROWS],
        [row[2] for row in ROWS],
    )


@pytest.mark.parametrize("suffix", COMPRESSED)
@pytest.mark.parametrize("names", ["part1 part2 part3", "000 001 002", "aa ab ac", "part9 part10 part11"])
def test_trace_split_anywhere_is_read(tmp_path: Path, suffix: str, names: str) -> None:
    data = COMPRESSED[suffix](written(tmp_path / "a.csv"))
    third = len(data) // 3
    for number, name in enumerate(names.split()):
        end = None if number == 2 else (number + 1) * third
        (tmp_path / f"a.csv{suffix}.{name}").write_bytes(data[number * third : end])
    if names.startswith("part9"):
        with pytest.raises(TraceError, match="part 1 of 11 is missing"):
            read(tmp_path / f"a.csv{suffix}")
        assert is_whole(read(tmp_path / f"a.csv{suffix}.part*"))
    else:
        reader = open_trace(tmp_path / f"a.csv{suffix}")
        assert is_whole(Batch.concat(list(reader)))
        assert len(reader.paths) == 3
        assert reader.consumed_bytes == reader.size_bytes == len(data)


@pytest.mark.parametrize("suffix", COMPRESSED)
@pytest.mark.parametrize("format_", ["slo-ctl", "msr"])
def test_parts_that_are_complete_traces_are_read(tmp_path: Path, suffix: str, format_: str) -> None:
    """Each has a header if the format has one."""
    for number in range(3):
        part = written(tmp_path / "a", ROWS[1000 * number : 1000 * (number + 1)], format_)
        (tmp_path / f"a.csv.part{number + 1}{suffix}").write_bytes(COMPRESSED[suffix](part))
    batch = read(tmp_path / "a.csv")
    assert batch.offset_bytes.tolist() == [row[2] for row in ROWS]
    assert read(tmp_path / "a.csv.part[23]*").offset_bytes.tolist() == [row[2] for row in ROWS[1000:]]


def test_separately_compressed_parts_without_header_are_read(tmp_path: Path) -> None:
    lines = written(tmp_path / "a").splitlines(keepends=True)
    for number in range(3):
        part = b"".join(lines[1001 * number : 1001 * (number + 1)])
        (tmp_path / f"a.csv.{number}.gz").write_bytes(gzip.compress(part))
    assert is_whole(read(tmp_path / "a.csv"))


def test_rotated_files_with_an_uncompressed_last_one_are_read(tmp_path: Path) -> None:
    spc = [f"0,{8 * number},4096,w,{number / 1000}\n".encode() for number in range(300)]
    (tmp_path / "log.1.gz").write_bytes(gzip.compress(b"".join(spc[:200])))
    (tmp_path / "log.2").write_bytes(b"".join(spc[200:]))
    assert len(read(tmp_path / "log")) == 300


def test_a_part_that_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        open_trace(tmp_path / "a.csv")
    with pytest.raises(TraceError, match="no file matches the pattern"):
        open_trace(tmp_path / "a*.csv")
    for number in (1, 2):
        (tmp_path / f"a.spc.part{number}").write_text("0,0,4096,w,0\n0,8,4096,w,1\n")
    with (tmp_path / "a.spc.part2").open("a") as file:
        file.write("0,x,4096,w,2\n")
    with pytest.raises(TraceError, match=r"a\.spc\.part2:3: LBA"):
        read(tmp_path / "a.spc")
    reader = open_trace(tmp_path / "a.spc.part1")
    assert len(Batch.concat(list(reader))) == 2
    assert reader.notes == ["1 other parts lie beside this one; name a.spc to read all"]


def test_files_of_other_kinds_are_no_parts(tmp_path: Path) -> None:
    """Their suffixes are letters, too."""
    for name in ("web.csv", "web.log", "web.bak"):
        (tmp_path / name).write_text("0,0,4096,w,0\n")
    with pytest.raises(TraceError, match="no such file"):
        open_trace(tmp_path / "web")
    for name in ("aa", "ab", "ac"):
        (tmp_path / f"web.{name}").write_text("0,0,4096,w,0\n")
    assert len(open_trace(tmp_path / "web").paths) == 3
    (tmp_path / "web.ab").unlink()
    with pytest.raises(TraceError, match="part ab is missing"):
        open_trace(tmp_path / "web")


def test_commands_accept_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, second in ((1, 0), (2, 5)):
        lines = "".join(f"0,{8 * n},4096,w,{second + n / 100}\n" for n in range(100))
        (tmp_path / f"a.spc.part{number}.gz").write_bytes(gzip.compress(lines.encode()))
    assert slo_ctl(["trace", "info", str(tmp_path / "a.spc")]) == 0
    assert "200 (200 write)" in capsys.readouterr().out
    vm, device = f"name=a,trace={tmp_path}/a.spc*", "size=64MiB,op=25%,dies=2"
    assert slo_ctl(["replay", "--vm", vm, "--device", device, "--duration", "2x", "--quiet"]) == 0
    missing = f"name=a,trace={tmp_path}/b.spc"
    assert slo_ctl(["replay", "--vm", missing]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_commands_repeat_the_notes_of_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Replaying a part instead of the whole trace would be a silent error."""
    for number in (1, 2):
        (tmp_path / f"a.spc.part{number}").write_text("0,0,4096,w,0\n0,8,4096,w,1\n")
    trace, note = tmp_path / "a.spc.part1", "1 other parts lie beside this one; name a.spc to read all"
    small = "size=64MiB,op=25%,dies=2"
    words = ["replay", "--vm", f"name=a,trace={trace}", "--device", small, "--duration", "2x", "--quiet"]
    assert slo_ctl([*words, "--json"]) == 0
    assert f"VM a: a.spc.part1: {note}" in json.loads(capsys.readouterr().out)["notes"]
    hybrid = "size=1GiB,block=128KiB,dies=8,cluster=8"
    words = ["fsim", "ext", "--trace", str(trace), "--device", hybrid, "--utilisation", "10", "--jobs", "1"]
    assert slo_ctl([*words, "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == [note]
