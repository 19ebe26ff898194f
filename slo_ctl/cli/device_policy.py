"""`slo-ctl device policy`: recommend and set the I/O scheduler of a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slo_ctl.base.errors import UserError
from slo_ctl.cli.completion import complete_device_or_disk
from slo_ctl.cli.exit_status import EXIT_FAILURE
from slo_ctl.cli.options import CGROUP_ROOT, JSON, ROOT, time_s_of
from slo_ctl.cli.output import print_json, print_lines, warn_notes
from slo_ctl.cli.vm_host import VmHost
from slo_ctl.daemon.files import DeviceClaims, only_daemon
from slo_ctl.model.host import DeviceNumber, parse_device_number
from slo_ctl.model.setting import DEVICE_LEVERS, Knob, Outcome, OutcomeState, Setting
from slo_ctl.model.slo import MIN_P99_US

if TYPE_CHECKING:
    from slo_ctl.act.keeper import Actuator
    from slo_ctl.decide.scheduler import Needs
    from slo_ctl.decide.scheduler_parameters import Choice
    from slo_ctl.profile.store import Found, SchedulerAdvice

_CLAIMS = Path("/run/slo-ctl")
"""Directory of the locks of block devices, which all daemons share."""
_NeedOptions = tuple[str | None, bool | None]
"""Values of --p99 and --weights."""


def _advise(
    host: VmHost, device: str, sys: Path, cgroup_root: Path | None, options: _NeedOptions, *, strictly: bool
) -> tuple[SchedulerAdvice, tuple[str, ...]]:
    """The advice, and the VMs whose SLOs it considers. `strictly`: the device must not be a partition."""
    from slo_ctl.act.queue import check_named
    from slo_ctl.daemon.block_devices import configured_numbers
    from slo_ctl.decide.scheduler import vms_on
    from slo_ctl.profile.identity import IdentitySources, block_facts, has_io_cost, named_device
    from slo_ctl.profile.store import ProfileStore, advise_scheduler

    number = named_device(device, sys)
    if strictly:
        check_named(device, str(number), sys)
    sources = IdentitySources(host.places.devices, sys)
    facts = block_facts(number, sources, has_io_cost(cgroup_root or host.config.cgroup.root))
    found = ProfileStore(host.places.devices.state / "profiles").of_device(number, sources)
    managed = configured_numbers(host.config.devices, sys)
    vms = vms_on(number, host.inventory.vms, host.inventory.streams, host.slos.set_for, managed)
    needs = _needs_of_vms(host, vms, options)
    warn_notes(host.notes)
    return advise_scheduler(facts, needs, found), vms


def _needs_of_vms(host: VmHost, vms: Sequence[str], options: _NeedOptions) -> Needs:
    """Needs of the effective SLOs of these VMs; options override them."""
    from slo_ctl.decide.scheduler import needs_on

    needs = needs_on(vms, {name: host.slos.resolved[name].slo for name in vms})
    p99, weights = options
    if p99 is not None:
        target_us = 1e6 * time_s_of("--p99", p99, "20ms")
        if target_us < MIN_P99_US:
            raise UserError(f"--p99: must be at least {MIN_P99_US:g} us", "such as 5ms")
        needs = replace(needs, p99_target_us=target_us)
    return needs if weights is None else replace(needs, weights=weights)


def policy(
    device: Annotated[
        str,
        typer.Argument(
            metavar="DEV",
            help="A block device, such as sda, or the name of an emulated SSD.",
            autocompletion=complete_device_or_disk,
        ),
    ],
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the reason and source of each choice.")
    ] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Apply the recommended settings; --undo restores them.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Restore the settings the device had before slo-ctl.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --apply: print the settings; change nothing.")
    ] = False,
    p99: Annotated[
        str | None, typer.Option(metavar="TIME", help="P99 latency target. [default: the lowest of the SLOs]")
    ] = None,
    weights: Annotated[
        bool | None,
        typer.Option(
            "--weights/--no-weights", help="Require proportional shares. [default: if the SLOs require them]"
        ),
    ] = None,
    root: ROOT = None,
    sys_root: Annotated[
        Path | None, typer.Option("--sys", metavar="DIR", help="Mount point of sysfs. [default: /sys]")
    ] = None,
    cgroup_root: CGROUP_ROOT = None,
    json_: JSON = False,
) -> None:
    """Recommend the I/O scheduler, its parameters and weights for a device, from its profile and SLOs.

    Changes nothing without --apply. Exit status 0: shown or applied; 1: a setting could not be applied; 2: a
    usage error.

    Examples:
    slo-ctl device policy nvme0n1 --explain
    slo-ctl device policy sda --p99 20ms --apply
    """
    if undo and (apply or dry_run):
        raise UserError("--undo excludes --apply and --dry-run", "give one of them")
    if dry_run and not apply:
        raise UserError("--dry-run requires --apply", "without --apply nothing is changed in any case")
    from slo_ctl.drives.store import DeviceStore

    host = VmHost(root)
    sys = sys_root or Path("/sys")
    if device in DeviceStore(host.places.devices).names():
        _policy_of_emulated(host, device, (p99, weights), json_, apply, undo, dry_run)
        return
    if undo:
        name = Path(device).resolve().name if "/" in device else device
        from slo_ctl.profile.identity import named_device

        try:
            number = named_device(device, sys)
        except UserError:
            number = None  # it is gone
        _report_outcomes(_block_settings(host, name, sys, cgroup_root, number).undo(), json_)
        return
    advice, vms = _advise(host, device, sys, cgroup_root, (p99, weights), strictly=apply)
    if not apply:
        if json_:
            print_json(_choice_json(advice, vms))
        else:
            _print_advice(advice, vms, explain)
        return
    number = parse_device_number(advice.facts.number)
    settings = _block_settings(host, advice.facts.name, sys, cgroup_root, number)
    outcomes = settings.apply(advice.settings, advice.choice.scheduler, dry_run)
    if not json_:
        _print_advice(advice, vms, explain)
    _report_outcomes(outcomes, json_)


class _DeviceSettings:
    """Settings of one device, which are set while no daemon runs."""

    def __init__(
        self, host: VmHost, name: str, table: str, actuator: Actuator[Any], number: DeviceNumber | None = None
    ) -> None:
        """`table`: a line that is in the configuration's table of the device; `number`: of a block device."""
        from slo_ctl.act.journal import Journal
        from slo_ctl.act.keeper import SettingKeeper

        self._keeper = SettingKeeper([actuator], Journal(host.places.journal))
        self._lock = host.places.lock
        self._name = name
        self._table = table
        self._number = number

    def apply(self, settings: Sequence[Setting], scheduler: str, dry_run: bool) -> list[Outcome]:
        """Apply the settings; earlier ones that are no longer wanted are restored.

        Raises UserError if a daemon runs, with how that sets the scheduler, or one with another directory
        has the device.
        """
        if dry_run:
            return self._keeper.plan(settings, self._is_own)
        with self._without_daemon(scheduler):
            return self._keeper.apply(settings, within=self._is_own)

    def undo(self) -> list[Outcome]:
        """Restore the settings. Raises UserError if a daemon runs."""
        with self._without_daemon("keep"):
            return self._keeper.undo(self._is_own)

    def _is_own(self, knob: Knob) -> bool:
        return knob.lever in DEVICE_LEVERS and knob.place == self._name

    @contextmanager
    def _without_daemon(self, scheduler: str) -> Iterator[None]:
        hint = (
            f'the daemon sets it: write scheduler = "{scheduler}" in the [[device]] with {self._table} in '
            "slo-ctl.toml, then `slo-ctl config reload`"
        )
        with only_daemon(self._lock, hint):
            if self._number is not None and (holder := DeviceClaims(_CLAIMS).holder(self._number)):
                raise UserError(
                    f"{self._name} is managed by a daemon with another directory ({holder})",
                    "stop it, or set the scheduler in its slo-ctl.toml: it would set its own choice again",
                )
            yield


