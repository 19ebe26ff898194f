"""The emulated devices that are managed at present."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from slo_ctl.act.journal import Journal, JournalError
from slo_ctl.base.clock import SYSTEM_CLOCK, Clock
from slo_ctl.base.errors import UserError
from slo_ctl.base.files import modified_ns
from slo_ctl.config.settings import Config, DaemonConfig
from slo_ctl.daemon.ssd import EmulatedDevice
from slo_ctl.drives.control import Connect, ControlClient
from slo_ctl.drives.places import Places
from slo_ctl.drives.record import RECORD_FILE, SETTINGS_FILE, DeviceRecord, read_settings
from slo_ctl.drives.store import DeviceStore
from slo_ctl.model.host import Tenant
from slo_ctl.model.sample import ShareBy
from slo_ctl.model.setting import FTL_LEVERS
from slo_ctl.profile.identity import IdentitySources
from slo_ctl.profile.store import ProfileStore, valid_analysis

log = logging.getLogger("slo_ctl.daemon")

_Changes = frozenset[tuple[str, int]]
"""Namespaces created or deleted since the record was written: name and time of creation; 0: deleted."""
_Version = tuple[int, int, _Changes]
"""Inode and modification time of a device's record, and the changes of its namespaces."""


class EmulatedDevices:
    """All emulated devices that are served or listed in the configuration."""

    def __init__(
        self,
        places: Places,
        journal: Journal,
        clock: Clock = SYSTEM_CLOCK,
        connect: Connect = ControlClient,
    ) -> None:
        self.devices: dict[str, EmulatedDevice] = {}
        self.names: frozenset[str] = frozenset()
        """All emulated devices, also those that are not managed."""
        self.notes: list[str] = []
        """Configured devices that cannot be used."""
        self._store = DeviceStore(places)
        self._journal = journal
        self._clock = clock
        self._connect = connect
        self._versions: dict[str, _Version] = {}
        self._changes: dict[str, tuple[int, _Changes]] = {}
        """By name: modification time of the settings that were read, and their changes of namespaces."""
        self._config = DaemonConfig()
        self._sources = IdentitySources(places)
        self._profiles = ProfileStore(places.state / "profiles")
        self._profiled: dict[str, tuple[int, EmulatedDevice]] = {}
        """By name: modification time of the stored profiles, and the device to which they were applied."""

    def refresh(self, config: Config) -> None:
        """Follow the configuration and the devices on disk."""
        self.notes = []
        changed = _options_of_devices(config.daemon) != _options_of_devices(self._config)
        self._config = config.daemon
        listed = {device.name: device for device in config.devices if device.path is None}
        self.names = existing = frozenset(self._store.names())
        for name in listed.keys() - existing:
            self.notes.append(f"device {name} ({listed[name].source}): no such emulated device: {name}")
        for name in self.devices.keys() - existing:
            self._close(name)
        kept: dict[str, Any]
        for kept in (self._versions, self._changes, self._profiled):
            for name in kept.keys() - existing:
                del kept[name]
        for name in sorted(existing):
            policy = config.daemon.policy_or(listed[name].policy if name in listed else None)
            self._refresh_device(name, policy, listed=name in listed, changed=changed)
            if name in self.devices:
                scheduler = listed[name].scheduler if name in listed else "keep"
                self.devices[name].configured_scheduler = scheduler
        self._load_profiles()

    def may_be_served(self, name: str) -> bool:
        """Whether a server has locked the device, or the lock cannot be read."""
        try:
            return self._store.is_served(name)
        except (UserError, OSError):
            return True

    def forget_deleted(self) -> None:
        """Remove the original values of devices that were deleted from the journal."""
        gone = [
            knob
            for knob in self._journal.originals()
            if knob.lever in FTL_LEVERS and not self._store.places.device(knob.emulated_device).exists()
        ]
        # If the journal cannot be written, they are only tried in vain.
        with suppress(JournalError):
            self._journal.remove(gone)

    def _load_profiles(self) -> None:
        """Load stored profiles if any was stored since, or a device was replaced; ignore damaged ones."""
        stored_ns = modified_ns(self._profiles.folder)
        for name, device in self.devices.items():
            if self._profiled.get(name) == (stored_ns, device):
                continue
            self._profiled[name] = (stored_ns, device)
            try:
                found = self._profiles.of_emulated(device.record, self._sources)
            except UserError as error:
                log.warning("device %s: stored profile ignored: %s", name, error)
                continue
            device.profile = valid_analysis(found)

    def _refresh_device(self, name: str, policy: str, *, listed: bool, changed: bool) -> None:
        version = self._version(name)
        last = self.devices.get(name)
        if last is not None and self._versions.get(name) == version and not changed:
            last.set_policy(policy)
            return
        try:
            if last is None and not listed and not self._store.is_served(name):
                return
            record = self._store.load(name)
            capacity_bytes = self._store.capacity_bytes(record)
        except UserError as error:
            self.notes.append(str(error))
            return
        except OSError as error:
            self.notes.append(f"device {name}: {error.strerror}: not managed")
            return
        same_device = last is not None and last.record.created == record.created
        if last is not None:
            self._close(name)
        self._journal.identify(_identities(record, version[2]))
        run = self._store.places.run_of(name)
        device = EmulatedDevice(
            record,
            run,
            self._journal,
            policy,
            self._config,
            capacity_bytes=capacity_bytes,
            clock=self._clock,
            connect=self._connect,
        )
        if same_device:
            device.keep_split()
        self.devices[name], self._versions[name] = device, version

    def _close(self, name: str) -> None:
        device = self.devices.pop(name)
        device.close()
        self._journal.forget(_identities(device.record, frozenset()))

    def _version(self, name: str) -> _Version:
        folder = self._store.places.device(name)
        try:
            record = (folder / RECORD_FILE).stat()
        except OSError:
            return (0, 0, frozenset())
        return record.st_ino, record.st_mtime_ns, self._namespace_changes(name)

    def _namespace_changes(self, name: str) -> _Changes:
        folder = self._store.places.device(name)
        written_ns = modified_ns(folder / SETTINGS_FILE)
        if not written_ns:
            return frozenset()
        read_ns, changes = self._changes.get(name, (0, frozenset[tuple[str, int]]()))
        if read_ns != written_ns:
            try:
                settings = read_settings(folder)
            except UserError:
                return changes  # The server reports the error.
            created = {(entry.namespace.name, entry.created_ns) for entry in settings.created}
            changes = frozenset(created | {(deleted, 0) for deleted in settings.deleted})
            self._changes[name] = (written_ns, changes)
        return changes

    def close(self) -> None:
        for device in self.devices.values():
            device.close()


def _options_of_devices(config: DaemonConfig) -> tuple[float, ShareBy, float]:
    """Options with which a device is opened again after they have changed."""
    return config.window_s, config.share_by, config.move_budget


def _identities(record: DeviceRecord, changes: _Changes) -> dict[str, str]:
    """When the device and each of its namespaces were created, by place of their knobs."""
    created = dict(change for change in changes if change[1])
    namespaces = {
        str(Tenant(record.name, ns.name)): f"{record.created} {created.get(ns.name, 0)}"
        for ns in record.namespace
    }
    return {record.name: record.created, **namespaces}
