"""`slo-ctl demo`: a bundled scenario with an explanation of its results."""

from __future__ import annotations

import sys
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.base import numbers
from slo_ctl.cli.options import JSON, QUIET, SAVE_JSON
from slo_ctl.cli.output import Outputs
from slo_ctl.cli.replay import deliver_replay, run_scenario

if TYPE_CHECKING:
    from slo_ctl.replay.result import Result
    from slo_ctl.replay.scenario import Scenario

DEFAULT_REPORT = Path("slo-ctl-demo.html")
ALL_POLICIES = "shared,static,algorithm1"


def command(
    report: Annotated[
        Path, typer.Option(metavar="FILE.html", help="Path of the HTML report.")
    ] = DEFAULT_REPORT,
    all_policies: Annotated[
        bool,
        typer.Option("--all-policies", help="Also run static and algorithm1 (FAST'15)."),
    ] = False,
    seed: Annotated[
        str | None,
        typer.Option(metavar="NUMBER", help="Seed of the random generators."),
    ] = None,
    json: JSON = False,
    save_json: SAVE_JSON = None,
    quiet: QUIET = False,
) -> None:
    """Run three VMs with synthetic workloads on one EMULATED SSD: first mixed, then isolated.

    Examples:
    slo-ctl demo
    slo-ctl demo --report demo.html
    """
    from slo_ctl.replay.scenario_build import build_scenario, read_toml

    with as_file(files("slo_ctl.replay") / "demo.toml") as path:
        text = read_toml(path)
    text.set("seed", seed)
    text.set("compare", ALL_POLICIES if all_policies else None)
    scenario = build_scenario(text)
    outputs = Outputs(json=json, save_json=save_json, report=report, quiet=quiet)
    if not quiet:
        sys.stderr.write(introduction(scenario) + "\n")
    result = run_scenario(scenario, outputs)
    if not json:
        _print_story(result)
    deliver_replay(result, outputs)


def introduction(scenario: Scenario) -> str:
    """Plan of the run."""

    vms = ", ".join(f"{vm.name} (weight {numbers.weight(vm.slo.weight)})" for vm in scenario.vms)
    return (
        f"An emulated SSD of {numbers.size(scenario.device.size_bytes)} is preconditioned to steady state. "
        f"Then {len(scenario.vms)} VMs share it, with synthetic workloads: {vms}. "
        f"Policies in turn: {', '.join(scenario.policies)}."
    )


def _print_story(result: Result) -> None:
    from slo_ctl.show.replay_table import story

    sys.stdout.write("What happened:\n")
    for sentence in story(result):
        sys.stdout.write(f"  {sentence}\n")
    sys.stdout.write("\n")
