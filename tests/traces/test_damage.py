"""Bad input: one line with the file, the place, the field and the reason, and no other exception."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_samples import blktrace_event, blktrace_event_v8, vscsi_v1

from traces import Batch, TraceError, open_trace
from traces.formats.registry import FORMATS

if TYPE_CHECKING:
    Write = Callable[..., Path]


def refusal(path: Path, **options: object) -> TraceError:
    with pytest.raises(TraceError) as caught:
        list(open_trace(path, **options))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return caught.value


def skipped(path: Path, **options: object) -> tuple[Batch, dict[str, int]]:
    reader = open_trace(path, on_error="skip", **options)  # type: ignore[arg-type]
    batch = Batch.concat(list(reader))
    assert reader.bad_records == sum(reader.skipped.values())
    return batch, dict(reader.skipped)


GOOD = "0,8,4096,r,0.5\n"
BAD_SPC = [
    ("0,8,0,w,1\n", "size: a request of zero length"),
    ("0,8,-1,w,1\n", "size: is negative"),
    ("0,-8,1,w,1\n", "LBA: is negative"),
    ("0,18014398509481984,512,w,1\n", "LBA: the request ends beyond 2^63 bytes"),
    ("0,18014398509481983,513,w,1\n", "LBA: the request ends beyond 2^63 bytes"),
    ("0,99999999999999999999,512,w,1\n", "LBA: '99999999999999999999' is not an integer of 64 bits"),
    ("0,8,4096,x,1\n", "op: 'x' is not a known operation"),
    ("0,8,4096,w,nan\n", "time: 'nan' is not a valid number of 64 bits"),
    ("0,8,4096,w,-1\n", "time: is negative"),
    ("0,8,4096,w,9999999999\n", "time: '9999999999' is not a valid number of 64 bits"),
    ("0,8,4096,w,5000000000\n", "time: is out of range"),
    ("0,8,4096,w\n", "time: is missing"),
    ("0,8,4k,w,1\n", "size: '4k' is not an integer of 64 bits"),
    ("0,8,1.5,w,1\n", "size: '1.5' is not an integer of 64 bits"),
    ("gibberish\n", "op: is missing"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_SPC)
def test_bad_line_is_refused_with_its_number_or_skipped(line: str, reason: str, trace_file: Write) -> None:
    path = trace_file(GOOD * 3 + line + GOOD)
    error = refusal(path, format="spc")
    assert error.message == f"{path}:4: {reason}"
    assert error.hint
    batch, counted = skipped(path, format="spc")
    assert len(batch) == 4
    assert sum(counted.values()) == 1


def test_the_first_bad_line_is_reported(trace_file: Write) -> None:
    assert refusal(trace_file(GOOD + "0,8,0,w,1\n" + "0,x,1,w,1\n"), format="spc").line == 2
    assert refusal(trace_file(GOOD + "0,x,1,w,1\n" + "0,8,0,w,1\n"), format="spc").line == 2


def test_line_numbers_count_across_chunks(trace_file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traces.formats.text.CHUNK_BYTES", 64)
    assert refusal(trace_file(GOOD * 50 + "\n\n" + "0,x,1,w,1\n" + GOOD), format="spc").line == 53
    batches = list(open_trace(trace_file(GOOD * 50), batch_records=7))
    assert sum(map(len, batches)) == 50
    assert max(map(len, batches)) <= 7


def test_an_extent_may_end_exactly_at_2_63(trace_file: Write) -> None:
    (batch,) = open_trace(trace_file("0,18014398509481983,512,w,0\n"))
    assert int(batch.end_bytes[0]) == 2**63


@pytest.mark.parametrize("name", FORMATS)
def test_empty_file_is_refused(name: str, trace_file: Write) -> None:
    path = trace_file(b"")
    assert str(refusal(path, format=name)) == f"{path}: the file is empty (choose another file)"
    assert "the file is empty" in str(refusal(path))


def test_missing_file_and_directory_are_refused(tmp_path: Path) -> None:
    assert "no such file" in str(refusal(tmp_path / "none"))
    assert "is a directory" in str(refusal(tmp_path))


def test_control_characters_in_names_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "a\nb\x1b[31m"
    path.write_text("gibberish")
    assert "\\n" in str(refusal(path))


def test_unknown_format_lists_the_known(trace_file: Write) -> None:
    error = refusal(trace_file("some prose\nwithout numbers\n"))
    assert error.reason == "no known trace format"
    assert all(name in error.hint for name in FORMATS)


def test_an_archive_is_to_be_unpacked(tmp_path: Path) -> None:
    """Collections of traces are published as archives: naming a format does not help."""
    line = "0,0,4096,w,0.0\n"
    (tmp_path / "t.spc").write_text(line)
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.write(tmp_path / "t.spc")
    with tarfile.open(tmp_path / "t.tar.gz", "w:gz") as packed:
        packed.add(tmp_path / "t.spc", "t.spc")
    (tmp_path / "t.bz2").write_bytes(bz2.compress(line.encode()))
    (tmp_path / "t.txt").write_text(line, encoding="utf-16")
    (tmp_path / "t.parquet").write_bytes(b"PAR1" + bytes(64))
    expected = {
        "t.parquet": ("is a Parquet file", "docs/replay.md"),
        "t.zip": ("is a zip archive", "unzip"),
        "t.tar.gz": ("is a tar archive", "tar -xf"),
        "t.bz2": ("is compressed with bzip2", "bunzip2"),
        "t.txt": ("is text in UTF-16", "iconv"),
    }
    for name, (reason, hint) in expected.items():
        with pytest.raises(TraceError) as refused:
            open_trace(tmp_path / name)
        assert refused.value.reason == reason
        assert hint in refused.value.hint


def test_file_of_another_format_is_refused(real: Callable[[str], Path]) -> None:
    for name, wrong, right in [
        ("spc/Financial1_10k_reconstructed.spc.zst", "msr", "spc"),
        ("vscsi/cloudPhysicsIO.vscsi.zst", "blktrace", "vscsi"),
        ("msprod/DTRS100M.ssdsim.zst", "iolog", "ssdsim"),
        ("blktrace/sample.blktrace.0", "spc", "blktrace"),
        ("fixtures/alibaba_4records.csv", "systor17", "alibaba"),
    ]:
        path = real(name)
        assert refusal(path, format=wrong).hint == f"it looks like {right}: try --format {right}"
        with pytest.raises(TraceError, match=f"looks like {right}"):
            list(open_trace(path, format=wrong, on_error="skip"))


def zstd_with_checksum(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, zstd_with_checksum])
def test_compression_is_detected_by_magic_number(
    compress: Callable[[bytes], bytes], trace_file: Write
) -> None:
    data = (GOOD * 5000).encode()
    path = trace_file(compress(data) + compress(data), "trace.txt")
    assert sum(map(len, open_trace(path))) == 10_000
    whole = compress(os.urandom(1 << 10).hex().join([GOOD, "\n"]).encode() + data)
    cut = trace_file(whole[: len(whole) - 12], "cut")
    error = refusal(cut, format="spc", on_error="skip")
    assert "ends early" in error.reason or "damaged" in error.reason
    damaged = bytearray(whole)
    damaged[len(damaged) // 2] ^= 0xFF
    damaged[len(damaged) // 2 + 1] ^= 0xFF
    assert refusal(trace_file(bytes(damaged), "damaged"), format="spc", on_error="skip")


def test_padding_between_xz_streams_may_end_anywhere(trace_file: Write) -> None:
    first = lzma.compress((GOOD * 5000).encode())
    padding = b"\0" * ((1 << 20) - len(first) % (1 << 20))
    path = trace_file(first + padding + padding + first, "padded.xz")
    assert sum(map(len, open_trace(path))) == 10_000


def test_compression_that_needs_much_memory_is_no_damage(trace_file: Write) -> None:
    data = (GOOD * 5000).encode()
    window = zstandard.ZstdCompressionParameters.from_level(3, window_log=30)
    compressor = zstandard.ZstdCompressor(compression_params=window).compressobj()
    error = refusal(trace_file(compressor.compress(data) + compressor.flush(), "long"), format="spc")
    assert "memory" in error.reason
    assert "zstd -dc --long=31" in error.hint
    header = bytearray(lzma.compress(data, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 12}]))
    assert header[16] == 0  # the dictionary's size
    header[16] = 36  # 1 GiB
    header[20:24] = zlib.crc32(header[12:20]).to_bytes(4, "little")
    error = refusal(trace_file(bytes(header), "large"), format="spc")
    assert "memory" in error.reason
    assert "xz -dc" in error.hint


def test_compression_bomb_costs_bounded_memory(trace_file: Write) -> None:
    path = trace_file(zstandard.ZstdCompressor().compress(b" " * (1 << 28)), "bomb")
    assert path.stat().st_size < 1 << 16
    tracemalloc.start()
    refusal(path, format="spc")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200 << 20


def test_truncated_vscsi_trace_is_refused(trace_file: Write) -> None:
    data = vscsi_v1((512, 0x2A, 1, 0)) * 3
    path = trace_file(data + data[:7])
    error = refusal(path)
    assert (error.record, error.byte_offset) == (3, 96)
    assert "ends inside a record, after 7 of 32 bytes" in str(error)
    batch, counted = skipped(path)
    assert (len(batch), counted) == (3, {"cut short": 1})
    assert "ends inside the first record" in str(refusal(trace_file(data[:31]), format="vscsi"))


def test_damaged_vscsi_record_is_named(trace_file: Write) -> None:
    good = vscsi_v1((512, 0x2A, 1, 0))
    path = trace_file(good * 100 + vscsi_v1((0, 0x2A, 1, 0)) + good)
    assert refusal(path).message == f"{path}: record 100 at byte 3200: len: a request of zero length"
    other = trace_file(good * 100 + bytes(32) + good)
    assert refusal(other).message == f"{other}: record 100 at byte 3200: ver: 0x0 is not of version 1"


def test_damaged_blktrace_is_refused(trace_file: Write) -> None:
    good = blktrace_event(100, 8, 4096, 1 | 1 << 20 | 1 << 17)
    path = trace_file(good * 2 + b"garbage" + good * 2 + good[:20])
    assert refusal(path).message == (
        f"{path}: record 2 at byte 96: magic: no event here (its magic number is missing)"
    )
    batch, counted = skipped(path)
    assert len(batch) == 4
    assert counted == {"magic: lost the sequence of events": 1, "cut short": 1}
    assert "version 9 is unknown" in str(refusal(trace_file(good.replace(b"\x07tae", b"\x09tae"))))
    other = blktrace_event_v8(100, 8, 4096, 1 | 1 << 20 | 1 << 17)
    assert "record 1 at byte 48: magic: blktrace version 8 follows another" in str(
        refusal(trace_file(good + other))
    )


def test_damaged_btrecord_is_refused(trace_file: Write) -> None:
    head = struct.pack("<4Q2Q", 1 << 16, 0, 1, 2, 2, 0)
    packet = struct.pack("<QQII", 8, 4096, 1, 0)
    assert "ends inside a bunch" in str(refusal(trace_file(head + packet)))
    assert "a bunch of 513 packets" in str(
        refusal(trace_file(head + packet * 2 + struct.pack("<2Q", 513, 0) + packet), format="btrecord")
    )


def test_bad_headers_are_refused(trace_file: Write) -> None:
    for text, format_, reason in [
        ("#slo-ctl-trace 2\n", "slo-ctl", "version 2 is unknown"),
        ("#slo-ctl-trace 1\na,b\n", "slo-ctl", "the columns are not"),
        ("fio version 9 iolog\n", "iolog", "iolog version 9 is unknown"),
        ("BeginHeader\nDiskRead, TimeStamp\n", "etw", "the header has no EndHeader"),
        ("BeginHeader\nDiskRead, TimeStamp\nEndHeader\n", "etw", "has no column ByteOffset"),
        ("#LBA.I,NBLKS.I\n1,2\n", "hfplayer", "the header has no column ELAPSED_USECS"),
    ]:
        assert reason in str(refusal(trace_file(text), format=format_))


def test_columns_of_a_trace_without_its_version_are_recognized(trace_file: Write) -> None:
    # The records alone are in Alibaba's format.
    columns = "time_ns,op,offset_bytes,length_bytes,volume\n"
    for records in ("0,read,0,4096,a\n", "0,R,0,4096,0\n1,W,4096,4096,0\n"):
        error = refusal(trace_file(columns + records))
        assert error.reason == "the first line is not '#slo-ctl-trace 1'"
        assert error.hint == "add it before the line with the columns, or name another format with --format"


def test_format_that_was_not_named_is_in_the_hint(trace_file: Write) -> None:
    path = trace_file("op,offset,length\n0,R,0,4096,0\n1,W,4096,4096,100\n")
    found = "it was read as alibaba, which its lines resemble: --format names another format; "
    assert refusal(path).hint.startswith(found)
    assert "alibaba" not in refusal(path, format="alibaba").hint
    assert "was read as" not in refusal(trace_file("#slo-ctl-trace 2\n")).hint


def test_file_without_requests_is_refused(trace_file: Write) -> None:
    path = trace_file("fio version 3 iolog\n0 sda add\n")
    assert "no iolog request in the file (1 x file add, open or close)" in str(refusal(path))


def test_endless_line_is_refused(trace_file: Write) -> None:
    assert "a line longer than 1 MiB" in str(refusal(trace_file(b"1" * (6 << 20)), format="spc"))


def test_request_without_a_volume_is_of_a_volume_of_its_own(trace_file: Write) -> None:
    head = "#slo-ctl-trace 1\ntime_ns,op,offset_bytes,length_bytes,volume\n"
    for records, volumes, indices in [
        ("0,read,0,4096,\n1,read,0,4096,web\n", ["0", "web"], [0, 1]),
        ("0,read,0,4096,web\n1,read,0,4096, \n", ["web", "0"], [0, 1]),
        ("0,read,0,4096\n1,read,0,4096\n", ["0"], [0, 0]),
    ]:
        reader = open_trace(trace_file(head + records))
        assert Batch.concat(list(reader)).volume.tolist() == indices
        assert list(reader.volumes) == volumes


def test_too_many_volumes_are_refused(trace_file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traces.formats.screen._MAX_VOLUMES", 10)
    path = trace_file("".join(f"{asu},8,4096,r,0\n" for asu in range(11)))
    assert "different volumes" in str(refusal(path))


ALPHABET = b'0123456789,. \n\r\t-rRwWQD"x\xff#'


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_bytes_raise_nothing_but_trace_errors(name: str, data: st.DataObject, tmp_path: Path) -> None:
    """Any bytes give valid batches, or a TraceError of one line."""
    body = data.draw(
        st.one_of(
            st.binary(max_size=300),
            st.lists(st.sampled_from(ALPHABET), max_size=200).map(bytes),
            st.sampled_from(sorted(HEADS)).flatmap(
                lambda key: st.tuples(
                    st.integers(0, len(HEADS[key])), st.lists(st.sampled_from(ALPHABET), max_size=60)
                ).map(lambda cut: HEADS[key][: cut[0]] + bytes(cut[1]) + HEADS[key][cut[0] :])
            ),
        )
    )
    path = tmp_path / "random"
    path.write_bytes(body)
    for format_ in (name, None):
        for on_error in ("raise", "skip"):
            try:
                for batch in open_trace(path, format_, on_error):
                    assert (batch.end_bytes <= 2**63).all()
                    assert ((batch.length_bytes > 0) | (batch.op == 4)).all()
            except TraceError as error:
                output = str(error)
            else:
                output = ""
            assert "\n" not in output


HEADS = {
    "spc": b"0,303567,3584,w,0.000000\n1,55590,3072,R,0.026214,extra,7\n",
    "msr": b"128166385295514663,hm,0,Write,9056014336,2048,2833\n",
    "etw": b"BeginHeader\nDiskRead, TimeStamp, ByteOffset, IOSize, DiskNum, F\nEndHeader\n"
    b'DiskRead, 1, 0x10, 0x20, 4, "D,6"\n',
    "iolog2": b"fio version 2 iolog\nsda read 0 4096\nsda wait 99999999999999999\nsda write 4096 512\n",
    "iolog": b"fio version 3 iolog\n878 n write 0 16384\n890 n sync\n",
    "systor17": b"Timestamp,Response,IOType,LUN,Offset,Size\n"
    b"1456095145.133076000,0.000806000,R,0,899056122368,131072\n",
    "slo-ctl": b"#slo-ctl-trace 1\ntime_ns,op,offset_bytes,length_bytes,volume\n"
    b"5,write,4095,2,a\n-4,flush,0,0,b\n",
    "hfplayer": b"#ELAPSED_USECS.D,CMD.S,LBA.I,NBLKS.I\n81442951.096,WR_IN,2254431928,8\n",
    "qemu": b"15@1795419136.363648:blk_co_pwritev blk 0x5 bs 0x6 offset 4096 bytes 8192 flags 0x0\n",
    "blkparse": b"259,2 0 1 0.000000000 4020 Q R 282624 + 8 [java]\n",
    "vscsi": vscsi_v1((512, 0x2A, 42932745, 1000), (1024, 0x88, 7, 1001)),
    "blktrace": blktrace_event(100, 8, 4096, 1 | 1 << 20 | 1 << 16) * 2,
    "btrecord": struct.pack("<4Q2QQQII", 1 << 16, 0, 1, 1, 1, 0, 8, 4096, 1, 0),
}
