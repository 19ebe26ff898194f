"""The guests of the tests: each boots once and is used by several test files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from debian_package import CannotPackageError

from .build import CannotBuildError, Parts, ensure
from .drives import Drive, Fdp, Medium, Namespace, NvmeSubsystem, PlainNvme, VirtioDisk
from .installed import STOP_DAEMON, image_with_package, install, properties, reset
from .machine import Guest

_SMALL = Medium(128 << 20)
POOL_IOPS = 300
"""Limit of the drive POOL0 for all of its namespaces; low, because each request costs much CPU time."""
_POOLED = Medium(32 << 20, iops_max=POOL_IOPS, iops_group="pool")
_WANTED = ("ssh", "systemd-networkd", "guest-ready")
_ONLY_WANTED = ("systemd.unit=basic.target", *(f"systemd.wants={each}.service" for each in _WANTED))
"""slo-ctld and libvirtd start slowly under emulation: tests start the first, a socket the second."""
AT_BOOT = ("ActiveState", "Type", "NRestarts", "UnitFileState", "WatchdogUSec")
"""Properties of the daemon's unit that are recorded after a boot that starts it."""
_BOOTED_S = 600
PLAIN_IOPS = 400
"""Limit of the drive PLAIN0: a request costs more than a millisecond of emulated CPU time."""
_LIMITED_IOPS = 200
"""Limit of the drive LIMITED0: a request of a VM in the guest costs several milliseconds."""


@dataclass(frozen=True)
class GuestKind:
    """A guest, defined by its drives. Tests of one kind run sequentially, those of two kinds in parallel."""

    name: str
    drives: tuple[Drive, ...]
    boot_options: tuple[str, ...] = ()

    @property
    def starts_daemon(self) -> bool:
        """Whether a boot starts the daemon, as on a host."""
        return not self.boot_options


GENERAL = GuestKind(
    "general",
    (
        PlainNvme("PLAIN0", Medium(256 << 20)),
        VirtioDisk("VIRTIO0", Medium(64 << 20)),
        NvmeSubsystem(
            "MULTI0",
            (Namespace(1, _SMALL), Namespace(2, _SMALL), Namespace(3, _SMALL, attached=False)),
            ocp=True,
        ),
        NvmeSubsystem(
            "FDP0",
            (Namespace(1, _SMALL, fdp_handles="0-3"), Namespace(2, _SMALL, fdp_handles="4-7")),
            fdp=Fdp(reclaim_unit_bytes=16 << 20, handles=8),
        ),
    ),
)
"""One drive of each kind, without limits; all services of the image start at boot."""
PLAIN = GuestKind(
    "plain",
    (
        PlainNvme("PLAIN0", Medium(256 << 20, iops_max=PLAIN_IOPS)),
        PlainNvme("LIMITED0", Medium(64 << 20, iops_max=_LIMITED_IOPS)),
    ),
    _ONLY_WANTED,
)
"""A drive, and one for VMs in the guest; their limits, like that below, are the same on every machine."""
POOL = GuestKind(
    "pool",
    (
        NvmeSubsystem(
            "POOL0", (Namespace(1, _POOLED), Namespace(2, _POOLED), Namespace(5, _POOLED, attached=False))
        ),
    ),
    _ONLY_WANTED,
)
"""A drive with namespaces that share its limit."""


class Guests:
    """At most one running guest in this process."""

    def __init__(self, tmp_path_factory: pytest.TempPathFactory, package: Callable[[], Path]) -> None:
        """`package` builds this tree's Debian package, or raises CannotPackageError."""
        self._folders = tmp_path_factory
        self._package = package
        self._booted = ExitStack()
        self._kind: GuestKind | None = None
        self._guest: Guest | None = None
        self._has_package = False
        self._unavailable = ""
        self.daemon_at_boot: dict[str, str] = {}
        """The values of `AT_BOOT` after the guest had booted; empty if it booted without the daemon."""

    @property
    def running(self) -> Guest | None:
        """The guest that runs now."""
        return self._guest

    def booted(self, kind: GuestKind) -> Guest:
        """A guest of this kind without a running daemon, booted if needed; with the package if possible.

        Skips the test if there can be no guest.
        """
        if self._guest is not None and self._kind == kind:
            return self._guest
        try:
            image = image_with_package(self._parts(), self._package())
        except CannotPackageError:
            image = None
        return self._boot(kind, image)

    def installed(self, kind: GuestKind) -> Guest:
        """A guest of this kind with the package, configuration and state as installed; no daemon runs.

        Skips the test if the guest or the package cannot be built.
        """
        if self._guest is not None and self._kind == kind and self._has_package:
            reset(self._guest)
            return self._guest
        try:
            package = self._package()
        except CannotPackageError as error:
            pytest.skip(f"no package: {error}")
        image = image_with_package(self._parts(), package)
        guest = self._boot(kind, image)
        if image is None:
            install(guest, package)
            self._has_package = True
        return guest

    def close(self) -> None:
        """Stop the guest, if one runs."""
        self._booted.close()
        self._kind = self._guest = None
        self._has_package = False

    def _boot(self, kind: GuestKind, image_with_package: Path | None) -> Guest:
        self.close()
        folder = self._folders.mktemp(f"guest-{kind.name}")
        parts = self._parts()
        self._guest = guest = Guest(parts, kind.drives, folder, image_with_package, kind.boot_options)
        self._booted.callback(guest.close)
        guest.start()
        self._kind, self._has_package = kind, image_with_package is not None
        self.daemon_at_boot = {}
        if self._has_package:
            if kind.starts_daemon:
                guest.run("systemctl is-system-running --wait", timeout_s=_BOOTED_S, check=False)
                self.daemon_at_boot = properties(guest, *AT_BOOT)
            guest.run(STOP_DAEMON)
        return guest

    def _parts(self) -> Parts:
        """Cached: if the guest cannot be built for one test, it cannot be built for the next one either."""
        if not self._unavailable:
            try:
                return ensure()
            except CannotBuildError as error:
                self._unavailable = f"no guest: {error}"
        pytest.skip(self._unavailable)
