"""`slo-ctl sweep`: the answer, resuming, refusals."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from slo_ctl.cli import app

SCENARIO = """\
duration = "2x"
[device]
preset = "fast15"
size = "64MiB"
op = "30%"
dies = 2
channels = 2
[[vm]]
name = "web"
workload = "uniform"
size = "16MiB"
min = 120
mode = "open"
iops = 125
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "web.toml"
    path.write_text(SCENARIO)
    return path


def run(*words: str) -> int:
    return app.run(["sweep", *words, "--quiet", "--jobs", "1"])


def test_how_many_vms_a_drive_carries(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot = scenario.with_suffix(".csv"), scenario.with_suffix(".svg")
    words = [str(scenario), "--vms", "1,3,5", "--policy", "shared", "--op", "10%,30%"]
    assert run(*words, "--out", str(out), "--plot", str(plot), "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["complete"] is True
    assert {(row["op"], row["vms"]) for row in result["rows"]} == {
        (op, vms) for op in ("10%", "30%") for vms in (1, 3, 5)
    }
    # Five VMs of 16 MiB do not fit into 64 MiB, so it is fewer.
    too_many = [row for row in result["rows"] if row["vms"] == 5]
    assert {row["unmet"] for row in too_many} == {-1}
    assert all(each["most_vms"] in (1, 3) for each in result["answers"])
    assert "<svg" in plot.read_text()


def test_a_sweep_continues_where_it_ended(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = scenario.with_suffix(".csv")
    assert run(str(scenario), "--vms", "1", "--policy", "shared", "--out", str(out)) == 0
    first = out.read_text()
    # A line that was cut short when the machine stopped, and a row that shows that it is not run again.
    out.write_text(first.replace(",shared,1,1,", ",shared,1,1,").rstrip() + "\n,,shared,2,1,9")
    assert run(str(scenario), "--vms", "1,2", "--policy", "shared", "--out", str(out)) == 0
    rows = list(csv.DictReader(out.open()))
    assert [row["vms"] for row in rows] == ["1", "2"]
    assert out.read_text().startswith(first.rstrip())
    assert "2 of 2 replays" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--vms", "0"), "--vms: 0 is not a list of counts"),
        (("--policy", "nosuch"), "--policy: nosuch is not known"),
        (("--op", "7%,,"), "--op: 7%,, has an empty part"),
    ],
)
def test_refusals_name_the_option(
    words: tuple[str, ...], reason: str, scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(scenario), "--out", str(scenario.with_suffix(".csv")), *words) == 2
    assert reason in capsys.readouterr().err


def test_a_file_of_something_else_is_kept(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(scenario), "--out", str(scenario)) == 2
    assert "is not the file of a sweep" in capsys.readouterr().err
    assert scenario.read_text() == SCENARIO
