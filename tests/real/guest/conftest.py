"""The fixtures `booted` and `installed`: guests that boot once for several test files."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import debian_package
import pytest

from .guests import Guests
from .machine import Guest

_HERE = Path(__file__).parent
_SHOWN_CHARACTERS = 3000
_guests: list[Guests] = []
"""Guests of this process, for the logs of a failed test."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need a guest before `-m` selects; group tests by guest and image."""
    slots = [number for number, item in enumerate(items) if _HERE in item.path.parents]
    ordered = sorted((items[number] for number in slots), key=_order)
    for number, item in zip(slots, ordered, strict=True):
        items[number] = item
        item.add_marker("guest")


def _order(item: pytest.Item) -> tuple[str, bool]:
    module = item.getparent(pytest.Module)
    assert module is not None
    names = getattr(item, "fixturenames", ())
    return module.obj.GUEST.name, "installed" in names


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the ends of the guest's logs for a failed test."""
    report = yield
    if report.failed and item.get_closest_marker("guest") is not None:
        for guests in _guests:
            _show_logs(guests.running, report)
    return report


def _show_logs(guest: Guest | None, report: pytest.TestReport) -> None:
    if guest is None:
        return
    if guest.runs():
        guest.collect()
    for log in sorted(guest.logs.glob("*.log")):
        text = log.read_text(errors="replace")
        report.sections.append((f"guest: {log}", text[-_SHOWN_CHARACTERS:]))


@pytest.fixture(scope="package")
def guests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guests]:
    """The guests of this process."""

    def package() -> Path:
        return debian_package.debian_package(debian_package.shared_folder(tmp_path_factory))

    made = Guests(tmp_path_factory, package)
    _guests.append(made)
    yield made
    made.close()
    _guests.remove(made)


@pytest.fixture(scope="module")
def booted(request: pytest.FixtureRequest, guests: Guests) -> Guest:
    """A guest of the kind that the module's `GUEST` specifies, shared with other modules."""
    return guests.booted(request.module.GUEST)


@pytest.fixture(scope="module")
def installed(request: pytest.FixtureRequest, guests: Guests) -> Guest:
    """The same with the Debian package, and configuration and state as installed. See `Guests.installed`."""
    return guests.installed(request.module.GUEST)
