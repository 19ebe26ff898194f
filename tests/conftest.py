"""Rules for all tests: order, distribution over processes, and recording of their durations."""

from __future__ import annotations

import gc
import os
import re
import signal
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

_HERE = Path(__file__).parent
_IN_FILES = ("real/guest", "real", "packaging")
"""Folders in which the tests of a file share servers, VMs and packages."""
_GROUP = re.compile(r"^(GROUP|GUEST) = \"?(.*?)\"?$", re.MULTILINE)
_GUEST = "guest "
_RECORDED = _HERE / "durations.txt"
_MEASURED = _HERE.parent / "build" / "test-durations.txt"
"""Written by each complete run; copy it to `_RECORDED` when the order is out of date."""
_LEAST_RECORDED_S = 3.0

# Other work on the machine must not fail a test, and results must be reproducible: each run tries the same
# examples, unless a number of examples is requested. Tests that need another number set it themselves.
_EXAMPLES = os.environ.get("SLO_CTL_EXAMPLES")
settings.register_profile(
    "slo-ctl", deadline=None, max_examples=int(_EXAMPLES or 40), derandomize=_EXAMPLES is None
)
settings.load_profile("slo-ctl")

# Programs started by tests buffer their output as they do for a user.
os.environ.pop("PYTHONUNBUFFERED", None)

# Shells start background jobs with SIGINT ignored, which programs started by tests would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Groups(LoadScopeScheduling):  # type: ignore[misc]
    """Assign whole groups of tests to a process, which runs them sequentially, for `--dist loadgroup`.

    In `_IN_FILES` a file is a group. Files that share a resource of the machine have the same
    `GROUP = "..."`, those that share a guest the same `GUEST`. Any other test is its own group.
    """

    # Not by marks, which pytest-xdist 3.8 does not see with pytest 9.2.
    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def group_of(nodeid: str) -> str:
    """The group of a test; its own name if it has no group."""
    path = nodeid.partition("::")[0].removeprefix(f"{_HERE.name}/")
    return _group_of_file(path) if path.rpartition("/")[0] in _IN_FILES else nodeid


@cache
def _group_of_file(path: str) -> str:
    named = _GROUP.search((_HERE / path).read_text(encoding="utf-8"))
    if named is None:
        return path
    return _GUEST + named[2] if named[1] == "GUEST" else named[2]


@cache
def _recorded_s() -> dict[str, float]:
    """Durations of groups, from lines such as `61 real/test_three_vms.py`."""
    lines = _RECORDED.read_text(encoding="utf-8").splitlines()
    words = (line.split(maxsplit=1) for line in lines if not line.startswith("#"))
    return {group: float(seconds) for seconds, group in words}


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups | None:
    """Use `Groups` instead of the scheduler of pytest-xdist."""
    return Groups(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without garbage collection: imported modules are never garbage, also while tests run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run guests first, then the longest groups, so that short ones fill the remaining time."""
    items.sort(key=_order)


def _order(item: pytest.Item) -> tuple[bool, float, str]:
    group = group_of(item.nodeid)
    alone = group == item.nodeid
    return (
        not group.startswith(_GUEST),
        -_recorded_s().get(group, 0.0 if alone else 1.0),
        "" if alone else group,
    )


_took_s: defaultdict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up set-up, test and tear-down; called in the main process for the reports of all processes."""
    _took_s[group_of(report.nodeid)] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """After a parallel run, write the duration of each group."""
    if session.config.getvalue("dist") != "loadgroup" or not _MEASURED.parent.is_dir():
        return
    longest = sorted(_took_s.items(), key=lambda each: -each[1])
    lines = [f"{took_s:.0f} {group}\n" for group, took_s in longest if took_s >= _LEAST_RECORDED_S]
    with _MEASURED.open("a", encoding="utf-8") as file:
        file.writelines(lines)
