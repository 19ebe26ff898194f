"""What suits a device of this host: its facts, its profile, and the SLOs of the VMs on it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from slo_ctl.cli.option_value import time_s_of
from slo_ctl.cli.say import remark
from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from slo_ctl.cli.vm_host import VmHost
    from slo_ctl.decide.scheduler_choice import Needs
    from slo_ctl.model import Stream, Vm
    from slo_ctl.serra.suited import Suited

    Given = tuple[str | None, bool | None]
    """--p99 and --weights."""


def suited_here(
    host: VmHost, device: str, sys: Path, cgroup_root: Path | None, given: Given, *, strictly: bool
) -> tuple[Suited, tuple[str, ...]]:
    """The choice, and the VMs whose SLOs counted. `strictly`: of exactly this device, which can be set."""
    from slo_ctl.act.block_queue import why_not_named
    from slo_ctl.decide.device_needs import vms_on
    from slo_ctl.promises import PromiseStore
    from slo_ctl.serra.block_facts import block_facts, device_number, has_io_cost
    from slo_ctl.serra.identity import Surroundings
    from slo_ctl.serra.store import ProfileStore
    from slo_ctl.serra.suited import suited

    number = device_number(device, sys)
    if strictly:
        problem = why_not_named(device, str(number), sys)
        if problem is not None:
            raise UserError(problem.reason, problem.hint)
    around = Surroundings(host.places.devices, sys)
    facts = block_facts(number, around, has_io_cost(cgroup_root_of(host, cgroup_root)))
    found = ProfileStore(host.places.devices.state / "profiles").of_device(number, around)
    seen, streams = named_as_configured(host)
    promised = set(host.config.vms) | set(PromiseStore(host.places.promises).all())
    vms = vms_on(number, seen, streams, promised)
    needs = needs_of_vms(host, vms, given)
    for note in host.notes:
        remark(f"slo-ctl: {note}")
    return suited(facts, needs, found), vms


def named_as_configured(host: VmHost) -> tuple[list[Vm], list[Stream]]:
    """VMs and streams there are; a VM by its cgroup has the name that the configuration gives it."""
    names = {vm.cgroup: vm.name for vm in host.config.vms.values() if vm.cgroup}
    vms = [replace(vm, name=names.get(vm.cgroup or "", vm.name)) for vm in host.inventory.vms]
    streams = [replace(each, vm=names.get(each.cgroup or "", each.vm)) for each in host.inventory.streams]
    return vms, streams


def needs_of_vms(host: VmHost, vms: Sequence[str], given: Given) -> Needs:
    """What the SLOs in force of these VMs need, unless options say otherwise."""
    from slo_ctl.decide.device_needs import needs_on

    needs = needs_on(vms, {name: host.promise(name).slo for name in vms})
    p99, weights = given
    if p99 is not None:
        target_s = time_s_of("--p99", p99)
        if target_s == 0:
            raise UserError("--p99: no device is that fast", "such as 5ms")
        needs = replace(needs, p99_target_us=target_s * 1e6)
    return needs if weights is None else replace(needs, weights=weights)


def cgroup_root_of(host: VmHost, given: Path | None) -> Path:
    """Where cgroups are."""
    return given if given is not None else host.config.cgroup_root
