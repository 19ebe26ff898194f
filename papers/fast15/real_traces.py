"""Figures 4a and 4b with real traces, if available: they may not be redistributed."""

from __future__ import annotations

import os
from pathlib import Path

from lab.parts import Drive, PreparedDrive
from papers.fast15.interference import ABSENT, SEPARATE, SHARED_BLOCK, fewer_together, measured, vm_of
from papers.fast15.setup import EMULATED, drive
from papers.figure import Figure, NotPossibleError, Panel, Shape, Trial, lower_in
from slo_ctl.decide.policies.fast15 import Shared
from traces.batch import PAGE_BYTES, Op
from traces.footprint import Footprint
from traces.reader import open_trace

TRACES_VARIABLE = "SLO_CTL_TRACES"
TRACES = {
    "Financial": "spc/Financial1_10k_reconstructed.spc.zst",
    "DTRS": "msprod/DTRS100M.ssdsim.zst",
    "MSR": "msr/heimdall_msr_rw_20_80.105.trace.zst",
}
NAMES = tuple(TRACES)
NEEDS_TRACES = f"Needs the traces, which may not be redistributed: a directory in ${TRACES_VARIABLE}."
_SIZE_MIB = 512


def real_traces_alone_and_together(trial: Trial) -> list[Panel]:
    """IOPS and u of each VM by itself and together, for several meanings of "by itself"."""
    paths = trace_paths()
    vms = {name: f"name={name},trace={path},mode=closed,qd=1" for name, path in paths.items()}
    cases = {
        SEPARATE: _both(trial, vms, "frontier=separate"),
        SHARED_BLOCK: _both(trial, vms),
    }
    absent = {key: value for key, value in cases[SEPARATE].items() if key[1].startswith("together")}
    for name, text in vms.items():
        # The same number of blocks in total, with the data of this VM alone.
        third_mib = _SIZE_MIB // (6 if trial.quick else 3)
        own = Drive((text,), f"preset=fast15,size={third_mib}MiB,op=245%", seed=trial.seed)
        with PreparedDrive(own) as prepared:
            vm = vm_of(prepared.run(Shared(), "fifo", _duration(trial)), name)
        absent |= {(name, "alone, IOPS"): measured(vm.iops), (name, "alone, u"): measured(vm.victim_u)}
    cases[ABSENT] = absent
    panels = []
    for what, unit in (("IOPS", "requests/s"), ("u", "share of valid pages")):
        for meaning, found in cases.items():
            cells = {
                (name, column): found[name, f"{column}, {what}"]
                for name in NAMES
                for column in ("alone", "together")
            }
            panels.append(Panel(f"{what}, {meaning}", unit, cells))
    written = {(name, "pages written, MiB"): _written_mib(path) for name, path in paths.items()}
    return [*panels, Panel("What a trace rewrites", "", written, Shape.TABLE)]


def trace_paths() -> dict[str, Path]:
    """Paths of the traces. Raises NotPossibleError if one is missing."""
    folder = os.environ.get(TRACES_VARIABLE, "")
    paths = {name: Path(folder) / file for name, file in TRACES.items()}
    missing = [TRACES[name] for name, path in paths.items() if not folder or not path.is_file()]
    if missing:
        raise NotPossibleError(f"set {TRACES_VARIABLE} to a directory that has {', '.join(missing)}")
    return paths


def _duration(trial: Trial) -> str:
    """Drive writes, of which the last half is measured: until then u changes as preconditioned data does."""
    return "8x" if trial.quick else "16x"


def _both(trial: Trial, vms: dict[str, str], *keys: str) -> dict[tuple[str, str], float]:
    found = {}
    with PreparedDrive(drive(trial, tuple(vms.values()), *keys, size_mib=_SIZE_MIB)) as prepared:
        together = prepared.run(Shared(), "fifo", _duration(trial))
        for name in vms:
            alone = prepared.run(Shared(), "fifo", _duration(trial), only=name)
            for column, run in (("alone", alone), ("together", together)):
                vm = vm_of(run, name)
                found[name, f"{column}, IOPS"] = measured(vm.iops)
                found[name, f"{column}, u"] = measured(vm.victim_u)
    return found


def _written_mib(path: Path) -> float:
    """Distinct pages that the trace writes."""
    footprint = Footprint()
    for batch in open_trace(path):
        writes = batch.take(batch.op == Op.WRITE)
        footprint.add(writes.volume, *writes.page_span())
    return sum(footprint.pages_by_volume().values()) * PAGE_BYTES / 2**20


_CORE = (
    "Where GC writes into the host's block, every block keeps a core of idle pages, and u of a VM alone is "
    "the core's part, the same for Financial and MSR, which rewrite little. Together it is 2 % higher at "
    "most, and lower on the small drive of a quick run. With blocks of its own for GC, the only change, u "
    "alone is lower for each (rule above)."
)

FIGURE_4_TRACES = Figure(
    "fast15:4-real-traces",
    "IOPS and u alone and together, with real traces (as figures 4a and 4b)",
    "Every workload loses IOPS when they run together, and u is lower when a workload runs individually.",
    "Traces of the paper's families: the first 10,000 records of UMass's Financial1; DTRS, of the collection "
    "of Microsoft production servers that MSN and Exchange are from; 10,000 of MSR Cambridge, 80 % writes. "
    "Records are repeated, one outstanding request a VM, and their pages numbered densely from the beginning "
    "of the VM's third of the drive, around its end if they are more. Drive of 512 MiB (quick: 256) and "
    'meanings of "alone" as in fast15:4b. In the long run u rises when workloads are mixed, as in the paper: '
    "alone, a workload has all spare space for the pages that it rewrites, together they share it. "
    f"{NEEDS_TRACES}",
    (EMULATED, "real traces"),
    real_traces_alone_and_together,
    (
        *fewer_together((SEPARATE, SHARED_BLOCK, ABSENT), NAMES),
        *(
            lower_in(
                "u is lower individually", f"u, {meaning}", "alone", "together", NAMES, differs, at_most=0.98
            )
            for meaning, differs in ((SEPARATE, ""), (ABSENT, ""), (SHARED_BLOCK, _CORE))
        ),
    ),
    seeds=3,
    quick_seeds=1,
)
