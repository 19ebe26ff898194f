"""Drives and VMs used in place of the paper's."""

from __future__ import annotations

from collections.abc import Sequence

from lab.parts import Drive
from papers.figure import Trial

WORKLOADS = {"Financial": "financial", "MSN": "msn", "Exchange": "exchange"}
"""Workload names of the paper, with synthetic workloads after its table 1."""
EMULATED, SYNTHETIC = "emulated SSD", "synthetic workloads after table 1"
LABELS = (EMULATED, SYNTHETIC)


def device(trial: Trial, *keys: str, size_mib: int = 1024) -> str:
    """The drive of table 3, small, as a spec for `slo-ctl replay --device`."""
    mib = size_mib // 2 if trial.quick else size_mib
    return ",".join(("preset=fast15", f"size={mib}MiB", "op=15%", *keys))


def three(*extra: str, weights: Sequence[float] = (1, 1, 1)) -> tuple[str, ...]:
    """A VM for each workload of table 1."""
    return tuple(
        ",".join((f"name={name}", f"workload={workload}", f"weight={weight:g}", *extra))
        for (name, workload), weight in zip(WORKLOADS.items(), weights, strict=True)
    )


def drive(trial: Trial, vms: Sequence[str], *keys: str, size_mib: int = 1024, timing: str = "full") -> Drive:
    """That drive with VMs."""
    return Drive(tuple(vms), device(trial, *keys, size_mib=size_mib), timing=timing, seed=trial.seed)
