"""FEMU's FTL, for bench/peers.py: compiled from a checkout of FEMU and called without QEMU (femu_ftl.c).

FEMU itself is a QEMU whose SSD delays the guest: its times are valid only with KVM and with polling threads
on dedicated CPUs. The FTL and its timing model are the same here; the clock is that of the trace.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from peer_programs import SECTOR_BYTES, Flash, PeerError, Requests, cpu_s_of
from peer_work import Drive, Phase, write_lines

FEMU_GC_PERCENT = 99
"""Percentage of lines in use when GC begins; FEMU's own 75 would leave no drive of these sizes."""
_SOURCE = Path(__file__).with_name("femu_ftl.c")
_FTL = "hw/femu/bbssd/ftl.c"


class Femu:
    """The black-box SSD mode of FEMU, a fork of QEMU, in C."""

    name = "FEMU's FTL"
    has_fill = False

    def __init__(self, checkout_folder: Path) -> None:
        """Compile the FTL. Raises PeerError."""
        if not (checkout_folder / _FTL).is_file():
            raise PeerError(f"{checkout_folder / _FTL} is missing: --femu takes a checkout of FEMU")
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if compiler is None:
            raise PeerError("no C compiler (package gcc)")
        self._folder = tempfile.TemporaryDirectory(prefix="slo-peer-")
        self._program = Path(self._folder.name) / "femu-ftl"
        root = checkout_folder.resolve()
        words = [compiler, "-O2", "-w", f"-I{root / 'include'}", f"-I{root}", "-o", str(self._program)]
        words += [str(_SOURCE), str(root / "hw/femu/lib/pqueue.c")]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PeerError(f"{_FTL} cannot be compiled: {done.stderr.strip()[-300:]}")

    def run(
        self, folder: Path, drive: Drive, phases: Sequence[Phase], *, logged: bool
    ) -> tuple[Flash, Requests | None, float]:
        """See `Peer`."""
        write_lines(folder / "trace", "{:.0f} {} {} {}\n", phases, 1, drive.page_bytes // SECTOR_BYTES)
        geometry = (drive.dies, drive.blocks_per_die, drive.pages_per_block)
        # It does not model channel time: a page is read or programmed, and transferred.
        times_ns = (
            drive.read_ns + drive.transfer_ns,
            drive.program_ns + drive.transfer_ns,
            drive.erase_ns,
        )
        results = "results" if logged else "-"
        words = [*map(str, (*geometry, *times_ns, FEMU_GC_PERCENT)), "trace", results]
        cpu_s = cpu_s_of([self._program, *words], folder)
        host, moved, victims = map(int, (folder / "said").read_text().split())
        flash = Flash(host, moved, victims)
        if not logged:
            return flash, None, cpu_s
        rows = np.fromfile(folder / "results", np.int64).reshape(-1, 2)
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        return flash, Requests(rows[:, 0], rows[:, 1], 0), cpu_s


def femu_line_pages(drive: Drive) -> int:
    """Pages of a line, which it collects and writes as a whole: a block of every die."""
    return drive.dies * drive.pages_per_block


def femu_free_lines(drive: Drive) -> int:
    """Number of free lines at which it begins to collect."""
    return int((1 - FEMU_GC_PERCENT / 100) * drive.blocks_per_die)
