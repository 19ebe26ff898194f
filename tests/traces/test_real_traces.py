"""The real traces: every row of the data table, and the contents of the formats' fixtures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from traces import open_trace
from traces.summary import summarise

if TYPE_CHECKING:
    Real = Callable[[str], Path]

TABLE = [
    ("vscsi/cloudPhysicsIO.vscsi.zst", "vscsi", 113_872, 0.587, 1797, 2409, 35.2, 269_210),
    ("spc/Financial1_10k_reconstructed.spc.zst", "spc", 10_000, 0.592, 25.4, 29.8, 4.9, 7_322),
    ("msr/heimdall_msr_rw_20_80.105.trace.zst", "msr-cut", 10_000, 0.798, 3.8, 51, 6.2, 7_385),
    (
        "msr/heimdall_msr_most_thpt_rand_iops.1006.trace.zst",
        "msr-cut",
        10_000,
        0.168,
        35.6,
        94.6,
        54.9,
        29_025,
    ),
    ("msprod/DTRS100M.ssdsim.zst", "ssdsim", 127_043, 0.110, 6437, 761, 53, 1_272_267),
    ("disksim/disksim_iozone_100K.ascii.zst", "disksim", 100_000, 1.0, 0, 36_856, 360, 271_320),
    ("disksim/disksim_postmark.ascii.zst", "disksim", 62_257, 0.168, 5236, 8937, 833, 1_533_388),
]


@pytest.mark.parametrize(
    ("name", "format_", "records", "share", "read_mb", "write_mb", "write_kib", "pages"), TABLE
)
def test_summary_of_a_published_trace_matches_its_table(
    name: str,
    format_: str,
    records: int,
    share: float,
    read_mb: float,
    write_mb: float,
    write_kib: float,
    pages: int,
    real: Real,
) -> None:
    reader = open_trace(real(name))
    summary = summarise(reader)
    assert reader.format == format_
    assert summary.records == records
    assert summary.write_share == pytest.approx(share, abs=5e-4)
    assert summary.read_bytes / 1e6 == pytest.approx(read_mb, rel=0.003, abs=0.05)
    assert summary.written_bytes / 1e6 == pytest.approx(write_mb, rel=0.003)
    assert summary.average_write_bytes / 1024 == pytest.approx(write_kib, rel=0.01)
    assert summary.footprint_pages == pages
    assert sum(volume.footprint_pages for volume in summary.volumes) == pages
    assert not reader.skipped


def test_financial_keeps_its_asus_apart(real: Real) -> None:
    reader = open_trace(real("spc/Financial1_10k_reconstructed.spc.zst"))
    summary = summarise(reader, reader.volumes)
    assert len(summary.volumes) == 22
    assert summary.duration_ns / 1e9 == pytest.approx(259.6, abs=0.05)


def test_durations_of_published_traces_are_right(real: Real) -> None:
    durations = {
        "vscsi/cloudPhysicsIO.vscsi.zst": 7200,
        "msprod/DTRS100M.ssdsim.zst": 30_000,
        "msr/heimdall_msr_most_thpt_rand_iops.1006.trace.zst": 1.0,
    }
    for name, seconds in durations.items():
        assert summarise(open_trace(real(name))).duration_ns / 1e9 == pytest.approx(seconds, rel=0.02)


def test_iozone_overwrites_each_page_33_times(real: Real) -> None:
    summary = summarise(open_trace(real("disksim/disksim_iozone_100K.ascii.zst")))
    assert summary.written_page_count / summary.written_pages == pytest.approx(33, abs=0.5)


def test_blktrace_with_one_action_is_read(real: Real) -> None:
    path = real("blktrace/sample.blktrace.0")
    for action in "QD":
        reader = open_trace(path, action=action)
        assert summarise(reader).records == 963
        assert reader.skipped == {"notify event": 2, f"event other than {action}": 5778}


def test_blkparse_with_one_action_is_read(real: Real) -> None:
    path = real("blktrace/blkparse_sample_java.txt.zst")
    assert summarise(open_trace(path)).records == 1695
    assert summarise(open_trace(path, action="D")).records == 1694


def test_btrecord_agrees_with_its_listing(real: Real) -> None:
    binary, listing = real("blktrace/btrecord_sdi.replay.0"), real("blktrace/btrecord_sdi.replay.0.txt")
    reader = open_trace(binary)
    packets = [line.split() for line in listing.read_text().splitlines() if line.startswith("\t")]
    found = [
        [str(1 - int(op)), str(int(offset) // 512), str(int(length) // 512)]
        for batch in reader
        for op, offset, length in zip(batch.op, batch.offset_bytes, batch.length_bytes, strict=True)
    ]
    # The header counts 653 packets, as the listing does; the file stops one short.
    assert found == packets[:-1]
    assert reader.notes == ["the header promises 653 packets, the file holds 652"]


def test_hfplayer_trace_has_its_records_and_writes(real: Real) -> None:
    summary = summarise(open_trace(real("hfplayer/hfplayer_small-tpch.csv.zst")))
    assert (summary.records, summary.write_share) == (780, 1.0)


@pytest.mark.parametrize(
    ("name", "format_", "records", "pages"),
    [
        # Pages by hand: 1 + 19 (77824 bytes from a page's start) + 3 + 1 of four places.
        ("alibaba_4records.csv", "alibaba", 4, 24),
        ("fiu_1record_format.txt", "fiu", 1, 1),
        # 8 KiB and 64 KiB from the middle of a page: 3 + 17.
        ("msprod_etw_exchange_2records.csv", "etw", 2, 20),
        ("msr_hm_0_verbatim_44.csv", "msr", 44, 73),
        ("systor17_1record.csv", "systor17", 1, 33),
        ("tencent_cbs_1record.csv", "tencent", 1, 73),
    ],
)
def test_fixture_is_read_in_its_format(name: str, format_: str, records: int, pages: int, real: Real) -> None:
    reader = open_trace(real(f"fixtures/{name}"))
    summary = summarise(reader)
    assert (reader.format, summary.records, summary.footprint_pages) == (format_, records, pages)
