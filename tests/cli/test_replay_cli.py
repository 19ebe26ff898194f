"""`slo-ctl replay` and `slo-ctl demo` with a fake engine."""

from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path

import pytest
from fake_result import fake_result, fake_run

from slo_ctl.base.errors import UserError
from slo_ctl.base.files import write_whole
from slo_ctl.base.progress import ProgressSink
from slo_ctl.cli import app
from slo_ctl.decide.policies import DEFAULT_POLICY, POLICIES
from slo_ctl.replay.result import Result
from slo_ctl.replay.scenario import Scenario
from slo_ctl.replay.scenario_text import command_line

VM = "name=db,workload=uniform,weight=3"


class Engine:
    """A substitute for the engine that records its arguments and returns fixed figures."""

    def __init__(self) -> None:
        self.scenarios: list[Scenario] = []
        self.complete = True

    def run(self, scenario: Scenario, progress: ProgressSink, jobs: int = 1) -> Result:
        assert jobs >= 1
        self.scenarios.append(scenario)
        phase = progress.phase("preconditioning", 10, "page writes")
        phase.advance(10)
        phase.done()
        return fake_result(
            runs=[fake_run(policy, complete=self.complete) for policy in scenario.policies],
            complete=self.complete,
            scenario=scenario.echo(),
            command=command_line(scenario),
            seed=scenario.seed,
        )


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Engine:
    fake = Engine()
    module = types.ModuleType("slo_ctl.replay.run")
    module.run = fake.run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "slo_ctl.replay.run", module)
    monkeypatch.chdir(tmp_path)
    return fake


def run(*words: str) -> int:
    return app.run(list(words))


def test_help_names_every_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("replay", "--help") == 0
    # Help imports no policy, which would take as long as importing numpy.
    text = " ".join(capsys.readouterr().out.split())
    assert set(re.findall(r"[\w-]+", text)) >= POLICIES.keys()
    assert f"min_waf. [default: {DEFAULT_POLICY}]" in text


def test_scenario_without_a_vm_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.toml").write_text("")
    assert app.run(["replay", str(tmp_path / "empty.toml")]) == 2
    assert capsys.readouterr().err.startswith(f"slo-ctl: {tmp_path}/empty.toml: no VM\n")


