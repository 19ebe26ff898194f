"""What managed block devices are to be set to, decided anew only when something that decides has changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slo_ctl.act.block_queue import why_not_named
from slo_ctl.decide.device_needs import Believed, believe, needs_on, vms_on
from slo_ctl.errors import UserError
from slo_ctl.serra.block_facts import block_facts, has_io_cost
from slo_ctl.serra.identity import Surroundings
from slo_ctl.serra.store import ProfileStore
from slo_ctl.serra.suited import Suited, suited

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from slo_ctl.decide.scheduler_choice import DeviceFacts, Needs
    from slo_ctl.device.places import Places
    from slo_ctl.model import DeviceNumber, Setting, Slo, Stream, Vm
    from slo_ctl.observe.cgroup import CgroupTree
    from slo_ctl.serra.store import Found

AUTO, KEEP = "auto", "keep"


@dataclass(slots=True)
class _Device:
    """What is known of one device from epoch to epoch."""

    number: DeviceNumber
    believed: Believed | None = None
    stamp: int | None = None
    """Of the folder of profiles, as of the last look into it."""
    found: Found | None = None
    damage: str = ""
    """Why the profile on disk is not the one in force."""
    basis: tuple[object, ...] = ()
    decided: Suited | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """What the configuration says of a device."""

    path: str
    scheduler: str
    """`auto`, `keep` or a scheduler."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Who is on the host, and what they are promised."""

    vms: Sequence[Vm]
    streams: Sequence[Stream]
    slos: Mapping[str, Slo]
    promised: Collection[str]


class DevicePolicies:
    """One decision for each device, by `[[device]] scheduler`."""

    def __init__(self, places: Places, sys: Path) -> None:
        self.reasons: dict[str, tuple[str, ...]] = {}
        """By device: what was decided and why, or why nothing is."""
        self.schedulers: dict[str, str] = {}
        """By device: the scheduler it is to have; none for those that stay as they are."""
        self._around = Surroundings(places, sys)
        self._store = ProfileStore(places.state / "profiles")
        self._devices: dict[str, _Device] = {}

    def settings(
        self,
        wishes: Mapping[str, Wish],
        numbers: Mapping[str, DeviceNumber],
        tree: CgroupTree | None,
        situation: Situation,
        now_s: float,
    ) -> list[Setting]:
        """For every device that is there. `now_s` is monotonic time."""
        self.reasons, self.schedulers = {}, {}
        self._devices = {
            name: device for name, device in self._devices.items() if numbers.get(name) == device.number
        }
        io_cost = tree is not None and tree.version == 2 and tree.io and has_io_cost(tree.root)
        found: list[Setting] = []
        for name, number in numbers.items():
            device = self._devices.setdefault(name, _Device(number))
            wish = wishes[name]
            on = vms_on(number, situation.vms, situation.streams, situation.promised)
            device.believed = believe(device.believed, needs_on(on, situation.slos), now_s)
            try:
                found += self._of(name, device, wish, device.believed.needs, io_cost)
            except UserError as error:
                self.reasons[name] = (f"its scheduler stays as it is: {error}",)
        return found

    def label(self, name: str) -> str:
        """The policy of a device in a word or two."""
        scheduler = self.schedulers.get(name)
        return f"scheduler {scheduler}" if scheduler else ""

    def _of(self, name: str, device: _Device, wish: Wish, needs: Needs, io_cost: bool) -> tuple[Setting, ...]:
        if wish.scheduler == KEEP:
            self.reasons[name] = ("its scheduler stays as it is: the configuration says keep",)
            return ()
        problem = why_not_named(wish.path, str(device.number), self._around.sys)
        if problem is not None:
            self.reasons[name] = (f"its scheduler stays as it is: {problem}",)
            return ()
        self._look_for_profile(device)
        facts = block_facts(device.number, self._around, io_cost)
        decided = self._decided(device, facts, needs, None if wish.scheduler == AUTO else wish.scheduler)
        damage = [f"the stored profile is not taken: {device.damage}"] if device.damage else []
        if wish.scheduler == AUTO and not decided.profiled:
            stale = device.found.stale if device.found is not None else "there is none"
            why = device.damage or f"no valid profile: {stale}"
            hint = f"`slo-ctl device profile /dev/{facts.name}` makes one"
            self.reasons[name] = (f"its scheduler stays as it is: {why} ({hint})",)
            return ()
        self.schedulers[name] = decided.choice.scheduler
        told = [f"{each.what} {each.value}: {each.reason}" for each in decided.choice.choices]
        self.reasons[name] = (*told, *decided.choice.cautions, *damage)
        return decided.settings

    @staticmethod
    def _decided(device: _Device, facts: DeviceFacts, needs: Needs, given: str | None) -> Suited:
        updated = (device.found.path, device.found.profile.updated) if device.found is not None else None
        # What is in force decides nothing, or every choice would be looked at once more after it was made.
        basis = (replace(facts, current=""), needs, given, updated)
        if device.decided is None or basis != device.basis:
            device.basis, device.decided = basis, suited(facts, needs, device.found, given)
        return device.decided

    def _look_for_profile(self, device: _Device) -> None:
        """The stored profile, when anything was stored since; a damaged one leaves that in force."""
        try:
            stamp = self._store.folder.stat().st_mtime_ns
        except OSError:
            stamp = 0
        if stamp == device.stamp:
            return
        device.stamp = stamp
        try:
            device.found, device.damage = self._store.of_device(device.number, self._around), ""
        except UserError as error:
            device.damage = str(error)