def _block_settings(
    host: VmHost, name: str, sys: Path, cgroup_root: Path | None, number: DeviceNumber | None
) -> _DeviceSettings:
    from slo_ctl.act.queue import BlockQueueActuator
    from slo_ctl.profile.identity import has_io_cost

    root = cgroup_root or host.config.cgroup.root
    actuator = BlockQueueActuator(sys, root if has_io_cost(root) else None)
    return _DeviceSettings(host, name, f'path = "/dev/{name}"', actuator, number)


def _emulated_settings(host: VmHost, name: str) -> _DeviceSettings:
    from slo_ctl.act.journal import Journal
    from slo_ctl.act.ssd import ServedFtlActuator

    control = host.places.devices.run_of(name).control
    actuator = ServedFtlActuator(name, control, Journal(host.places.journal))
    return _DeviceSettings(host, name, f'name = "{name}"', actuator)


def _policy_of_emulated(
    host: VmHost, device: str, options: _NeedOptions, json_: bool, apply: bool, undo: bool, dry_run: bool
) -> None:
    from slo_ctl.decide.scheduler import choose_tenant_scheduler, tenant_setting, tenants_on
    from slo_ctl.drives.record import read_settings
    from slo_ctl.drives.store import DeviceStore
    from slo_ctl.profile.identity import IdentitySources
    from slo_ctl.profile.store import ProfileStore, valid_analysis

    record = DeviceStore(host.places.devices).load(device)
    if undo:
        _report_outcomes(_emulated_settings(host, device).undo(), json_)
        return
    vms = tenants_on(device, host.inventory.streams)
    needs, tenants = _needs_of_vms(host, vms, options), len(record.namespace)
    sources = IdentitySources(host.places.devices)
    found = ProfileStore(host.places.devices.state / "profiles").of_emulated(record, sources)
    analysis = valid_analysis(found)
    choice = choose_tenant_scheduler(needs, tenants, rotates=record.kind != "ssd", analysis=analysis)
    if not (apply and json_):
        in_force = read_settings(host.places.devices.device(device)).scheduler or record.scheduler
        _print_tenant_choice(device, in_force, choice, found, json_)
    if apply:
        settings = [tenant_setting(device, choice)]
        _report_outcomes(_emulated_settings(host, device).apply(settings, choice.value, dry_run), json_)


