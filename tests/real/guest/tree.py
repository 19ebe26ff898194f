"""This tree's Python code in a guest, for tests that need no installed package."""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from .recipe import TREE

if TYPE_CHECKING:
    from .machine import Guest

PLACE = "/root/tree"
"""Where it lies in there; for PYTHONPATH."""


def put_tree(guest: Guest) -> None:
    """Copy `slo_ctl` to PLACE. In one file: scp takes a while for each, under emulation."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "tree.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(TREE / "slo_ctl", "slo_ctl", filter=_without_caches)
        guest.put(archive, "/root/tree.tar")
    guest.run(f"mkdir -p {PLACE} && tar -C {PLACE} -xf /root/tree.tar")


def _without_caches(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in member.name else member