def test_replay_prints_tables_by_default(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("replay", "--vm", VM, "--compare", "shared") == 0
    shown = capsys.readouterr()
    assert "EMULATED SSD" in shown.out
    assert "policy shared" in shown.out
    assert "preconditioning: done" in shown.err
    assert engine.scenarios[0].policies == ("shared", "proportional")


def test_json_is_the_only_output_on_stdout(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("replay", "--vm", VM, "--json", "--quiet") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["format_version"] == 1
    assert shown.err == ""
    assert engine.scenarios


@pytest.mark.usefixtures("engine")
def test_replay_writes_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, saved = tmp_path / "out.html", tmp_path / "out.json"
    assert run("replay", "--vm", VM, "--report", str(report), "--save-json", str(saved)) == 0
    assert report.read_text().startswith("<!doctype html>")
    assert Result.model_validate_json(saved.read_text()).seed == 1
    assert f"report: {report}" in capsys.readouterr().out
    assert sorted(item.name for item in tmp_path.iterdir()) == ["out.html", "out.json"]


def test_interrupted_run_prints_partial_result(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.complete = False
    assert run("replay", "--vm", VM, "--report", "out.html") == 130
    assert "PARTIAL" in capsys.readouterr().out
    assert "Partial: the run was interrupted" in (tmp_path / "out.html").read_text()


@pytest.mark.parametrize(
    ("option", "path", "message"),
    [("--report", ".", "is a directory"), ("--save-json", "none/out.json", "directory none not found")],
)
def test_outputs_are_checked_before_the_run(
    engine: Engine, option: str, path: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("replay", "--vm", VM, option, path) == 2
    assert message in capsys.readouterr().err
    assert engine.scenarios == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no VM to run"),
        (("--vm", VM + ",weight=-1"), "weight is given twice"),
        (("--vm", "name=db,workload=uniform,weight=-1"), "--vm db: weight=-1"),
        (("--vm", "name=db,workload=uniform,weight=nan"), "--vm db: weight=nan"),
        (("--vm", VM, "--vm", VM), "--vm db: another VM is named db"),
        (("--vm", VM, "--device", "op=0.2%"), "too small to run"),
        (("--vm", "name=db,trace=none.spc"), "--vm db: trace=none.spc does not exist"),
        (("--vm", VM, "--seed", "x"), "--seed: x is not a whole number"),
        (("none.toml",), "none.toml: No such file"),
    ],
)
def test_errors_are_one_line_and_a_hint(
    engine: Engine, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("replay", *words) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("slo-ctl: ")
    assert message in first
    assert second.startswith("hint: ")
    assert engine.scenarios == []


def test_options_override_the_scenario_file(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("seed = 4\n[[vm]]\nname = 'db'\nworkload = 'uniform'\n")
    assert (
        run("replay", "run.toml", "--duration", "3x", "--no-alone", "--event", "at=1x,vm=db,action=stop") == 0
    )
    scenario = engine.scenarios[0]
    assert (scenario.seed, str(scenario.duration), scenario.measure_alone) == (4, "3x", False)
    assert scenario.events[0].vm == "db"


def test_demo_compares_policies_on_three_vms(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("demo") == 0
    shown = capsys.readouterr()
    scenario = engine.scenarios[0]
    assert [(vm.name, vm.slo.weight) for vm in scenario.vms] == [("db", 1), ("web", 3), ("mail", 6)]
    assert scenario.policies[0] == "shared"
    assert scenario.policies[-1] == "proportional"
    assert "emulated SSD" in shown.err
    assert "synthetic" in shown.err
    assert "belonged to a VM other than" in shown.out
    assert (tmp_path / "slo-ctl-demo.html").exists()


def test_demo_with_all_policies(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("demo", "--all-policies", "--json", "--quiet", "--seed", "5", "--report", "d.html") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["seed"] == 5
    assert shown.err == ""
    assert engine.scenarios[0].policies == ("shared", "static", "algorithm1", "proportional")


def test_output_file_is_written_atomically(tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_whole("--report", path, "\udc80")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(UserError, match="cannot write"):
        write_whole("--report", tmp_path / "none" / "out.html", "new")


@pytest.mark.parametrize("size", ["99999TiB", "20TiB"])
def test_a_drive_larger_than_can_be_emulated_is_refused(
    size: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("replay", "--vm", VM, "--device", f"size={size}") == 2
    output = capsys.readouterr().err
    assert "can be emulated" in output
    assert "unexpected" not in output


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--report", "{scenario}"], "--report: {scenario} is the scenario, and would be overwritten"),
        (["--save-json", "{trace}"], "--save-json: {trace} is the trace of VM db, and would be overwritten"),
        (["--save-json", "{node}"], "--save-json: {node} is not a regular file"),
        (
            ["--report", "{folder}/r.html", "--save-json", "{folder}/./r.html"],
            "--report: {folder}/r.html is the file of --save-json, and would be overwritten",
        ),
    ],
)
def test_outputs_do_not_replace_inputs_devices_or_each_other(
    words: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {
        "folder": tmp_path,
        "scenario": tmp_path / "s.toml",
        "trace": tmp_path / "fin.spc",
        "node": tmp_path / "node",
    }
    names["trace"].write_text("0,8,4096,w,0.5\n")
    names["scenario"].write_text('duration = "1x"\n[[vm]]\nname = "db"\ntrace = "fin.spc"\n')
    names["node"].symlink_to("/dev/null")
    before = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    filled = [word.format(**names) for word in words]
    assert app.run(["replay", str(names["scenario"]), "--quiet", *filled]) == 2
    assert problem.format(**names) in capsys.readouterr().err
    assert {path.name: path.stat().st_ino for path in tmp_path.iterdir()} == before
