"""`slo-ctl device policy`: what suits a device, and setting it so."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slo_ctl.cli.exit_codes import EXIT_FAILURE
from slo_ctl.cli.policy_host import cgroup_root_of, named_as_configured, needs_of_vms, suited_here
from slo_ctl.cli.say import tell, tell_json
from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slo_ctl.act.interface import Actuator
    from slo_ctl.cli.policy_host import Given
    from slo_ctl.cli.vm_host import VmHost
    from slo_ctl.decide.scheduler_choice import Choice
    from slo_ctl.model import Knob, Outcome, Setting
    from slo_ctl.serra.suited import Suited

FORMAT_VERSION = 1


def register(app: typer.Typer) -> None:
    """Add the command to `slo-ctl device`."""
    app.command()(policy)


def policy(
    device: Annotated[
        str,
        typer.Argument(metavar="DEV", help="A block device, such as sda, or the name of an emulated SSD."),
    ],
    explain: Annotated[
        bool, typer.Option("--explain", help="Every choice with its reason and source.")
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Set the device so. It can be undone.")] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Give the device back what it had before slo-ctl.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --apply: print what would be set, touch nothing.")
    ] = False,
    p99: Annotated[
        str | None, typer.Option(metavar="TIME", help="A latency target. [default: the tightest of the SLOs]")
    ] = None,
    weights: Annotated[
        bool | None,
        typer.Option("--weights/--no-weights", help="Shares in proportion. [default: if the SLOs need it]"),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option("--root", metavar="DIR", help="Configuration, profiles and state are below DIR."),
    ] = None,
    sys_root: Annotated[Path | None, typer.Option("--sys", metavar="DIR", help="Instead of /sys.")] = None,
    cgroup_root: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Instead of [cgroup] root. [default: /sys/fs/cgroup]"),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Say which I/O scheduler, parameters and weights suit a device, by its profile and the SLOs of its VMs.

    Changes nothing without --apply. Exit status 0: told, or set; 1: a setting did not take; 2: refused.
    """
    if undo and (apply or dry_run):
        raise UserError("--undo excludes --apply and --dry-run", "leave one of them out")
    if dry_run and not apply:
        raise UserError("--dry-run goes with --apply", "without --apply nothing is touched anyway")
    from slo_ctl.cli.vm_host import VmHost
    from slo_ctl.device.store import DeviceStore

    host = VmHost(root)
    sys = sys_root or Path("/sys")
    if device in DeviceStore(host.places.devices).names():
        _emulated(host, device, (p99, weights), json_, apply, undo, dry_run)
        return
    if undo:
        name = Path(device).resolve().name if "/" in device else device
        _finish(_undone(host, _block_actuators(host, sys, cgroup_root), lambda k: k.place == name), json_)
        return
    found, vms = suited_here(host, device, sys, cgroup_root, (p99, weights), strictly=apply)
    if not apply:
        if json_:
            tell_json(_plain(found, vms))
        else:
            _print(found, vms, explain)
        return
    outcomes = _applied(
        host,
        _block_actuators(host, sys, cgroup_root),
        found.settings,
        lambda knob: knob.place == found.facts.name,
        dry_run,
    )
    if not json_:
        _print(found, vms, explain)
    _finish(outcomes, json_)


# What is set.


def _block_actuators(host: VmHost, sys: Path, cgroup_root: Path | None) -> list[Actuator[Any]]:
    from slo_ctl.act.block_queue import BlockQueueActuator
    from slo_ctl.serra.block_facts import has_io_cost

    root = cgroup_root_of(host, cgroup_root)
    return [BlockQueueActuator(sys, root if has_io_cost(root) else None)]


def _applied(
    host: VmHost, actuators: list[Actuator[Any]], settings: Sequence[Setting], within: Any, dry_run: bool
) -> list[Outcome]:
    """What became of the settings of one device; what it was set to before and should not be any more is
    given back."""
    from slo_ctl.act.journal import Journal
    from slo_ctl.act.keeper import SettingKeeper

    if dry_run:
        return SettingKeeper(actuators, Journal(host.places.journal)).plan(settings, within)
    with _instead_of_a_daemon(host):
        return SettingKeeper(actuators, Journal(host.places.journal)).apply(settings, within=within)


