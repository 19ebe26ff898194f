"""The emulated devices that are managed: which there are at the moment."""

from __future__ import annotations

import logging

from slo_ctl.act.journal import Journal
from slo_ctl.base.clock import SYSTEM_CLOCK, Clock
from slo_ctl.base.errors import UserError
from slo_ctl.config import Config
from slo_ctl.daemon.ssd import EmulatedDevice
from slo_ctl.decide.policies import DEFAULT_POLICY, STRICT_POLICY
from slo_ctl.drives.control import Connect, ControlClient
from slo_ctl.drives.places import Places
from slo_ctl.drives.record import RECORD_FILE, SETTINGS_FILE, read_settings
from slo_ctl.drives.store import DeviceStore
from slo_ctl.model import ShareBy
from slo_ctl.profile.identity import IdentitySources
from slo_ctl.profile.store import ProfileStore

log = logging.getLogger("slo_ctl.daemon")

_Identity = tuple[int, int, frozenset[tuple[str, int]]]
"""Inode and time of change of its record; namespaces that came and went since, with when they came."""


class EmulatedDevices:
    """Every emulated device that is served or listed in the configuration."""

    def __init__(
        self,
        places: Places,
        journal: Journal,
        clock: Clock = SYSTEM_CLOCK,
        connect: Connect = ControlClient,
    ) -> None:
        self.devices: dict[str, EmulatedDevice] = {}
        self.notes: list[str] = []
        """Configured devices that cannot be used."""
        self._store = DeviceStore(places)
        self._journal = journal
        self._clock = clock
        self._connect = connect
        self._identities: dict[str, _Identity] = {}
        self._changed: dict[str, tuple[int, frozenset[tuple[str, int]]]] = {}
        """Namespaces that came and went, and the time of change of the settings that were read."""
        self._general = (0.0, ShareBy.PAGES, 0.0)
        self._around = IdentitySources(places)
        self._profiles = ProfileStore(places.state / "profiles")
        self._profiled: dict[str, tuple[int, EmulatedDevice]] = {}
        """By name: when the last profile was stored, and for which device it was looked for."""

    def refresh(self, config: Config) -> None:
        """Bring them up to date with what is there and what is configured."""
        self.notes = []
        general = (config.daemon.window_s, config.daemon.share_by, config.daemon.move_budget)
        changed, self._general = general != self._general, general
        listed = {device.name: device for device in config.devices if device.path is None}
        there = set(self._store.names())
        for name in listed.keys() - there:
            self.notes.append(f"device {name} ({listed[name].source}): no such emulated device: {name}")
        for name in self.devices.keys() - there:
            self._drop(name)
        for name in sorted(there):
            policy = (listed[name].policy if name in listed else None) or config.daemon.policy
            if config.daemon.strict and policy == DEFAULT_POLICY:
                policy = STRICT_POLICY
            self._refresh_emulated(name, policy, listed=name in listed, changed=changed)
            if name in self.devices:
                wish = listed[name].scheduler if name in listed else "keep"
                self.devices[name].configured_scheduler = wish
        self._look_for_profiles()

    def _look_for_profiles(self) -> None:
        """Stored profiles, when any was stored or a device was replaced since; a damaged one leaves that in
        force."""
        try:
            stored_ns = self._profiles.folder.stat().st_mtime_ns
        except OSError:
            stored_ns = 0
        for name, device in self.devices.items():
            basis = (stored_ns, device)
            if self._profiled.get(name) == basis:
                continue
            self._profiled[name] = basis
            try:
                found = self._profiles.of_emulated(device.record, self._around)
            except UserError as error:
                log.warning("device %s: stored profile ignored: %s", name, error)
                continue
            device.profile = found.record.analysis() if found is not None and not found.stale else None

    def _refresh_emulated(self, name: str, policy: str, *, listed: bool, changed: bool) -> None:
        identity = self._identity(name)
        known = self.devices.get(name)
        if known is not None and self._identities.get(name) == identity and not changed:
            known.choose(policy)
            return
        try:
            if known is None and not listed and not self._store.is_served(name):
                return
            record = self._store.load(name)
        except UserError as error:
            self.notes.append(str(error))
            return
        except OSError as error:
            self.notes.append(f"device {name}: {error.strerror}: not managed")
            return
        same_device = known is not None and known.record.created == record.created
        if known is not None:
            self._drop(name)
        run = self._store.places.run_of(name)
        window_s, share_by, move_budget = self._general
        device = EmulatedDevice(
            *(record, run, self._journal, policy, window_s, share_by),
            clock=self._clock,
            connect=self._connect,
        )
        device.move_budget = move_budget
        if same_device:
            device.take_over()
        self.devices[name], self._identities[name] = device, identity

    def _identity(self, name: str) -> _Identity:
        folder = self._store.places.device(name)
        try:
            found = (folder / RECORD_FILE).stat()
        except OSError:
            return (0, 0, frozenset())
        return found.st_ino, found.st_mtime_ns, self._namespaces_changed(name)

    def _namespaces_changed(self, name: str) -> frozenset[tuple[str, int]]:
        folder = self._store.places.device(name)
        try:
            written_ns = (folder / SETTINGS_FILE).stat().st_mtime_ns
        except OSError:
            return frozenset()
        read_ns, changed = self._changed.get(name, (0, frozenset[tuple[str, int]]()))
        if read_ns != written_ns:
            try:
                settings = read_settings(folder)
            except UserError:
                return changed  # the server says what is wrong
            created = {(each.namespace.name, each.created_ns) for each in settings.created}
            changed = frozenset(created | {(each, 0) for each in settings.deleted})
            self._changed[name] = (written_ns, changed)
        return changed

    def _drop(self, name: str) -> None:
        self.devices.pop(name).close()

    def close(self) -> None:
        """Hang up everywhere."""
        for device in self.devices.values():
            device.close()
