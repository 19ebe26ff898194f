"""`slo-ctl fsim`: options, refusals, outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsim.workloads import SETTINGS, PostmarkSetting
from slo_ctl.cli import app

SMALL = "size=1GiB,block=128KiB,dies=8,cluster=8"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, "small", PostmarkSetting(60, 4, 512, 100_000, 200))


def run(*words: str) -> int:
    return app.run(["fsim", *words])


def test_table_report_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, saved = tmp_path / "r.html", tmp_path / "r.json"
    words = ["--workload", "small", "--device", SMALL, "--utilisation", "30,60", "--jobs", "1", "--quiet"]
    files = ["--report", str(report), "--save-json", str(saved)]
    assert run("ext,greedy-local", *words, *files, "--trim") == 0
    shown = capsys.readouterr()
    assert "greedy-local" in shown.out
    assert shown.err == ""
    assert "Elapsed time in seconds" in report.read_text()
    result = json.loads(saved.read_text())
    assert (result["kind"], result["format_version"]) == ("allocation", 1)
    assert result["trim"] is True
    assert len(result["drives"][0]["points"]) == 4
    again = result["command"].split()
    assert again[:3] == ["slo-ctl", "fsim", "ext,greedy-local"]
    assert app.run([*again[1:], "--jobs", "1", "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["drives"] == result["drives"]


def test_block_trace_is_replayed_as_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.csv"
    lines = [f"{128166372003061629 + i},host,0,Write,{i % 300 * 65536},65536,100" for i in range(600)]
    trace.write_text("\n".join(lines) + "\n")
    words = f"--trace {trace} --device {SMALL} --utilisation 50 --jobs 1 --quiet --json".split()
    assert run("ext,greedy-space", *words) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["workload"] == "t.csv"
    assert result["synthetic"] is False
    assert all(point["elapsed_s"][0] > 0 for point in result["drives"][0]["points"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nonsense"], "ALLOCATOR: nonsense is not known"),
        (["ext", "--vm", "name=a"], "No such option: --vm"),
        ([], "Missing argument"),
        (["ext", "--drive", "sandsk"], "did you mean sandisk"),
        (["ext", "--workload", "mail"], "--workload: mail is not known"),
        (["ext", "--utilisation", "99"], "--utilisation: 99 is out of range"),
        (["ext", "--utilisation", "5..99"], "--utilisation: 5..99 is out of range"),
        (["ext", "--utilisation", ""], "is not a list of percentages"),
        (["ext", "--utilisation", "half"], "is not a list of percentages"),
        (["ext", "--seeds", "0"], "--seeds"),
        (["ext", "--workload", "fsl", "--trace", "x"], "exclude each other"),
        (["ext", "--device", "page=8KiB"], "not a file-system block"),
        (["ext", "--device", "size=2TiB"], "at most 1024 GiB"),
        (["ext", "--device", "size=64MiB,op=7%", "--jobs", "1"], "ext on sandisk at 10%"),
    ],
)
def test_errors_are_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 2
    assert message in capsys.readouterr().err


def test_a_trace_without_writes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("128166372003061629,host,0,Read,0,65536,100\n")
    assert run("ext", "--trace", str(trace)) == 2
    assert "has no writes" in capsys.readouterr().err
