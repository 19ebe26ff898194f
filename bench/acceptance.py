"""What the OPS policies must keep, measured on the emulated SSD: shares, re-convergence, minimums, maximums.

    .venv/bin/python bench/acceptance.py [--full] [--only REGEX] [--json]

Prints one line per case and policy; exit code 1 where a bar is missed. Real traces are looked for in
$SLO_CTL_TRACES or ../shared/traces; cases whose trace is missing are skipped, and said to be.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slo_ctl.model import TimingModel
from slo_ctl.replay.engine import run
from slo_ctl.replay.progress import Silent
from slo_ctl.replay.scenario_text import ScenarioText, build_scenario

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from slo_ctl.replay.result import RunResult, VmResult

SHARE_BAR = 0.03
EVENT_BAR = 0.05
BOUND_BAR = 0.03
"""How far a minimum may be missed, or a maximum exceeded."""
WEIGHTS = (1, 3, 6)
TRACES = Path(os.environ.get("SLO_CTL_TRACES", Path(__file__).resolve().parents[2] / "shared" / "traces"))
REAL = {
    "vscsi": "vscsi/cloudPhysicsIO.vscsi.zst",
    "spc": "spc/Financial1_10k_reconstructed.spc.zst",
    "dtrs": "msprod/DTRS100M.ssdsim.zst",
    "msr1": "msr/heimdall_msr_rw_20_80.105.trace.zst",
    "msr2": "msr/heimdall_msr_most_thpt_rand_iops.1006.trace.zst",
    "iozone": "disksim/disksim_iozone_100K.ascii.zst",
    "postmark": "disksim/disksim_postmark.ascii.zst",
}
SYNTHETIC = {
    "uniform": "workload=uniform",
    "zipf": "workload=zipf",
    "hotcold": "workload=hotcold",
    "sequential": "workload=sequential",
    "rw": "workload=uniform,read=.5",
    "zipf-rw": "workload=zipf,read=.7",
    "financial": "workload=financial",
    "msn": "workload=msn",
    "exchange": "workload=exchange",
}


@dataclass(frozen=True)
class Case:
    """One replay and what it must show."""

    name: str
    vms: tuple[str, ...]
    settings: tuple[tuple[str, str], ...] = ()
    device: str = "size=512MiB"
    events: tuple[str, ...] = ()
    bar: float | None = SHARE_BAR
    """Largest relative error of a share; None where shares need not be kept."""
    compare: tuple[str, ...] = ()
    """Run beside it, for the table."""
    traces: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """Real traces that are not there."""
        return [REAL[name] for name in self.traces if not (TRACES / REAL[name]).exists()]

    def runs(self) -> list[RunResult]:
        """Replay it."""
        text = ScenarioText()
        text.add_device(f"preset=fast15,op=15%,{self.device}")
        for vm in self.vms:
            text.add_vm(vm)
        for event in self.events:
            text.add_event(event)
        for key, value in (("alone", "no"), *self.settings, ("compare", ",".join(self.compare))):
            text.set(key, value)
        return run(build_scenario(text), Silent()).runs


def vm(name: str, what: str, weight: float, extra: str = "") -> str:
    """A `--vm` text."""
    source = SYNTHETIC[what] if what in SYNTHETIC else f"trace={TRACES / REAL[what]}"
    return f"name={name},{source},weight={weight}" + (f",{extra}" if extra else "")


def trio(what: Iterable[str], extra: str = "", weights: Iterable[float] = WEIGHTS) -> tuple[str, ...]:
    """Three VMs a, b, c."""
    return tuple(vm(n, w, k, extra) for n, w, k in zip("abc", what, weights, strict=True))
