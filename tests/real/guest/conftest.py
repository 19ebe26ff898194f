"""The fixture `boot`: guests for the tests of this folder, one for a module."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from .build import CannotBuildError, Parts, ensure
from .host import booted, guest_turn
from .machine import Guest, Machine

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from .drives import Drive

_HERE = Path(__file__).parent
_SHOWN_CHARACTERS = 3000
_running: list[Guest] = []
_cannot_build: list[str] = []


class Boot(Protocol):
    """Boots a guest that lives until the module's tests are done, or skips the test saying why there is none.

    A second call ends the guest before.
    """

    def __call__(
        self,
        drives: Sequence[Drive] = (),
        *,
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
            multipath: bool = False,
            kernel_options: str = "",
            memory_mib: int = 2048,
            cpus: int = 1,
        ) -> Guest:
            current.close()
            _running.clear()
            machine = Machine(tuple(drives), multipath, kernel_options, memory_mib, cpus)
            guest = current.enter_context(booted(_parts(), machine, tmp_path_factory.mktemp("guest")))
            _running.append(guest)
            return guest

        yield call
        _running.clear()


def _parts() -> Parts:
    """Skips the test where the guest cannot be built; that is tried once."""
    if _cannot_build:
        pytest.skip(_cannot_build[0])
    try:
        return ensure()
    except CannotBuildError as error:
        _cannot_build.append(f"no guest: {error}")
        pytest.skip(_cannot_build[0])
