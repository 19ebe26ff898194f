"""The block devices that are managed: one epoch of each, and what is to be set for the VMs on them."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from slo_ctl.act.capabilities import probe
from slo_ctl.daemon.blocks import BlockPart
from slo_ctl.daemon.device_policies import DevicePolicies, Wish
from slo_ctl.daemon.mixes import Mixes
from slo_ctl.daemon.parts import guarded_view
from slo_ctl.daemon.wanted import WantedSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slo_ctl.config import Config
    from slo_ctl.daemon.device_policies import Situation
    from slo_ctl.daemon.observer import Observer
    from slo_ctl.daemon.parts import DeviceView
    from slo_ctl.daemon.problems import Problems
    from slo_ctl.decide.levers import Wanted
    from slo_ctl.decide.limit_settings import HeldBack
    from slo_ctl.device.places import Places
    from slo_ctl.model import DeviceNumber, Setting, Slo, Stream, Vm
    from slo_ctl.observe.cgroup import CgroupTree
    from slo_ctl.observe.inventory import Inventory
    from slo_ctl.observe.task_delay import BlockDelay


class BlockDevices:
    """Every block device that the configuration lists."""

    def __init__(self, places: Places, sys: Path, run: Path, problems: Problems) -> None:
        self.parts: dict[str, BlockPart] = {}
        self.policies = DevicePolicies(places, sys)
        self._sys = sys
        self._run = run
        self._problems = problems
        self._wanted_settings = WantedSettings()
        self._mixes = Mixes()
        self._wishes: dict[str, Wish] = {}
        self._window_s = 0.0

    def refresh(self, config: Config) -> None:
        """Bring them up to date with what is configured."""
        changed, self._window_s = config.daemon.window_s != self._window_s, config.daemon.window_s
        self._wishes = {each.name: Wish(each.path, each.scheduler) for each in config.devices if each.path}
        for name, part in list(self.parts.items()):
            if changed or name not in self._wishes or self._wishes[name].path != str(part.path):
                self.parts.pop(name).close()
        for name, wish in self._wishes.items():
            if name not in self.parts:
                self.parts[name] = BlockPart(name, Path(wish.path), self._sys, self._window_s)

    @property
    def numbers(self) -> dict[str, DeviceNumber]:
        """Of those that are there."""
        return {part.name: part.number for part in self.parts.values() if part.number is not None}

    def look(self, inventory: Inventory, observer: Observer) -> None:
        """Take an epoch into account."""
        parts = self.parts.values()
        # Of VMs that do nothing on any of them it does not matter what they wait for.
        active = set().union(*(part.active for part in parts))
        delays = observer.delays(inventory, active)[0] if active else {}
        for part in parts:
            self._problems.guarded(part.name, partial(_look_at, part, inventory.streams, delays))

    def wanted(
        self, tree: CgroupTree | None, situation: Situation, default_weight: float, *, dry_run: bool
    ) -> Wanted:
        """What is to be set for the VMs; after `look`."""
        slos, streams, numbers = situation.slos, situation.streams, self.numbers
        capabilities = probe(tree, self._sys, numbers.values(), self._run)
        # A dry run holds nobody back: it would see nothing come of it.
        held = {} if dry_run else self._held(slos)
        self._mixes.look(streams, slos, set(numbers.values()), held)
        return self._wanted_settings.of(
            *(situation.vms, slos, streams, numbers, capabilities, set(situation.promised)),
            *(default_weight, self._mixes.splits, held),
        )

    def _held(self, slos: Mapping[str, Slo]) -> dict[tuple[str, DeviceNumber], HeldBack]:
        """Limits for others' sake."""
        held = {}
        for part in self.parts.values():
            number = part.number
            if number is None:
                continue
            limitable = self._wanted_settings.limitable(part.name)
            self._problems.guarded(part.name, partial(part.protect, slos, limitable))
            held.update({(vm, number): limit for vm, limit in part.held.items()})
        return held

    def for_devices(self, tree: CgroupTree | None, situation: Situation) -> list[Setting]:
        """What the devices as a whole are to be set to."""
        return self.policies.settings(self._wishes, self.numbers, tree, situation, time.monotonic())

    def views(self, wanted: Wanted, vms: Sequence[Vm], slos: Mapping[str, Slo]) -> list[DeviceView]:
        """For the status."""
        views = []
        for part in self.parts.values():
            used = {vm: slos[vm] for vm, device in wanted.backends if device == part.name}
            disks = {
                vm.name: tuple(disk.target for disk in vm.disks if disk.device == part.number)
                for vm in vms
                if vm.name in used
            }
            view = guarded_view(part.name, part.kind, partial(part.view, used, disks, wanted), self._problems)
            told = (*self.policies.reasons.get(part.name, ()), *view.reasons)
            views.append(replace(view, policy=self.policies.label(part.name), reasons=told))
        return views

    def close(self) -> None:
        """Let go of all."""
        for part in self.parts.values():
            part.close()


def _look_at(part: BlockPart, streams: Sequence[Stream], delays: Mapping[str, BlockDelay]) -> None:
    part.find()
    part.look(streams, delays)
