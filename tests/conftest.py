"""What holds for all tests: order, how several processes share them, and how long each of them took."""

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
"""Folders whose tests share servers, VMs and packages of their file."""
_GROUP = re.compile(r"^(GROUP|GUEST) = \"?(.*?)\"?$", re.MULTILINE)
_GUEST = "guest "
_RECORDED = _HERE / "durations.txt"
_MEASURED = _HERE.parent / "build" / "test-durations.txt"
"""Written by each complete run; a copy of it replaces `_RECORDED` when the order is no longer good."""
_LEAST_RECORDED_S = 3.0

# Other work on the machine must not fail a test, and what passed passes again if nothing is changed: each run
# has the same examples, unless a number of them is asked for. Tests that need other numbers say so.
_EXAMPLES = os.environ.get("SLO_CTL_EXAMPLES")
settings.register_profile(
    "slo-ctl", deadline=None, max_examples=int(_EXAMPLES or 40), derandomize=_EXAMPLES is None
)
settings.load_profile("slo-ctl")

# A shell has what it starts in the background ignore Ctrl-C, and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Groups(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a process whole groups of tests, one after the other, for `--dist loadgroup`.

    In `_IN_FILES` a file is a group. Files that share something of the machine say the same `GROUP = "..."`,
    those that share a guest the same `GUEST`. Any other test is a group of its own.
    """

    # Not by marks, which pytest-xdist 3.8 does not see under pytest 9.2.
    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def group_of(nodeid: str) -> str:
    """What its tests run one after the other with; of one that has no group its own name."""
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
    """How long groups took, from lines such as `61 real/test_three_vms.py`."""
    lines = _RECORDED.read_text(encoding="utf-8").splitlines()
    words = (line.split(maxsplit=1) for line in lines if not line.startswith("#"))
    return {group: float(seconds) for seconds, group in words}


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups | None:
    """Ours in place of that of pytest-xdist."""
    return Groups(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Without garbage collection, which finds nothing in what is imported, now or while tests run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Guests first, then the groups that take longest, so that short ones fill the time that is left."""
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
    """Set-up, test and tear-down; of all processes, in the one that started them."""
    _took_s[group_of(report.nodeid)] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """After a run of all processes, add how long each group took."""
    if session.config.getvalue("dist") != "loadgroup" or not _MEASURED.parent.is_dir():
        return
    longest = sorted(_took_s.items(), key=lambda each: -each[1])
    lines = [f"{took_s:.0f} {group}\n" for group, took_s in longest if took_s >= _LEAST_RECORDED_S]
    with _MEASURED.open("a", encoding="utf-8") as file:
        file.writelines(lines)
