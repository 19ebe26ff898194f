"""`slo-ctl trace` from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slo_ctl.cli.app import run
from slo_ctl.cli.trace_record import print_recording
from slo_ctl.replay.recording import RecordedVm, Recording, scenario_text
from traces import Batch, open_trace

SPC = "0,8,4096,w,0\n1,8,8192,R,0.5\n0,16,512,w,1.25\n1,0,4096,w,90\n"


@pytest.fixture
def spc(tmp_path: Path) -> Path:
    path = tmp_path / "in.spc"
    path.write_text(SPC)
    return path


def read(path: Path) -> Batch:
    return Batch.concat(list(open_trace(path)))


def test_info_json(spc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "info", str(spc), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["format_version"] == 1
    assert output["format"] == "spc"
    assert output["records"] == 4
    assert output["records_by_op"] == {"read": 1, "write": 3}
    assert output["write_share"] == 0.75
    assert output["written_bytes"] == 8704
    assert output["footprint_pages"] == 5
    assert output["duration_ns"] == 90 * 10**9
    assert [volume["name"] for volume in output["volumes"]] == ["0", "1"]


def test_info_table(spc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "info", str(spc)]) == 0
    output = capsys.readouterr().out
    assert "write share      0.750" in output
    assert "VOLUME" in output


def test_skipping_is_reported(spc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spc.write_text(SPC + "0,8,0,w,91\n")
    assert run(["trace", "info", str(spc)]) == 2
    captured = capsys.readouterr()
    assert captured.err == (
        f"slo-ctl: {spc}:5: size: a request of zero length\n"
        "hint: --on-error skip counts such records and continues\n"
    )
    assert run(["trace", "info", str(spc), "--on-error", "skip"]) == 0
    assert "1 x size: a request of zero length" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--format", "msr"], "looks like spc"),
        (["--format", "nosuch"], "format 'nosuch' is unknown"),
        (["--on-error", "ignore"], "is not known"),
        (["--action", "X"], "action is 'X'"),
    ],
)
def test_info_refuses_bad_input(
    options: list[str], reason: str, spc: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["trace", "info", str(spc), *options]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert len(error.splitlines()) <= 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--to", "vscsi"], "cannot be written"),
        (["--scale", "nan"], "not a positive number"),
        (["--scale", "-1"], "not a positive number"),
        (["--loops", "0"], "Invalid value for '--loops': it must be at least 1"),
        (["--start", "soon"], "--start: 'soon' is not a valid time"),
        (["--start", "5s", "--stop", "4s"], "--stop 4s is not after --start 5s"),
        (["--max-gap", "-1"], "is not a valid time"),
        (["--align", "3000"], "--align 3000 is not a power of two"),
        (["--align", "0"], "--align 0 is not a power of two"),
        (["--align", "x"], "--align: 'x' is not a valid size"),
        (["--remap", "nosuch"], "--remap: nosuch is not known"),
        (["--remap", "nosuch", "--size", "1G"], "--remap: nosuch is not known"),
        (["--remap", "modulo"], "needs the size"),
        (["--remap", "modulo", "--size", "0"], "not positive"),
        (["--remap", "compact", "--size", "1G"], "exclude each other"),
        (["--size", "1G"], "--size requires --remap"),
        (["--only", "dance"], "'dance' is not a known operation"),
        (["--only", ","], "no operation is left"),
        (["--volume", "7"], "volume '7' not found; the trace has 0, 1"),
        (["--start", "2h"], "no records left"),
        (["--only", "trim"], "no records left"),
    ],
)
def test_convert_refuses_bad_options(
    options: list[str], reason: str, spc: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["trace", "convert", str(spc), str(tmp_path / "out"), *options]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert len(error.splitlines()) <= 2
    assert list(tmp_path.iterdir()) == [spc]


def test_replay_of_a_recording_in_a_directory_with_spaces_can_be_pasted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vms, scenario = [RecordedVm("web", 1 << 20)], tmp_path / "mon day" / "scenario.toml"
    print_recording(Recording("/dev/loop0 of web", {}, 1.0, vms, scenario))
    assert f"slo-ctl replay '{tmp_path}/mon day/scenario.toml'\n" in capsys.readouterr().out


def test_scenario_of_a_recording_says_how_often_it_is_repeated_and_how_to_replay_it_once() -> None:
    """Three drives are written, for GC to be steady: 3 GiB in passes of 256 MiB."""
    vm = RecordedVm("web", 1 << 30, requests=1, write_bytes=1 << 28, trace=Path("web.csv.zst"))
    text = scenario_text(Recording("device ssd0 (EMULATED)", {"size": "1GiB"}, 2.5, [vm]))
    assert 'duration = "30s"\n' in text
    repeated = "# duration: 12 times the recording, for GC to become steady.\n"
    assert f"{repeated}# As long as the recording: --duration 2.5s\n" in text


def test_one_record_is_counted_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "one.csv"
    rows = "5,write,0,4096,0\n4,write,0,4096,0\n"
    source.write_text(f"#slo-ctl-trace 1\ntime_ns,op,offset_bytes,length_bytes,volume\n{rows}")
    assert run(["trace", "convert", str(source), str(tmp_path / "out.csv"), "--stop", "5ns"]) == 0
    assert capsys.readouterr().err.startswith("1 record written to ")
    assert run(["trace", "info", str(source)]) == 0
    out = capsys.readouterr().out
    assert "1 record earlier than the one before" in out
    assert "1 page (4 KiB)" in out


def test_a_trace_of_146_years_is_converted_but_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "long.csv"
    rows = f"0,write,0,4096,0\n{2**62},write,4096,4096,0\n"
    source.write_text(f"#slo-ctl-trace 1\ntime_ns,op,offset_bytes,length_bytes,volume\n{rows}")
    assert run(["trace", "convert", str(source), str(tmp_path / "once.csv")]) == 0
    capsys.readouterr()
    assert run(["trace", "convert", str(source), str(tmp_path / "twice.csv"), "--loops", "2"]) == 2
    error = capsys.readouterr().err
    assert "the repeated trace is longer than 146 years" in error
    assert "hint: repeat it fewer times, or shorten its pauses" in error


def test_convert_does_not_overwrite(spc: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.csv"
    assert run(["trace", "convert", str(spc), str(out)]) == 0
    assert "4 records written" in capsys.readouterr().err
    assert run(["trace", "convert", str(spc), str(out)]) == 2
    assert "--force overwrites it" in capsys.readouterr().err
    assert run(["trace", "convert", str(spc), str(out), "--force", "--to", "iolog"]) == 0
    assert open_trace(out).format == "iolog"


def test_convert_a_bad_trace_leaves_nothing(spc: Path, tmp_path: Path) -> None:
    spc.write_text(SPC + "0,8,0,w,91\n")
    assert run(["trace", "convert", str(spc), str(tmp_path / "out")]) == 2
    assert list(tmp_path.iterdir()) == [spc]


def test_convert_can_overwrite_its_input(spc: Path) -> None:
    assert run(["trace", "convert", str(spc), str(spc), "--force"]) == 0
    assert open_trace(spc).format == "slo-ctl"
    assert len(read(spc)) == 4


@pytest.mark.parametrize(
    ("options", "offsets", "times_ms"),
    [
        ([], [4096, 4096, 8192, 0], [0, 500, 1250, 90_000]),
        # Volume 0 reaches to 8704 bytes, so it takes three pages.
        (["--remap", "per-volume"], [4096, 12288 + 4096, 8192, 12288], [0, 500, 1250, 90_000]),
        # Pages of 0: 1, 2; of 1: 1, 2, 0.
        (["--remap", "compact"], [0, 12288, 4096, 8192], [0, 500, 1250, 90_000]),
        (["--remap", "first-touch"], [0, 12288, 4096, 8192], [0, 500, 1250, 90_000]),
        (["--remap", "modulo", "--size", "8KiB"], [4096, 0, 0, 0], [0, 500, 1250, 90_000]),
        (["--volume", "1", "--volume", "0", "--only", "write"], [4096, 8192, 0], [0, 1250, 90_000]),
        (["--start", "500ms", "--stop", "2s"], [4096, 8192], [0, 750]),
        (["--max-gap", "1s", "--scale", "2"], [4096, 4096, 8192, 0], [0, 1000, 2500, 4500]),
        (["--volume", "1", "--loops", "2"], [4096, 0, 4096, 0], [0, 89_500, 179_500, 269_000]),
        (["--shift", "1MiB"], [1052672, 1052672, 1056768, 1048576], [0, 500, 1250, 90_000]),
    ],
)
def test_convert_applies_each_transformation(
    options: list[str], offsets: list[int], times_ms: list[int], spc: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.csv.zst"
    assert run(["trace", "convert", str(spc), str(out), *options]) == 0
    batch = read(out)
    assert batch.offset_bytes.tolist() == offsets
    assert ((batch.time_ns - batch.time_ns[0]) // 10**6).tolist() == times_ms


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_half_written(number: signal.Signals, tmp_path: Path) -> None:
    source, out = tmp_path / "big.spc", tmp_path / "out.csv"
    source.write_text(SPC * 50_000)
    command = [
        sys.executable,
        "-m",
        "slo_ctl.cli",
        "trace",
        "convert",
        str(source),
        str(out),
        "--loops",
        "100000",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ) as process:
        while not list(tmp_path.glob(".out.csv.*.partial")) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(number)
        try:
            process.communicate(timeout=300)
        finally:
            process.kill()  # else a failure would fill the disk
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == [source]
