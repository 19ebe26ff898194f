"""`slo-ctl replay`: VMs' workloads on an emulated SSD, under one OPS policy or several."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations at run time
from typing import Annotated

import typer

from slo_ctl.cli.outcome import (
    JsonOption,
    Outputs,
    QuietOption,
    SaveJsonOption,
    deliver,
    run_scenario,
)

_KEYS = "key=value,key=value; a comma inside a value is doubled."


def command(
    scenario: Annotated[
        Path | None,
        typer.Argument(metavar="SCENARIO.toml", help="Scenario file; options are laid over it."),
    ] = None,
    vm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="A VM: name=, weight=, trace=FILE or workload=NAME with its parameters, min=, max= (IOPS), "
            f"size=, qd=, mode=closed|open. Repeat it for every VM. {_KEYS}",
        ),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="The emulated SSD: preset=, size=, op=, and page=, block=, channels=, dies=, read_us=, ...",
        ),
    ] = None,
    event: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="at=10x,vm=NAME,action=stop, start, or weight with weight=. Repeatable.",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="OPS policy: shared, static, algorithm1, proportional or min_waf. [default: proportional]"
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(metavar="POLICY,...", help="Policies to run first, to compare with."),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(help="20x (full drive writes) or 600s (virtual time). [default: 20x]"),
    ] = None,
    timing: Annotated[
        str | None,
        typer.Option(help="full, paper, or none (count only). [default: full]"),
    ] = None,
    seed: Annotated[
        str | None,
        typer.Option(help="Same seed, same result. [default: 1]"),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(help="What is measured: last-half, all, or FROM..TO as 5x..20x. [default: last-half]"),
    ] = None,
    epoch: Annotated[
        str | None,
        typer.Option(help="How often the policy decides. [default: 0.05x]"),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(help="Device's queue scheduler: fifo, rr or wfq. [default: fifo]"),
    ] = None,
    on_error: Annotated[
        str | None,
        typer.Option(help="Bad records of a trace: raise, or skip them and say how many. [default: raise]"),
    ] = None,
    alone: Annotated[
        bool | None,
        typer.Option("--alone/--no-alone", help="Also run every VM by itself. [default: alone]"),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write an HTML report."),
    ] = None,
    json: JsonOption = False,
    save_json: SaveJsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Replay VMs' workloads on an EMULATED SSD and report who got what.

    Example: slo-ctl replay --vm name=db,trace=fin.spc.zst,weight=3 --vm name=web,workload=hotcold,r=.8,f=.2
    --device size=8GiB,op=15% --compare shared --report out.html
    """
    from slo_ctl.replay.scenario_text import ScenarioText, build_scenario, read_toml

    text = read_toml(scenario) if scenario is not None else ScenarioText()
    for words in device or []:
        text.add_device(words)
    for words in vm or []:
        text.add_vm(words)
    for words in event or []:
        text.add_event(words)
    settings = {
        "policy": policy,
        "compare": compare,
        "duration": duration,
        "timing": timing,
        "seed": seed,
        "window": window,
        "epoch": epoch,
        "scheduler": scheduler,
        "on_error": on_error,
        "alone": None if alone is None else "yes" if alone else "no",
    }
    for key, value in settings.items():
        text.set(key, value)
    outputs = Outputs(json=json, save_json=save_json, report=report, quiet=quiet)
    deliver(run_scenario(build_scenario(text), outputs), outputs)
