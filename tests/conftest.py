"""What holds for all tests: order, and how several processes share them."""

from __future__ import annotations

import re
import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_HERE = Path(__file__).parent
_FIRST = ("real/guest", "real", "packaging")
"""Folders whose tests take longest: they start first, so that short ones fill the time that is left."""
_GROUP = re.compile(r"^(?:GROUP|GUEST) = (.*)$", re.MULTILINE)

# A shell has what it starts in the background ignore Ctrl-C, and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Groups(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a process whole groups of tests, one after the other, for `--dist loadgroup`.

    Tests in `_FIRST` share servers, VMs and packages of their file: a file is a group. Files that share
    something of the machine say the same `GROUP = "..."`. Any other test goes wherever there is time.
    """

    # Not by marks, which pytest-xdist 3.8 does not see under pytest 9.2.
    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0].removeprefix(f"{_HERE.name}/")
        return _group(path) if _place(path) < len(_FIRST) else nodeid


@cache
def _group(path: str) -> str:
    named = _GROUP.search((_HERE / path).read_text(encoding="utf-8"))
    return named[1] if named else path


def _place(path: str) -> int:
    folder = path.rpartition("/")[0]
    return _FIRST.index(folder) if folder in _FIRST else len(_FIRST)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups | None:
    """Ours in place of that of pytest-xdist."""
    return Groups(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that take longest first, files of a group one after the other."""
    paths = {item.path: item.path.relative_to(_HERE).as_posix() for item in items}
    items.sort(key=lambda item: (_place(paths[item.path]), _order(paths[item.path])))


def _order(path: str) -> str:
    return _group(path) if _place(path) < len(_FIRST) else ""