def _undone(host: VmHost, actuators: list[Actuator[Any]], within: Any) -> list[Outcome]:
    from slo_ctl.act.journal import Journal
    from slo_ctl.act.keeper import SettingKeeper
    from slo_ctl.model.setting import DEVICE_LEVERS

    def mine(knob: Knob) -> bool:
        return knob.lever in DEVICE_LEVERS and bool(within(knob))

    with _instead_of_a_daemon(host):
        return SettingKeeper(actuators, Journal(host.places.journal)).undo(mine)


def _instead_of_a_daemon(host: VmHost) -> Any:
    from slo_ctl.daemon.lock import only_daemon

    return only_daemon(host.places.lock)


def _emulated(
    host: VmHost, device: str, given: Given, json_: bool, apply: bool, undo: bool, dry_run: bool
) -> None:
    from slo_ctl.act.journal import Journal
    from slo_ctl.act.served_ftl import ServedFtlActuator
    from slo_ctl.act.tenant_scheduler import TenantSchedulerActuator
    from slo_ctl.decide.device_needs import tenants_on
    from slo_ctl.decide.device_settings import tenant_setting
    from slo_ctl.decide.tenant_choice import choose_tenant_scheduler
    from slo_ctl.device.store import DeviceStore

    record = DeviceStore(host.places.devices).load(device)

    def actuators() -> list[Actuator[Any]]:
        control = host.places.devices.run_of(device).control
        server = ServedFtlActuator(device, control, Journal(host.places.journal))
        return [TenantSchedulerActuator(device, server)]

    if undo:
        _finish(_undone(host, actuators(), lambda knob: knob.place == device), json_)
        return
    _, streams = named_as_configured(host)
    vms = tenants_on(device, streams)
    needs, tenants = needs_of_vms(host, vms, given), len(record.namespace)
    choice = choose_tenant_scheduler(needs, tenants, rotates=record.kind != "ssd")
    if not (apply and json_):
        _print_tenant_choice(device, choice, json_)
    if apply:
        setting = tenant_setting(device, choice)
        within = setting.knob.__eq__
        _finish(_applied(host, actuators(), [setting], within, dry_run), json_)


# What is told.


def _finish(outcomes: list[Outcome], json_: bool) -> None:
    from slo_ctl.cli.apply import tell_outcomes
    from slo_ctl.model import OutcomeState

    if not outcomes and not json_:
        tell("slo-ctl has set nothing there")
    else:
        tell_outcomes(outcomes, json_)
    if any(outcome.state is OutcomeState.UNAPPLIED for outcome in outcomes):
        raise typer.Exit(EXIT_FAILURE)


def _plain(found: Suited, vms: Sequence[str]) -> dict[str, Any]:
    profile = found.found
    return {
        "format_version": FORMAT_VERSION,
        "device": asdict(found.facts),
        "vms": list(vms),
        "needs": asdict(found.needs),
        "profile": None
        if profile is None
        else {"path": str(profile.path), "age_s": profile.age_s, "stale": profile.stale or None},
        **asdict(found.choice),
    }


def _print(found: Suited, vms: Sequence[str], explain: bool) -> None:
    from slo_ctl.serra.store import age_text

    facts, choice = found.facts, found.choice
    tell(f"{facts.name}: scheduler {choice.scheduler} (now {facts.current or 'none'})")
    for name, value in choice.parameters.items():
        tell(f"  {name} = {value}")
    tell(f"  weights by {choice.weights.value}")
    for label, line in (("io.cost.model", choice.iocost_model), ("io.cost.qos", choice.iocost_qos)):
        if line is not None:
            tell(f"  {label}: {line}")
    if explain:
        tell("why:", *(line for each in choice.choices for line in _explained(each)))
    tell(f"SLOs of: {', '.join(vms)}" if vms else "no VM is known to use it")
    if found.found is not None:
        tell(f"profile of {age_text(found.found.age_s)} ago: {found.found.stale or 'valid'}")
    tell(*(f"note: {caution}" for caution in choice.cautions))


def _explained(choice: Choice) -> list[str]:
    lines = [f"  {choice.what} {choice.value}: {choice.reason}"]
    return [*lines, f"    source: {choice.source}"] if choice.source else lines


def _print_tenant_choice(device: str, choice: Choice, json_: bool) -> None:
    if json_:
        plain = {"format_version": FORMAT_VERSION, "device": device, "emulated": True}
        tell_json(plain | {"scheduler": choice.value, "choices": [asdict(choice)]})
    else:
        tell(f"{device} (EMULATED): scheduler {choice.value}", f"  {choice.reason}")
