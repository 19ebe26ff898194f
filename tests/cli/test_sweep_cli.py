"""`slo-ctl sweep`: the answer, resuming, refusals."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars
import pytest

from slo_ctl.cli import app
from slo_ctl.cli.sweep import _summary
from slo_ctl.replay import sweep
from slo_ctl.replay.scenario_text import ScenarioText
from slo_ctl.replay.sweep import Row, SweepPoint, capacities, lines_of

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


def test_sweep_finds_the_number_of_vms_per_drive(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot = scenario.with_suffix(".csv"), scenario.with_suffix(".svg")
    words = [str(scenario), "--vms", "1,3,5", "--policy", "shared", "--op", "10%,30%"]
    assert run(*words, "--out", str(out), "--plot", str(plot), "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["complete"] is True
    assert {(row["op"], row["vms"]) for row in result["rows"]} == {
        (op, vms) for op in ("10%", "30%") for vms in (1, 3, 5)
    }
    # Five VMs of 16 MiB do not fit into 64 MiB, so there are fewer.
    too_many = [row for row in result["rows"] if row["vms"] == 5]
    assert {row["unmet"] for row in too_many} == {-1}
    assert all(each["most_vms"] in (1, 3) for each in result["answers"])
    assert all(each["limit"] and not each["may_be_more"] for each in result["answers"])
    assert "<svg" in plot.read_text()


def test_interrupted_sweep_is_resumed(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = scenario.with_suffix(".csv")
    assert run(str(scenario), "--vms", "1", "--policy", "shared", "--out", str(out)) == 0
    first = out.read_text()
    plot = scenario.with_suffix(".png")
    assert run(str(scenario), "--vms", "1", "--policy", "shared", "--out", str(out), "--plot", str(plot)) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    # A line that was cut off by a power failure, and a row whose values show that it is not computed again.
    out.write_text(first.replace(",shared,1,1,", ",shared,1,1,").rstrip() + "\nweb,,,shared,2,1,9")
    assert run(str(scenario), "--vms", "1,2", "--policy", "shared", "--out", str(out)) == 0
    rows = list(csv.DictReader(out.open()))
    assert [row["vms"] for row in rows] == ["1", "2"]
    assert out.read_text().startswith(first.rstrip())
    assert "2 of 2 replays" in capsys.readouterr().out


def test_a_second_sweep_into_the_same_file_is_refused(
    scenario: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It replaced the file: what the first one added from then on was lost, although it said otherwise."""
    out, statuses = scenario.with_suffix(".csv"), list[int]()
    words = [str(scenario), "--policy", "shared", "--out", str(out)]

    def replay(base: ScenarioText, point: SweepPoint) -> Row:
        if not statuses:
            statuses.append(run(*words, "--vms", "2"))
        return sweep.replay(base, point)

    original = sweep.replay
    monkeypatch.setattr(sweep, "replay", lambda *given: (original if statuses else replay)(*given))
    assert run(*words, "--vms", "1") == 0
    assert "1 of 1 replays in" in capsys.readouterr().out
    assert [row["vms"] for row in csv.DictReader(out.open())] == ["1"]
    assert statuses == [2]
    assert run(*words, "--vms", "2") == 0
    assert [row["vms"] for row in csv.DictReader(out.open())] == ["1", "2"]


def test_changed_scenario_is_not_mixed_with_earlier_replays(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(scenario), "--vms", "1", "--policy", "shared", "--out", str(scenario.with_suffix(".csv"))]
    assert run(*words) == 0
    scenario.write_text("# a comment changes nothing\n" + SCENARIO)
    assert run(*words) == 0
    scenario.write_text(SCENARIO.replace("min = 120", "min = 121"))
    assert run(*words) == 2
    assert f"has replays of web from before {scenario} changed" in capsys.readouterr().err


