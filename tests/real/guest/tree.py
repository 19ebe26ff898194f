"""This tree's Python code in a guest, for tests that need no installed package."""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path

from .machine import Guest
from .recipe import TREE

PLACE = "/root/tree"
"""Where it lies in there; for PYTHONPATH."""


def put_tree(guest: Guest) -> None:
    """Copy the Python packages to PLACE, unless they are there. In one file, as scp is slow."""
    if guest.run(f"[ -d {PLACE} ]", check=False).rc == 0:
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "tree.tar"
        with tarfile.open(archive, "w") as tar:
            for package in ("slo_ctl", "fsim", "lab", "papers"):
                tar.add(TREE / package, package, filter=_without_caches)
        guest.put(archive, "/root/tree.tar")
    guest.run(f"mkdir -p {PLACE} && tar -C {PLACE} -xf /root/tree.tar")


def _without_caches(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in member.name else member
