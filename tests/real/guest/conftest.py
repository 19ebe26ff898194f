"""The fixture `boot`: guests for the tests of this folder, one for a module."""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

import pytest

from .build import CannotBuildError, Parts, ensure
from .host import booted, guest_turn
from .installed import CannotPackageError, built_package, installed_image
from .machine import Guest, Machine

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from .drives import Drive

_HERE = Path(__file__).parent
_SHOWN_CHARACTERS = 3000
_DAEMON_IS_UP = "until systemctl is-active -q slo-ctld; do sleep 0.5; done"
"""sshd answers before; a unit that is still starting cannot be reloaded."""
_DAEMON_S = 240.0
_running: list[Guest] = []
_cannot_have: dict[str, str] = {}


class Boot(Protocol):
    """Boots a guest that lives until the module's tests are done, or skips the test saying why there is none.

    A second call ends the guest before. With `installed`, this tree's Debian package is installed and its
    daemon runs with the example configuration.
    """

    def __call__(
        self,
        drives: Sequence[Drive] = (),
        *,
        installed: bool = False,
        multipath: bool = False,
        kernel_options: str = "",
        memory_mib: int = 2048,
        cpus: int = 1,
    ) -> Guest: ...


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test-quick` leaves out what is marked `guest`."""
    for item in items:
        if _HERE in item.path.parents and "boot" in getattr(item, "fixturenames", ()):
            item.add_marker("guest")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows the ends of the guest's logs."""
    report = yield
    if report.failed and item.get_closest_marker("guest") is not None:
        _show_logs(report)
    return report


def _show_logs(report: pytest.TestReport) -> None:
    for guest in _running:
        if guest.runs():
            guest.collect()
        for log in sorted(guest.logs.glob("*.log")):
            text = log.read_text(errors="replace")
            report.sections.append((f"guest: {log}", text[-_SHOWN_CHARACTERS:]))


@pytest.fixture(scope="module")
def boot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Boot]:
    """See `Boot`."""
    with guest_turn(), ExitStack() as current:

        def call(
            drives: Sequence[Drive] = (),
            *,
            installed: bool = False,
            multipath: bool = False,
            kernel_options: str = "",
            memory_mib: int = 2048,
            cpus: int = 1,
        ) -> Guest:
            current.close()
            _running.clear()
            machine = Machine(tuple(drives), multipath, kernel_options, memory_mib, cpus)
            parts = _parts()
            disk = _installed(parts, tmp_path_factory) if installed else None
            guest = current.enter_context(booted(parts, machine, tmp_path_factory.mktemp("guest"), disk))
            _running.append(guest)
            if installed:
                guest.run(_DAEMON_IS_UP, timeout_s=_DAEMON_S)
            return guest

        yield call
        _running.clear()


def _parts() -> Parts:
    """Skips the test where the guest cannot be built; that is tried once."""
    _skip_again("guest")
    try:
        return ensure()
    except CannotBuildError as error:
        _skip_from_now_on("guest", error)


def _installed(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds and installs the package once a run, whichever of its processes needs it first.

    Skips the test where it cannot be built.
    """
    _skip_again("package")
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # of all processes of the run
    with (shared / "package.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        try:
            package = built_package(shared / "package")
        except CannotPackageError as error:
            _skip_from_now_on("package", error)
        return installed_image(parts, package, tmp_path_factory.mktemp("installing"))


def _skip_again(what: str) -> None:
    if what in _cannot_have:
        pytest.skip(_cannot_have[what])


def _skip_from_now_on(what: str, error: Exception) -> NoReturn:
    _cannot_have[what] = f"no {what}: {error}"
    pytest.skip(_cannot_have[what])