def test_missing_replays_are_not_taken_for_a_drive_that_supports_nothing() -> None:
    drive = ("web", "", "15%", "shared")
    known = [Row(*drive, vms, seed, 1.0, 1.0, 1.0, 1.0, unmet=0) for vms, seed in ((1, 1), (1, 2), (3, 1))]
    (capacity,) = capacities(known, [SweepPoint(*drive, 2, 1), SweepPoint(*drive, 3, 2)])
    assert (capacity.most_vms, capacity.may_be_more) == (1, True)
    assert capacity.limit == "2: 1 replay is missing"
    # Replays with many VMs are run first.
    (capacity,) = capacities(known[2:], [SweepPoint(*drive, 1, 1), SweepPoint(*drive, 1, 2)])
    assert (capacity.most_vms, capacity.may_be_more) == (0, True)
    assert _summary([capacity]) == "not known, as replays are missing"


def test_a_drive_too_small_for_the_fewest_tried_may_support_fewer(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(scenario), "--vms", "5,6", "--out", str(scenario.with_suffix(".csv"))]
    assert run(*words) == 0
    shown = capsys.readouterr().out
    assert "fewer than 5" in shown
    assert "no drive supports 5 copies of the VMs, and fewer were not tried" in shown
    assert run(*words, "--json") == 0
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    assert (answer["most_vms"], answer["least_tried_vms"], answer["waf"]) == (0, 5, None)


