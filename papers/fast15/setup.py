"""The set-up of the paper, tables 1 to 3: workloads, hosts, the simulator's parameters; ours in its place."""

from __future__ import annotations

from collections.abc import Sequence

from ftl_emul import presets
from lab.parts import Drive
from papers.figure import Figure, Panel, Rule, Shape, Trial, all_close
from traces.batch import Op
from traces.synth import FAST15, Fast15Row, workload

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


_GB, _KIB = 1e9, 1024


def workload_table(trial: Trial) -> list[Panel]:
    """Counts of the generators' requests, as in table 1 for the traces."""
    cells = {}
    for name, kind in WORKLOADS.items():
        total = FAST15[kind].total_bytes // (20 if trial.quick else 1)
        requests = writes = all_bytes = write_bytes = 0
        for batch in workload(kind, span_bytes=2**33, seed=trial.seed, parameters={"total": total}):
            writing = batch.op == Op.WRITE
            requests += len(batch)
            writes += int(writing.sum())
            all_bytes += int(batch.length_bytes.sum())
            write_bytes += int(batch.length_bytes[writing].sum())
        cells[name, "total, GB"] = all_bytes * FAST15[kind].total_bytes / total / _GB
        cells[name, "write ratio"] = writes / requests
        cells[name, "average write, KB"] = write_bytes / writes / _KIB
    return [Panel("Workloads", "", cells, Shape.TABLE)]


def _as_table_1(name: str, row: Fast15Row) -> Rule:
    gigabytes, kib = row.total_bytes / _GB, row.average_write_bytes / _KIB
    expected = {
        (name, "total, GB"): gigabytes,
        (name, "write ratio"): row.write_ratio,
        (name, "average write, KB"): kib,
    }
    paper = f"{name}: {gigabytes:g} GB, write ratio {row.write_ratio:g}, average write {kib:g} KB"
    return all_close(paper, "Workloads", expected, 0.01)


TABLE_1 = Figure(
    "fast15:table1",
    "Characteristics of the workloads",
    "Financial 7.1 GB, write ratio 0.76, average write 14 KB; MSN 14.6 GB, 0.96, 27 KB; Exchange 9.8 GB, "
    "0.67, 17 KB.",
    "Generators made to have these figures: the traces may not be redistributed. Sizes of reads, places and "
    "skew are ours. A quick run draws a twentieth and scales the total.",
    (SYNTHETIC,),
    workload_table,
    tuple(_as_table_1(name, FAST15[kind]) for name, kind in WORKLOADS.items()),
    quick_seeds=1,
)

TABLE_2 = Figure(
    "fast15:table2",
    "KVM environment",
    "A host with 8 cores and 32 GB, four VMs with one core, 1 GB and 30 GB of the SSD each, Ubuntu 14.",
    "Three QEMU VMs (software emulation) on the emulated SSD over NBD, with Debian's kernel: "
    "`make test PYTEST_ARGS=tests/real/test_three_vms.py`. The figures here are replays in virtual time.",
    (EMULATED,),
    None,
)

_TABLE_3 = {
    "page, KB": 4.0,
    "block, KB": 512.0,
    "page read, us": 60.0,
    "page write, us": 800.0,
    "block erase, us": 1500.0,
    "page transfer, us": 102.0,
}


def simulator_parameters(trial: Trial) -> list[Panel]:
    """Parameters of the preset."""
    del trial
    preset = next(preset for preset in presets() if preset.name == "fast15")
    values = {
        "page, KB": preset.page_bytes / _KIB,
        "block, KB": preset.page_bytes * preset.pages_per_block / _KIB,
        "page read, us": preset.read_ns / 1e3,
        "page write, us": preset.program_ns / 1e3,
        "block erase, us": preset.erase_ns / 1e3,
        "page transfer, us": preset.transfer_ns / 1e3,
    }
    cells = {("preset fast15", name): value for name, value in values.items()}
    return [Panel("Parameters", "", cells, Shape.TABLE, digits=4)]


TABLE_3 = Figure(
    "fast15:table3",
    "Parameters of the SSD simulator",
    "Page 4 KB, block 512 KB, page read 60 us, page write 800 us, block erase 1.5 ms, page transfer 102 us.",
    "The preset `fast15` of the emulated SSD. Channels and dies, which the paper does not give, are ours: 8 "
    "and 8.",
    (EMULATED,),
    simulator_parameters,
    (
        all_close(
            "page 4 KB, block 512 KB; 60, 800, 1500 and 102 us",
            "Parameters",
            {("preset fast15", name): value for name, value in _TABLE_3.items()},
            0.0,
        ),
    ),
    seeds=1,
    quick_seeds=1,
)


FIGURES = (TABLE_1, TABLE_2, TABLE_3)
