"""`slo-ctl demo`: one shipped scenario, told as it goes."""

from __future__ import annotations

import sys
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.cli.outcome import (
    JsonOption,
    Outputs,
    QuietOption,
    SaveJsonOption,
    deliver_replay,
    run_scenario,
)

if TYPE_CHECKING:
    from slo_ctl.replay.result import Result
    from slo_ctl.replay.scenario import Scenario

DEFAULT_REPORT = Path("slo-ctl-demo.html")
ALL_POLICIES = "shared,static,algorithm1"


def command(
    report: Annotated[
        Path, typer.Option(metavar="FILE.html", help="Where the HTML report goes.")
    ] = DEFAULT_REPORT,
    all_policies: Annotated[
        bool, typer.Option("--all-policies", help="Also run static and algorithm1, the paper's two.")
    ] = False,
    seed: Annotated[
        str | None,
        typer.Option(help="Same seed, same result."),
    ] = None,
    json: JsonOption = False,
    save_json: SaveJsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Show three VMs on one aged EMULATED SSD, with synthetic workloads: first mixed, then isolated."""
    from slo_ctl.replay.scenario_build import build_scenario
    from slo_ctl.replay.scenario_text import read_toml

    with as_file(files("slo_ctl.replay") / "demo.toml") as path:
        text = read_toml(path)
    text.set("seed", seed)
    text.set("compare", ALL_POLICIES if all_policies else None)
    scenario = build_scenario(text)
    outputs = Outputs(json=json, save_json=save_json, report=report, quiet=quiet)
    if not quiet:
        _tell(introduction(scenario))
    result = run_scenario(scenario, outputs)
    if not json:
        _conclude(result)
    deliver_replay(result, outputs)


def introduction(scenario: Scenario) -> str:
    """What is about to happen, from the scenario."""
    from slo_ctl.show import numbers

    vms = ", ".join(f"{vm.name} (weight {numbers.weight(vm.slo.weight)})" for vm in scenario.vms)
    return (
        f"An emulated SSD of {numbers.size(scenario.device.size_bytes)} is aged until GC settles. Then "
        f"{len(scenario.vms)} VMs share it, with synthetic workloads: {vms}. "
        f"Policies in turn: {', '.join(scenario.policies)}."
    )


def _conclude(result: Result) -> None:
    from slo_ctl.show.story import story

    sys.stdout.write("What happened:\n")
    for sentence in story(result):
        sys.stdout.write(f"  {sentence}\n")
    sys.stdout.write("\n")


def _tell(text: str) -> None:
    sys.stderr.write(text + "\n")