def test_keys_of_a_scenario_that_a_sweep_does_not_use_are_noted(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario.write_text(f'policy = "static"\nseed = 7\n{SCENARIO}'.replace("min = 120\n", ""))
    words = [str(scenario), "--policy", "shared", "--out", str(scenario.with_suffix(".csv"))]
    assert run(*words) == 0
    assert [line.partition(": ")[2] for line in capsys.readouterr().err.splitlines()] == [
        f"{scenario}:1: policy = static is not used: see --policy",
        f"{scenario}:2: seed = 7 is not used: see --seeds",
        f"{scenario}: no VM has min= or p99=, so each number of VMs that fits is supported",
    ]


def test_events_apply_to_every_copy(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    event = '[[event]]\nat = "1x"\nvm = "{}"\naction = "stop"\n'
    out = ["--vms", "1,2", "--policy", "shared", "--out", str(scenario.with_suffix(".csv")), "--json"]
    scenario.write_text(SCENARIO + event.format("web"))
    assert run(str(scenario), *out) == 0
    assert [row["note"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["", ""]
    scenario.write_text(SCENARIO + event.format("wbe"))
    assert run(str(scenario), *out) == 2
    assert "[[event]] 1: VM wbe not found\nhint: did you mean web?" in capsys.readouterr().err


def test_each_scenario_has_its_own_answer(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot = scenario.with_suffix(".csv"), scenario.with_suffix(".svg")
    # Twice as large: the drive holds two instead of four.
    large = scenario.with_name("db.toml")
    large.write_text(SCENARIO.replace('"16MiB"', '"32MiB"').replace("min = 120", "min = 10"))
    words = ["--vms", "1,3", "--policy", "shared", "--out", str(out)]
    assert run(str(scenario), *words) == 0
    first = out.read_text()
    assert run(str(scenario), str(large), *words, "--plot", str(plot), "--json") == 0
    result = json.loads(capsys.readouterr().out.split("drives\n", 1)[1])
    assert [(each["scenario"], each["most_vms"]) for each in result["answers"]][1] == ("db", 1)
    assert {(row["scenario"], row["vms"]) for row in result["rows"]} == {
        (name, vms) for name in ("web", "db") for vms in (1, 3)
    }
    assert out.read_text().startswith(first), "replays of the first scenario are not repeated"
    assert "db: scenario, shared" in plot.read_text()
    twin = scenario.parent / "other" / "web.toml"
    twin.parent.mkdir()
    twin.write_text(SCENARIO)
    assert run(str(scenario), str(twin), *words) == 2
    assert "there are two scenarios web" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--vms", "0"), "--vms: 0 is not a list of counts"),
        (("--policy", "nosuch"), "--policy: nosuch is not known\nhint: known: algorithm1, min_waf, "),
        (("--op", "7%,,"), "--op: 7%,, has an empty part"),
        (("--op", "0%"), "--op: op=0% is not more than 0"),
        (("--op", "7%", "--drive", "op=15%"), "--drive op=15% and --op are two values of op"),
        (("--drive", "preset=foo"), "--drive preset=foo: preset=foo is not known"),
    ],
)
def test_refusals_name_the_option(
    words: tuple[str, ...], reason: str, scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(scenario), "--out", str(scenario.with_suffix(".csv")), *words) == 2
    assert reason in capsys.readouterr().err


def test_scenario_error_is_not_reported_as_a_small_drive(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line, reason in (("queue_depth = 8", "unknown key queue_depth"), ('min = "few"', "min")):
        scenario.write_text(SCENARIO.replace("min = 120", line))
        assert run(str(scenario), "--out", str(scenario.with_suffix(".csv"))) == 2
        assert reason in capsys.readouterr().err
    assert not scenario.with_suffix(".csv").exists()


def test_event_that_comes_too_late_is_not_reported_as_a_small_drive(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scenario.open("a") as file:
        file.write('[[event]]\nat = "30x"\nvm = "web"\naction = "stop"\n')
    out = scenario.with_suffix(".csv")
    assert run(str(scenario), "--vms", "1", "--out", str(out)) == 2
    assert "at=30x is too late: the run ends at 2x" in capsys.readouterr().err
    assert not out.exists()


def test_bad_record_of_a_trace_is_named_by_a_worker_too(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario.with_name("bad.spc").write_text("0,0,4096,w,0\n0,x,4096,w,2\n")
    scenario.write_text(scenario.read_text().partition("workload")[0] + 'trace = "bad.spc"\nsize = "16MiB"\n')
    words = ["sweep", str(scenario), "--vms", "1,2", "--jobs", "2", "--quiet"]
    assert app.run([*words, "--out", str(scenario.with_suffix(".csv"))]) == 2
    assert "bad.spc:2: LBA: 'x' is not an integer of 64 bits" in capsys.readouterr().err


def test_unrelated_output_file_is_kept(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = scenario.with_suffix(".csv")
    other.write_text(SCENARIO)
    assert run(str(scenario), "--out", str(other)) == 2
    assert "is not the file of a sweep" in capsys.readouterr().err
    assert other.read_text() == SCENARIO
    other.write_bytes(b"\xff\xfe")
    assert run(str(scenario), "--out", str(other)) == 2
    assert "is not the file of a sweep" in capsys.readouterr().err
    assert run(str(scenario), "--out", str(scenario)) == 2
    assert "does not end in .csv or .parquet" in capsys.readouterr().err


def test_parquet_results_are_resumed_and_lower_bounds_marked(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = scenario.with_suffix(".parquet")
    assert run(str(scenario), "--vms", "1", "--policy", "shared", "--out", str(out)) == 0
    assert "1 or more" in capsys.readouterr().out
    # As if it had been stopped now: results in the files of workers count, too.
    first = polars.read_parquet(out)
    partial = lines_of(out)
    first.write_csv(partial)
    out.unlink()
    assert run(str(scenario), "--vms", "1,5", "--policy", "shared", "--out", str(out)) == 0
    assert "web: most VMs: 1, on the scenario's drive with shared" in capsys.readouterr().out
    rows = polars.read_parquet(out)
    assert rows["vms"].to_list() == [1, 5]
    assert rows.row(0) == first.row(0)
    assert rows.schema["waf"] == polars.Float64
    assert not partial.exists()


def test_dead_worker_loses_only_its_current_replay(scenario: Path) -> None:
    out = scenario.with_suffix(".csv")
    words = ["sweep", str(scenario), "--vms", "1,2", "--seeds", "4", "--policy", "shared", "--out", str(out)]
    command = [sys.executable, "-m", "slo_ctl.cli", *words, "--jobs", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def replays() -> list[str]:
        return out.read_text().splitlines()[1:] if out.exists() else []

    deadline = time.monotonic() + 300
    while not replays() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    first = replays()
    for worker in workers_of(process.pid)[:1]:
        os.kill(worker, signal.SIGKILL)
    printed, notes = process.communicate(timeout=300)
    assert process.returncode == 0, notes
    assert "8 of 8 replays" in printed
    assert "a worker process died; its replay is started again" in notes
    rows = replays()
    assert rows[: len(first)] == first
    assert len(rows) == 8, "no replay is repeated"


def workers_of(pid: int) -> list[int]:
    """Processes of the pool that this process has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    lines = {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
    return [child for child, line in lines.items() if b"spawn_main" in line]
