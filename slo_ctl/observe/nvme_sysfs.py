"""NVMe controllers and their block devices as /sys has them. Names are looked up, NSIDs read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slo_ctl.observe.bounded_file import read_bounded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CONTROLLER = re.compile(r"nvme\d{1,9}")
_BLOCK = re.compile(r"nvme\d{1,9}n\d{1,9}")
_PATH = re.compile(r"(nvme\d{1,9})c\d{1,9}(n\d{1,9})")
"""A hidden block device below a multipath disk: one controller's way to the namespace."""


@dataclass(frozen=True, slots=True)
class Block:
    """A namespace's block device."""

    name: str
    nsid: int | None
    """None: this kernel does not tell."""
    multipath: bool


def controllers(sys: Path) -> list[str]:
    """Names of this host's NVMe controllers, such as `nvme0`."""
    folder = sys / "class" / "nvme"
    found = [each.name for each in _entries(folder) if _CONTROLLER.fullmatch(each.name)]
    return sorted(found, key=lambda name: int(name.removeprefix("nvme")))


def attribute(sys: Path, controller: str, name: str) -> str:
    """Such as `transport`, `address` or `state`; empty when there is none."""
    return _text(sys / "class" / "nvme" / controller / name)


def blocks(sys: Path, controller: str) -> list[Block]:
    """The block devices of the namespaces that this controller has."""
    found = []
    for entry in _entries(sys / "class" / "nvme" / controller):
        if _BLOCK.fullmatch(entry.name):
            found.append(Block(entry.name, _nsid(entry), multipath=False))
        elif path := _PATH.fullmatch(entry.name):
            # The disk that is used is the subsystem's, and has the NSID too.
            found.append(Block(path[1] + path[2], _nsid(entry), multipath=True))
    return sorted(found, key=lambda block: block.name)


def controllers_of(sys: Path, block: str) -> list[str]:
    """Controllers that have the namespace behind a block device such as `nvme0n1`; several with multipath."""
    if not _BLOCK.fullmatch(block):
        return []
    return [name for name in controllers(sys) if any(each.name == block for each in blocks(sys, name))]


def _nsid(folder: Path) -> int | None:
    text = _text(folder / "nsid")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None


def _text(path: Path) -> str:
    try:
        file = read_bounded(path)
    except OSError:
        # A controller that is being reset refuses; so does an attribute for root only.
        return ""
    return file.text.strip() if file else ""


def _entries(folder: Path) -> Iterator[Path]:
    try:
        yield from folder.iterdir()
    except OSError:
        return
