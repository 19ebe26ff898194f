"""The guests of the tests: each boots once, and is taken by one test file after the other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from .build import CannotBuildError, Parts, ensure
from .drives import Drive, Fdp, Medium, Namespace, NvmeSubsystem, PlainNvme, VirtioDisk
from .installed import image_with_package, install, reset
from .machine import Guest

_SMALL = Medium(128 << 20)
POOL_IOPS = 300
"""Limit of the drive POOL0, for all of its namespaces together: few, as each costs an emulated CPU much."""
_POOLED = Medium(32 << 20, iops_max=POOL_IOPS, iops_group="pool")
PLAIN_IOPS = 1000
"""Limit of the drive of `PLAIN`: else its clients would leave an emulated CPU no time for the daemon."""


@dataclass(frozen=True)
class GuestKind:
    """A guest by its drives. Tests of one kind run one after the other, those of two kinds side by side."""

    name: str
    drives: tuple[Drive, ...]


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
"""One drive of each kind, none of them limited."""
PLAIN = GuestKind("plain", (PlainNvme("PLAIN0", Medium(256 << 20, iops_max=PLAIN_IOPS)),))
"""One drive; its limit, as those of the next two, is the same on every machine."""
LIMITED = GuestKind("limited", (PlainNvme("LIMITED0", Medium(64 << 20, iops_max=2000)),))
"""One for VMs inside of the guest."""
POOL = GuestKind(
    "pool",
    (
        NvmeSubsystem(
            "POOL0", (Namespace(1, _POOLED), Namespace(2, _POOLED), Namespace(5, _POOLED, attached=False))
        ),
    ),
)
"""Namespaces that share the limit of their drive."""


class Guests:
    """At most one guest at a time in this process."""

    def __init__(self, tmp_path_factory: pytest.TempPathFactory, package: Callable[[], Path]) -> None:
        """`package` gives this tree's Debian package; it may skip the test."""
        self._folders = tmp_path_factory
        self._package = package
        self._booted = ExitStack()
        self._kind: GuestKind | None = None
        self._guest: Guest | None = None
        self._has_package = False
        self._unavailable = ""

    @property
    def running(self) -> Guest | None:
        """The guest that is booted now."""
        return self._guest

    def booted(self, kind: GuestKind) -> Guest:
        """A guest of this kind without the package, booted if need be.

        Skips the test where there can be none.
        """
        if self._guest is not None and self._kind == kind and not self._has_package:
            return self._guest
        return self._boot(kind, self._parts().root_image)

    def installed(self, kind: GuestKind) -> Guest:
        """A guest of this kind with the package, configuration and state as installed.

        In a guest that has booted for this the daemon is about to start: stop it, or wait for it by a start.
        """
        if self._guest is not None and self._kind == kind and self._has_package:
            reset(self._guest)
            return self._guest
        parts = self._parts()
        package = self._package()
        image = image_with_package(parts, package)
        guest = self._boot(kind, image or parts.root_image)
        if image is None:
            install(guest, package)
        self._has_package = True
        return guest

    def close(self) -> None:
        """End the guest, if one runs."""
        self._booted.close()
        self._kind = self._guest = None
        self._has_package = False

    def _boot(self, kind: GuestKind, root_image: Path) -> Guest:
        self.close()
        folder = self._folders.mktemp(f"guest-{kind.name}")
        self._guest = Guest(self._parts(), kind.drives, folder, root_image)
        self._booted.callback(self._guest.close)
        self._guest.start()
        self._kind = kind
        return self._guest

    def _parts(self) -> Parts:
        """Tried once: what cannot be built now cannot be built for the next test either."""
        if not self._unavailable:
            try:
                return ensure()
            except CannotBuildError as error:
                self._unavailable = f"no guest: {error}"
        pytest.skip(self._unavailable)
