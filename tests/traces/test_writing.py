"""Written traces are read back, and writing is atomic."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_samples import batch_of

from slo_ctl.base.files import partial_of
from traces import Batch, Op, TraceError, open_trace
from traces.compression import compression_of
from traces.formats.registry import writable
from traces.writing import TraceWriter

# Features of a format: operations, unit of time in ns, unit of offsets in bytes, times before the first.
LIMITS = {
    "slo-ctl": (list(Op), 1, 1, True),
    "spc": ([Op.READ, Op.WRITE], 1, 512, False),
    "msr": ([Op.READ, Op.WRITE], 100, 1, True),
    "iolog": ([Op.READ, Op.WRITE, Op.TRIM, Op.FLUSH], 1000, 1, False),
}
COLUMNS = ("time_ns", "op", "offset_bytes", "length_bytes", "volume")


def test_every_writable_format_is_tested_here() -> None:
    assert set(writable()) == set(LIMITS)


@pytest.mark.parametrize("format_", LIMITS)
@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst", ".zstd", ".GZ"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_written_trace_reads_back_the_same(
    format_: str, suffix: str, data: st.DataObject, tmp_path: Path
) -> None:
    ops, tick_ns, unit, backward = LIMITS[format_]
    rows = data.draw(
        st.lists(
            st.tuples(
                st.integers(-1000 if backward else 0, 10**9),
                st.sampled_from(ops),
                st.integers(0, 1 << 50),
                st.integers(1, 1 << 32),
                st.integers(0, 2),
            ),
            min_size=1,
            max_size=30,
        )
    )
    rows = [
        (0 if k == 0 else t * tick_ns, op, 0, 0, v)
        if op == Op.FLUSH
        else (0 if k == 0 else t * tick_ns, op, a * unit, n, v)
        for k, (t, op, a, n, v) in enumerate(rows)
    ]
    batch = batch_of(rows)
    names = ["a.0", "b.1", "c.2"]
    path = tmp_path / f"out{suffix}"
    with TraceWriter(path, format_, overwrite=True) as writer:
        for start in range(0, len(batch), 7):
            writer.write(batch.slice(start, start + 7), names)
    assert writer.records == len(batch)
    compression = suffix.lower().strip(".").removesuffix("d") or "none"
    assert compression_of(path.read_bytes()[:8]) == compression
    for given_format in (None, format_):
        reader = open_trace(path, given_format)
        back = Batch.concat(list(reader))
        assert reader.format == format_
        for column in COLUMNS[:-1]:
            assert getattr(back, column).tolist() == getattr(batch, column).tolist()
        numbered = format_ == "spc"
        assert [reader.volumes[v] for v in back.volume] == [
            str(v) if numbered else names[v] for v in batch.volume
        ]


def test_records_that_a_format_cannot_express_are_refused(tmp_path: Path) -> None:
    for format_, row, reason in [
        ("spc", (0, Op.TRIM, 0, 1, 0), "the format knows no trim"),
        ("spc", (0, Op.READ, 100, 1, 0), "offsets must be multiples of 512"),
        ("spc", (-1, Op.READ, 0, 1, 0), "earlier than the first"),
        ("msr", (0, Op.FLUSH, 0, 0, 0), "the format knows no flush"),
        ("iolog", (0, Op.WRITE_ZEROES, 0, 1, 0), "the format knows no write-zeroes"),
    ]:
        with pytest.raises(TraceError, match=reason), TraceWriter(tmp_path / "out", format_) as writer:
            writer.write(batch_of([row]), ["0"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("format_", "volumes"),
    [("slo-ctl", ["a b", "a,b"]), ("iolog", ["a b", "a_b"]), ("msr", ["web.1", "web"])],
)
def test_volumes_that_would_become_one_are_refused(tmp_path: Path, format_: str, volumes: list[str]) -> None:
    """Their requests were mixed up without a word, and the trace then touched fewer pages."""
    rows = [(0, Op.WRITE, 0, 4096, 0), (1000, Op.WRITE, 0, 4096, 1)]
    path = tmp_path / "out"
    with pytest.raises(TraceError, match="would have the same name"), TraceWriter(path, format_) as writer:
        writer.write(batch_of(rows), volumes)
    assert list(tmp_path.iterdir()) == []


def test_interrupted_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    with pytest.raises(TraceError, match="exists already"):
        TraceWriter(path)
    interrupted = TraceWriter(path, overwrite=True)
    with contextlib.suppress(KeyboardInterrupt), interrupted as writer:
        writer.write(batch_of([(0, Op.READ, 0, 1, 0)]), ["0"])
        raise KeyboardInterrupt
    assert interrupted.records == 1
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    with pytest.raises(TraceError, match="is not a regular file"):
        TraceWriter(link, overwrite=True)
    with pytest.raises(TraceError, match="cannot be written"), TraceWriter(tmp_path / "none" / "out"):
        pass
    with pytest.raises(ValueError, match="cannot be written"):
        TraceWriter(tmp_path / "x", "vscsi")
    for name in ("x.csv.bz2", "x.parquet"):
        with pytest.raises(TraceError, match=r"\.(bz2|parquet) cannot be written"):
            TraceWriter(tmp_path / name)


def test_what_a_killed_writer_leaves_is_known_to_the_commands_that_remove_it(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with TraceWriter(path):
        assert list(tmp_path.iterdir()) == [partial_of(path)]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "name", ["spc/Financial1_10k_reconstructed.spc.zst", "vscsi/cloudPhysicsIO.vscsi.zst"]
)
def test_real_traces_round_trip_through_slo_ctl_format(
    name: str, real: Callable[[str], Path], tmp_path: Path
) -> None:
    reader = open_trace(real(name))
    with TraceWriter(tmp_path / "out.zst") as writer:
        for batch in reader:
            writer.write(batch, reader.volumes)
    back = open_trace(tmp_path / "out.zst")
    before, after = Batch.concat(list(reader)), Batch.concat(list(back))
    for column in COLUMNS:
        assert (getattr(before, column) == getattr(after, column)).all()
    assert list(reader.volumes) == list(back.volumes)


def test_ctrl_c_while_a_batch_is_encoded_is_left_to_the_program(tmp_path: Path) -> None:
    """`trace record` is ended by Ctrl-C; if that came while polars was working, it ended without results."""
    program = """
        import os, signal, sys, threading, time
        import numpy as np

        handled = []
        signal.signal(signal.SIGINT, lambda *_: handled.append(True))
        from traces import Batch, open_trace
        from traces.writing import TraceWriter

        def interrupt():
            while not written:
                time.sleep(0.002)
                os.kill(os.getpid(), signal.SIGINT)

        written = []
        numbers = np.arange(20_000)
        batch = Batch(numbers, np.ones(len(numbers), np.uint8), numbers.astype(np.uint64) * 4096,
                      np.full(len(numbers), 4096, np.uint64), np.zeros(len(numbers), np.int32))
        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            with TraceWriter(sys.argv[1]) as writer:
                while len(handled) < 20:
                    writer.write(batch, ["d"])
        finally:
            written.append(True)
            thread.join()
        assert sum(map(len, open_trace(sys.argv[1]))) == writer.records >= len(batch)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "d.csv.zst")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
