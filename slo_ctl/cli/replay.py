"""`slo-ctl replay` and `slo-ctl demo`: workloads of VMs on an emulated SSD, under OPS policies."""

from __future__ import annotations

import sys
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.base import numbers
from slo_ctl.cli.completion import complete_policy, complete_workload
from slo_ctl.cli.options import JOBS, JSON, QUIET, REPORT, SAVE_JSON, processes, trace_errors
from slo_ctl.cli.output import Outputs, command_progress, deliver, print_lines

if TYPE_CHECKING:
    from slo_ctl.replay.result import Result
    from slo_ctl.replay.scenario import Scenario


def replay(
    scenario: Annotated[
        Path | None, typer.Argument(metavar="[SCENARIO.toml]", help="Scenario file; options override it.")
    ] = None,
    vm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="A VM: name=, weight=, trace=FILE or workload=NAME with its parameters, min=, max= (IOPS), "
            "p99=20ms, size=, qd=, mode=closed|open. Repeat for every VM. Double a comma inside a value.",
            autocompletion=complete_workload,
        ),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="The emulated SSD: preset=fast15|tlc|qlc, size=, op=15%, and page=, block=, channels=, "
            "dies=, read_us=, ...",
        ),
    ] = None,
    event: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="An event: at=10x,vm=NAME,action=stop, action=start, or action=weight,weight=3. Repeatable.",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="OPS policy: shared, static, algorithm1 (algorithm1:900 for an SSD specified with 900 "
            "IOPS), proportional, proportional-strict or min_waf. [default: proportional]",
            autocompletion=complete_policy,
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY,...",
            help="Policies to run first, for comparison.",
            autocompletion=complete_policy,
        ),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="20x (drive writes) or 600s (virtual time). [default: 20x]"),
    ] = None,
    timing: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="full, paper, or none (count requests only). [default: full]"),
    ] = None,
    seed: Annotated[
        str | None, typer.Option(metavar="N", help="Seed of the random generators. [default: 1]")
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="RANGE",
            help="Part that is measured: last-half, all, or FROM..TO such as 5x..20x. [default: last-half]",
        ),
    ] = None,
    epoch: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Interval between decisions of the policy. [default: 0.05x]"),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Request scheduler of the device: fifo, rr, wfq, or auto (chosen by the policy). "
            "[default: auto]",
        ),
    ] = None,
    share_by: Annotated[
        str | None,
        typer.Option(
            metavar="UNIT",
            help="Unit of shares: pages (of the drive), requests, device-time. [default: pages]",
        ),
    ] = None,
    on_error: Annotated[
        str | None,
        typer.Option(
            metavar="raise|skip",
            help="Stop at a bad record of a trace, or skip and count it. [default: raise]",
        ),
    ] = None,
    alone: Annotated[
        bool | None, typer.Option("--alone/--no-alone", help="Also run every VM by itself. [default: alone]")
    ] = None,
    jobs: JOBS = None,
    report: REPORT = None,
    json: JSON = False,
    save_json: SAVE_JSON = None,
    quiet: QUIET = False,
) -> None:
    """Replay the workloads of VMs on an EMULATED SSD and report what each VM received.

    Examples:
    slo-ctl replay --vm name=db,workload=uniform,weight=3 --vm name=web,workload=hotcold,r=.8,f=.2
    slo-ctl replay --vm name=db,trace=fin.spc.zst,min=500 --vm name=web,trace=web.csv \\
        --device size=8GiB,op=15% --compare shared,static --report out.html
    slo-ctl replay scenario.toml --policy proportional-strict --json
    """
    from slo_ctl.replay.scenario import TraceSource
    from slo_ctl.replay.scenario_build import build_scenario
    from slo_ctl.replay.scenario_text import ScenarioText, read_toml

    outputs = Outputs(json=json, save_json=save_json, report=report, quiet=quiet)
    text = read_toml(scenario) if scenario is not None else ScenarioText()
    for pairs in device or []:
        text.add_device(pairs)
    for pairs in vm or []:
        text.add_vm(pairs)
    for pairs in event or []:
        text.add_event(pairs)
    settings = {
        "policy": policy,
        "compare": compare,
        "duration": duration,
        "timing": timing,
        "seed": seed,
        "window": window,
        "epoch": epoch,
        "scheduler": scheduler,
        "share_by": share_by,
        "on_error": on_error,
        "alone": None if alone is None else "yes" if alone else "no",
    }
    for key, value in settings.items():
        text.set(key, value)
    built = build_scenario(text)
    traces = {
        f"the trace of VM {vm.name}": vm.source.path for vm in built.vms if isinstance(vm.source, TraceSource)
    }
    outputs.check({"the scenario": scenario, **traces})
    _deliver_replay(_run_scenario(built, outputs, jobs), outputs)


def _run_scenario(scenario: Scenario, outputs: Outputs, jobs: int | None = None) -> Result:
    """Run it with progress on stderr. The result of an interrupted run is incomplete."""
    from slo_ctl.replay.run import run

    with trace_errors("format="), command_progress(quiet=outputs.quiet) as progress:
        return run(scenario, progress, processes(jobs))


def _deliver_replay(result: Result, outputs: Outputs) -> None:
    """Print and write the result of a scenario."""
    from slo_ctl.show.replay_report import render_report
    from slo_ctl.show.replay_table import print_result

    deliver(result, outputs, render_report, print_result)


def demo(
    report: Annotated[Path, typer.Option(metavar="FILE.html", help="Path of the HTML report.")] = Path(
        "slo-ctl-demo.html"
    ),
    all_policies: Annotated[
        bool, typer.Option("--all-policies", help="Also run static and algorithm1 (FAST'15).")
    ] = False,
    seed: Annotated[str | None, typer.Option(metavar="N", help="Seed of the random generators.")] = None,
    json: JSON = False,
    save_json: SAVE_JSON = None,
    quiet: QUIET = False,
) -> None:
    """Run three VMs with synthetic workloads on one EMULATED SSD: first shared, then isolated.

    Examples:
    slo-ctl demo
    slo-ctl demo --report demo.html
    """
    from slo_ctl.replay.scenario_build import build_scenario
    from slo_ctl.replay.scenario_text import read_toml
    from slo_ctl.show.replay_table import story

    with as_file(files("slo_ctl.replay") / "demo.toml") as path:
        text = read_toml(path)
    text.set("seed", seed)
    text.set("compare", "shared,static,algorithm1" if all_policies else None)
    scenario = build_scenario(text)
    outputs = Outputs(json=json, save_json=save_json, report=report, quiet=quiet)
    outputs.check()
    if not quiet:
        sys.stderr.write(_introduction(scenario) + "\n")
    result = _run_scenario(scenario, outputs)
    if not json:
        print_lines("What happened:", *(f"  {sentence}" for sentence in story(result)), "")
    _deliver_replay(result, outputs)


def _introduction(scenario: Scenario) -> str:
    vms = ", ".join(f"{vm.name} (weight {numbers.weight(vm.slo.weight)})" for vm in scenario.vms)
    return (
        f"An emulated SSD of {numbers.size(scenario.device.size_bytes)} is preconditioned to steady state. "
        f"Then {len(scenario.vms)} VMs share it, with synthetic workloads: {vms}. "
        f"Policies in turn: {', '.join(scenario.policies)}."
    )
