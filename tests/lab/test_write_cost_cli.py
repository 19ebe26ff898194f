"""`slo-ctl device write-cost`, `slo-ctl trace write-cost`, and the response times from trace readers."""

from __future__ import annotations

from pathlib import Path

import fake_fio
import numpy as np
import pytest
from command_line import CommandLine

from traces.formats.vscsi import V2
from traces.reader import open_trace

KIB = 1 << 10
CHIPS = "page=4KiB,block=512KiB,channels=4,read_us=25,program_us=200,erase_us=1500,transfer_us=25"
DRIVE = f"size=256MiB,op=10%,dies=8,cluster=8,mapping=bast,{CHIPS}"
SMALL = ("--emulated", DRIVE, "--bytes", "64MiB", "--quiet")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


def times_us(sizes: tuple[int, ...], count: int, merge_us: float) -> tuple[np.ndarray, np.ndarray]:
    """Sizes and response times of writes: 100 us, 50 MB/s, every fifth waits for a merge."""
    rng = np.random.default_rng(1)
    lengths = rng.choice(sizes, count)
    response = (100 + lengths / 50) * (1 + 0.02 * rng.standard_normal(count))
    return lengths, np.where(np.arange(count) % 5 == 0, response + merge_us, response)


def test_write_cost_of_an_emulated_drive(command: CommandLine, tmp_path: Path) -> None:
    plot = tmp_path / "spikes.svg"
    found = command.answer(
        "device", "write-cost", *SMALL, "--size", "64KiB", "--size", "512KiB", "--plot", str(plot)
    )
    assert found["format_version"] == 1
    assert found["emulated_in_virtual_time"] is True
    merge = found["merge_us"]
    assert merge["low"] < merge["value"] < merge["high"]
    # A full merge copies up to 1024 pages: milliseconds. Switch merges are an erase of 1.5 ms.
    assert 5e3 < merge["value"] < 300e3
    assert [each["request_bytes"] for each in found["sizes"]] == [64 * KIB, 512 * KIB]
    assert found["sizes"][0]["requests"] == 2 * 1024
    drawn = plot.read_text()
    for words in ("random writes of 64KiB", "sequential writes of 512KiB", "T_merge", "MB/s", "spikes"):
        assert words in drawn
    status, text, _ = command("device", "write-cost", *SMALL, "--size", "64KiB", "--size", "512KiB")
    assert status == 0
    assert "T(n) = T_merge + n S/B, 95 % confidence" in text
    assert "EMULATED" in text


def test_page_mapped_drive_has_hardly_any_merges(command: CommandLine) -> None:
    page = f"size=1GiB,op=50%,dies=8,{CHIPS}"
    words = ("--emulated", page, "--bytes", "64MiB", "--quiet", "--size", "64KiB", "--size", "512KiB")
    hybrid = command.answer("device", "write-cost", *SMALL, "--size", "64KiB", "--size", "512KiB")
    assert command.answer("device", "write-cost", *words)["spikes_per_request"] < 0.1
    assert hybrid["spikes_per_request"] > 0.3


