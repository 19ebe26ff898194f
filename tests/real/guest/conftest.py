"""The fixture `boot`: guests for the tests of this folder, one for a module."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from .build import CannotBuildError
from .host import booted, guest_turn
from .machine import Guest, GuestError, Machine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .drives import Drive

_HERE = Path(__file__).parent
_SHOWN_CHARACTERS = 3000
_running: list[Guest] = []


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


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A test that fails shows the ends of the guest's logs."""
    outcome = yield
    report = outcome.get_result()
    if not report.failed or item.get_closest_marker("guest") is None:
        return
    for guest in _running:
        if guest.runs():
            guest.collect()
        for log in sorted(guest.logs.glob("*.log")):
            text = log.read_text(errors="replace")
            report.sections.append((f"guest: {log}", text[-_SHOWN_CHARACTERS:]))


@pytest.fixture(scope="module")
def boot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Boot]:
    """See `Boot`."""
    current = None

    def end_current() -> None:
        nonlocal current
        if current is not None:
            _running.clear()
            current.__exit__(None, None, None)
            current = None

    def call(
        drives: Sequence[Drive] = (),
        *,
        multipath: bool = False,
        kernel_options: str = "",
        memory_mib: int = 2048,
        cpus: int = 1,
    ) -> Guest:
        nonlocal current
        end_current()
        machine = Machine(tuple(drives), multipath, kernel_options, memory_mib, cpus)
        current = booted(machine, tmp_path_factory.mktemp("guest"))
        try:
            guest = current.__enter__()
        except CannotBuildError as error:
            current = None
            pytest.skip(f"no guest: {error}")
        _running.append(guest)
        return guest

    try:
        with guest_turn():
            yield call
            end_current()
    except GuestError as error:
        pytest.fail(str(error))
