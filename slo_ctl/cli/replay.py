"""`slo-ctl replay`: VMs' workloads on an emulated SSD, under one OPS policy or several.

With `--allocator` another kind of replay: file systems on drives that merge (`replay_allocators`).
"""

from __future__ import annotations

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
from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

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
            f"p99=20ms, size=, qd=, mode=closed|open. Repeat it for every VM. {_KEYS}",
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
            help="OPS policy: shared, static, algorithm1, proportional, proportional-strict or min_waf. "
            "[default: proportional]"
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
        typer.Option(
            help="Device's queue scheduler: fifo, rr, wfq, or auto: the policy's own. [default: auto]"
        ),
    ] = None,
    share_by: Annotated[
        str | None,
        typer.Option(help="Unit of shares: pages (4 KiB each), requests, device-time. [default: pages]"),
    ] = None,
    on_error: Annotated[
        str | None,
        typer.Option(help="Bad records of a trace: raise, or skip them and say how many. [default: raise]"),
    ] = None,
    alone: Annotated[
        bool | None,
        typer.Option("--alone/--no-alone", help="Also run every VM by itself. [default: alone]"),
    ] = None,
    allocator: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Instead of VMs: a file system on a drive that merges, its space given out by ext, reiser, "
            "reiser-dirid, greedy-space, greedy-local (the last two also as NAME-reiser, with its metadata); "
            "elapsed time by utilisation (docs/allocation.md).",
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(help="With --allocator: Postmark as cvfs-large or fsl. [default: cvfs-large]"),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --allocator, in place of Postmark: a block trace as files."),
    ] = None,
    drive: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="With --allocator: sandisk, samsung, mtron; --device changes their keys. [default: sandisk]",
        ),
    ] = None,
    utilisation: Annotated[
        str | None,
        typer.Option(help="With --allocator: per cents, 10,50,90 or 10..90. [default: 10..90]"),
    ] = None,
    trim: Annotated[
        bool,
        typer.Option("--trim/--no-trim", help="With --allocator: the drive is told what is freed."),
    ] = False,
    seeds: Annotated[
        int,
        typer.Option(help="With --allocator: so many seeds from --seed on, for confidence."),
    ] = 1,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="With --allocator: processes. [default: one a processor]"),
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
    outputs = Outputs(json=json, save_json=save_json, report=report, quiet=quiet)
    of_vms = {
        "SCENARIO": scenario,
        "--vm": vm,
        "--event": event,
        "--policy": policy,
        "--compare": compare,
        "--duration": duration,
        "--timing": timing,
        "--window": window,
        "--epoch": epoch,
        "--scheduler": scheduler,
        "--share-by": share_by,
        "--alone": alone is not None,
    }
    of_allocators = {
        "--workload": workload,
        "--trace": trace,
        "--drive": drive,
        "--utilisation": utilisation,
        "--trim": trim,
        "--seeds": seeds != 1,
        "--jobs": jobs,
    }
    if allocator is not None:
        from slo_ctl.cli.replay_allocators import Asked, compare_allocators

        _refuse(of_vms, "is for VMs' workloads, --allocator for a file system's")
        asked = Asked(
            allocator=allocator,
            workload=workload,
            trace=trace,
            drive=drive,
            device=device or [],
            utilisation=utilisation,
            trim=trim,
            seeds=seeds,
            jobs=jobs,
            seed=seed,
            on_error=on_error,
        )
        compare_allocators(asked, outputs)
        return
    _refuse(of_allocators, "is for --allocator")
    from slo_ctl.replay.scenario_build import build_scenario
    from slo_ctl.replay.scenario_text import ScenarioText, read_toml

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
        "share_by": share_by,
        "on_error": on_error,
        "alone": None if alone is None else "yes" if alone else "no",
    }
    for key, value in settings.items():
        text.set(key, value)
    deliver_replay(run_scenario(build_scenario(text), outputs), outputs)


def _refuse(given: Mapping[str, object], why: str) -> None:
    """Raise UserError about the first option that was given."""
    for option, value in given.items():
        if value:
            raise UserError(f"{option} {why}", "see `slo-ctl replay --help` and docs/allocation.md")