def test_write_cost_of_a_target_by_fio(
    command: CommandLine, tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = """
if "write_lat_log" in options:
    count = int(options["size"]) // int(options["bs"])
    base = 100_000 + int(options["bs"]) * 20
    slow = options["rw"] == "randwrite"
    with open(options["write_lat_log"] + "_lat.log", "w") as times:
        for n in range(count):
            print(f"{n}, {base + (9_000_000 if slow and n % 2 else 0)}, 1, 8192, 0, 0", file=times)
"""
    fake_fio.install(tmp_path / "bin", extra)
    fake_fio.put_first(monkeypatch, tmp_path / "bin")
    words = ("--bytes", "4MiB", "--size", "16KiB", "--size", "64KiB", "--quiet", "--root", str(tmp_path))
    found = command.answer("device", "write-cost", str(place), *words)
    assert found["merge_us"]["value"] == pytest.approx(9000)
    assert found["bandwidth_bytes_s"]["value"] == pytest.approx(50e6)
    assert found["fixed_us"]["value"] == pytest.approx(100)
    assert found["spikes_per_request"] == pytest.approx(0.25)
    assert list(place.iterdir()) == []
    (place / "mine").write_bytes(bytes(4 << 20))
    assert "would be overwritten" in command.refused("device", "write-cost", str(place / "mine"), *words)


def test_write_cost_of_a_trace(command: CommandLine, tmp_path: Path) -> None:
    lengths, response = times_us((4 * KIB, 16 * KIB, 64 * KIB), 3000, 20_000)
    lines = [
        f"{128166372003061629 + 10_000 * n},web,0,{'Read' if n % 10 == 3 else 'Write'},{n * 65536},{size},"
        f"{round(10 * time)}"
        for n, (size, time) in enumerate(zip(lengths, response, strict=True))
    ]
    # One without a response time, one of another disk.
    lines.append("128166402003061629,web,0,Write,0,4096,0")
    lines += ["128166402003061630,web,1,Write,0,512,77"] * 150
    trace, plot = tmp_path / "t.csv", tmp_path / "t.png"
    trace.write_text("\n".join(lines) + "\n")
    found = command.answer("trace", "write-cost", str(trace), "--volume", "web.0", "--plot", str(plot))
    assert found["merge_us"]["value"] == pytest.approx(20_000, rel=0.02)
    assert found["bandwidth_bytes_s"]["value"] == pytest.approx(50e6, rel=0.02)
    assert found["spikes_per_request"] == pytest.approx(2 / 9, abs=0.01)
    assert sum(each["requests"] for each in found["sizes"]) == 2700
    assert plot.read_bytes().startswith(b"\x89PNG")
    only = command.answer("trace", "write-cost", str(trace), "--size", "16KiB")
    assert [each["request_bytes"] for each in only["sizes"]] == [16 * KIB]
    assert "volume 'db' not found" in command.refused("trace", "write-cost", str(trace), "--volume", "db")
    assert "fewer than 100 writes of 8192" in command.refused(
        "trace", "write-cost", str(trace), "--size", "8KiB"
    )


def test_response_times_are_read_in_every_format_that_has_them(tmp_path: Path) -> None:
    systor = tmp_path / "s.csv"
    systor.write_text(
        "Timestamp,Response,IOType,LUN,Offset,Size\n"
        "1455592511.100000000,0.000281,W,2,8192,4096\n"
        "1455592511.200000000,,W,2,8192,4096\n"
    )
    vscsi = tmp_path / "v.vscsi"
    records = np.zeros(3, V2)
    records["cmd"], records["ver"], records["length"] = 0x2A, 2 << 8, 4096
    records["rt"] = (300, 0, 2**63)
    vscsi.write_bytes(records.tobytes())
    for path, expected in ((systor, [281_000, 0]), (vscsi, [300_000, 0, 0])):
        reader = open_trace(path, responses=True)
        assert reader.has_responses
        (batch,) = list(reader)
        assert batch.response_ns is not None
        assert batch.response_ns.tolist() == expected
        assert batch.slice(0, 1).response_ns is not None
        (plain,) = list(open_trace(path))
        assert plain.response_ns is None
        assert plain.offset_bytes.tolist() == batch.offset_bytes.tolist()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("device", "write-cost"), "either TARGET or --emulated"),
        (("device", "write-cost", "x", "--emulated", "mtron"), "TARGET and --emulated exclude each other"),
        (("device", "write-cost", *SMALL, "--size", "3KiB"), "3KiB does not divide 64MiB"),
        (("device", "write-cost", *SMALL, "--size", "16MiB"), "16MiB does not divide 64MiB"),
        (("device", "write-cost", *SMALL, "--plot", "x.pdf"), "does not end in .svg or .png"),
        (("device", "write-cost", "--emulated", "size=0"), "size"),
        (
            ("device", "write-cost", "--emulated", "size=2TiB"),
            "--emulated: size=2TiB is more than can be written all over before it is measured",
        ),
        (("trace", "write-cost", "/nowhere/t.csv"), "/nowhere/t.csv"),
        (("trace", "write-cost", "x", "--on-error", "never"), "is not known"),
    ],
)
def test_bad_options_are_refused(command: CommandLine, words: tuple[str, ...], message: str) -> None:
    assert message in command.refused(*words)


def test_traces_without_response_times_are_refused(command: CommandLine, tmp_path: Path) -> None:
    spc = tmp_path / "t.spc"
    spc.write_text("0,20941264,8192,W,0.551706\n" * 200)
    assert "formats that do: msr, systor17, vscsi" in command.refused("trace", "write-cost", str(spc))
    few = tmp_path / "few.csv"
    few.write_text("128166372003061629,web,0,Write,0,4096,1000\n" * 20)
    assert "fewer than 100" in command.refused("trace", "write-cost", str(few))