def _report_outcomes(outcomes: list[Outcome], json_: bool) -> None:
    from slo_ctl.cli.plan import print_results

    if not outcomes and not json_:
        print_lines("slo-ctl has not changed this device")
    else:
        print_results(outcomes, json_)
    if any(outcome.state is OutcomeState.UNAPPLIED for outcome in outcomes):
        raise typer.Exit(EXIT_FAILURE)


def _profile_json(found: Found | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "path": str(found.path),
        **found.plain(),
        "partial": found.record.partial or None,
    }


def _print_profile(found: Found | None) -> None:
    if found is not None:
        partial = f", PARTIAL: {found.record.partial}" if found.record.partial else ""
        print_lines(f"profile of {found}{partial}")


def _choice_json(advice: SchedulerAdvice, vms: Sequence[str]) -> dict[str, Any]:
    return {
        "device": asdict(advice.facts),
        "vms": list(vms),
        "needs": asdict(advice.needs),
        "profile": _profile_json(advice.found),
        **asdict(advice.choice),
    }


def _print_advice(advice: SchedulerAdvice, vms: Sequence[str], explain: bool) -> None:
    facts, choice = advice.facts, advice.choice
    print_lines(f"{facts.name}: scheduler {choice.scheduler} (now {facts.current or 'none'})")
    for name, value in choice.parameters.items():
        print_lines(f"  {name} = {value}")
    print_lines(f"  weights by {choice.weights.value}")
    for label, line in (("io.cost.model", choice.iocost_model), ("io.cost.qos", choice.iocost_qos)):
        if line is not None:
            print_lines(f"  {label}: {line}")
    if explain:
        print_lines("why:", *(line for part in choice.choices for line in _explanation(part)))
    print_lines(f"SLOs of: {', '.join(vms)}" if vms else "no VM uses this device")
    _print_profile(advice.found)
    print_lines(*(f"note: {caution}" for caution in choice.cautions))


def _explanation(choice: Choice) -> list[str]:
    lines = [f"  {choice.what} {choice.value}: {choice.reason}"]
    return [*lines, f"    source: {choice.source}"] if choice.source else lines


def _print_tenant_choice(
    device: str, in_force: str, choice: Choice, found: Found | None, json_: bool
) -> None:
    if json_:
        plain: dict[str, Any] = {"device": device, "emulated": True, "current": in_force}
        plain["profile"] = _profile_json(found)
        print_json(plain | {"scheduler": choice.value, "choices": [asdict(choice)]})
    else:
        print_lines(f"{device} (EMULATED): scheduler {choice.value} (now {in_force})", f"  {choice.reason}")
        _print_profile(found)
