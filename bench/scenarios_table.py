"""VMs with unlike neighbours: their entitlement, what they get, and what they get from an ordinary SSD.

    .venv/bin/python bench/scenarios_table.py [--only REGEX] [--quick] [--json] [--markdown FILE]

Each scenario runs under `proportional` and on an ordinary SSD: `shared`, one pool, first come first served.
Rates are 4 KiB pages per second, except for VMs that move no data (TRIM), whose requests are counted. A lower
total is reported with the differences: WAF, and the mean number of pages per request (large requests cost
less per page, so the total falls if small ones get their share). EMULATED SSD, synthetic workloads.
Exit code 1 if a VM gets less than 99 % of its entitlement.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import checkout  # noqa: F401 - finds the packages of this checkout
import numpy as np
from acceptance import vm
from made_traces import write_trace

from lab.parts import Drive, PreparedDrive, pages_per_s, total_pages_per_s
from slo_ctl.decide.policies.fast15 import Shared
from slo_ctl.decide.policies.proportional import Proportional
from slo_ctl.replay.result import RunResult
from traces.batch import Op

FAST15 = "preset=fast15,size=512MiB,op=15%"
LEAST_OF_DUE = 0.99
LOWER_FROM = 0.99
"""Total relative to that of `shared` below which the table explains why."""


@dataclass(frozen=True)
class Neighbours:
    """One scenario."""

    name: str
    drive: Drive
    duration: str = "20x"


@dataclass(frozen=True)
class VmRow:
    """One VM in one scenario."""

    vm: str
    weight: float
    minimum_iops: float | None
    unit: str
    entitled: float | None
    """None if VMs come and go, because entitlements refer to those running at the end."""
    got: float
    shared: float
    p99_ms: float
    shared_p99_ms: float
    ops_blocks: int | None
    limited: bool = False
    """Whether it was at a rate limit of the policy."""


@dataclass(frozen=True)
class Compared:
    """Results of one scenario."""

    name: str
    total: float
    shared_total: float
    waf: float
    shared_waf: float
    pages_per_request: float
    shared_pages_per_request: float
    write_share: float
    """Share of the pages that are written."""
    shared_write_share: float
    vms: tuple[VmRow, ...]

    @property
    def missed(self) -> list[str]:
        """VMs that get too little of what they are entitled to."""
        return [
            f"{row.vm} gets {row.got / row.entitled:.1%} of its entitlement"
            for row in self.vms
            if row.entitled and row.got < LEAST_OF_DUE * row.entitled
        ]

    @property
    def lower(self) -> str:
        """Reasons of a lower total; empty if it is not lower."""
        return why_lower(self)


def why_lower(compared: Compared) -> str:
    """The differences that explain a lower total, the largest first; empty if it is not lower."""
    if compared.total >= LOWER_FROM * compared.shared_total:
        return ""
    starved = [row.vm for row in compared.vms if row.got == 0.0 < row.shared]
    if starved:
        return f"{', '.join(starved)} starved"
    found = []
    if compared.write_share > 1.05 * compared.shared_write_share:
        found.append(
            f"{compared.write_share:.0%} of the pages are writes "
            f"in place of {compared.shared_write_share:.0%}"
        )
    if compared.pages_per_request < 0.95 * compared.shared_pages_per_request:
        found.append(
            f"{compared.pages_per_request:.1f} pages per request "
            f"in place of {compared.shared_pages_per_request:.1f}"
        )
    if compared.waf > 1.02 * compared.shared_waf:
        found.append(f"WAF {compared.waf:.2f} in place of {compared.shared_waf:.2f}")
    slowed = [row.vm for row in compared.vms if row.got < 0.9 * row.shared]
    gained = [row.vm for row in compared.vms if row.got > 1.1 * row.shared]
    if slowed and gained:
        found.append(f"{', '.join(slowed)} had more at the cost of {', '.join(gained)}")
    return "; ".join(found) or "within what OPS of VMs of their own costs against one pool"


def scenarios(folder: Path) -> Iterator[Neighbours]:
    """The scenarios; traces are written to `folder`."""
    yield Neighbours(
        "qd 1 beside qd 256, 1:1", Drive((vm("qd1", "uniform", 1), vm("qd256", "uniform", 1, "qd=256")))
    )
    tlc = "preset=tlc,size=17GiB,op=28%"
    deep = [vm(n, w, k, "qd=16") for n, w, k in (("a", "uniform", 1), ("b", "uniform", 3), ("c", "rw", 6))]
    yield Neighbours("tlc 17 GiB op 28 %, 1:3:6 qd 16, c reads half", Drive(tuple(deep), tlc), "8x")
    for depth in (1, 4):
        large = vm("large", "uniform", 1, f"qd={depth},bs=128KiB:1+1MiB:1")
        yield Neighbours(
            f"128 KiB and 1 MiB beside 4 KiB, 1:1 qd {depth}",
            Drive((large, vm("small", "uniform", 1, f"qd={depth}"))),
        )
    trims, half = folder / "trims.csv", (256 << 20) // 4096
    write_trace(trims, [Op.TRIM], np.random.default_rng(1).integers(0, half, 1 << 18))
    storm = (f"name=trims,trace={trims},weight=1,qd=64,remap=modulo", vm("writes", "uniform", 1, "qd=4"))
    yield Neighbours("TRIM storm qd 64 beside writes qd 4, 1:1", Drive(storm), "60s")
    light = vm("light", "uniform", 6, "mode=open,iops=100")
    yield Neighbours(
        "open loop 100 IOPS weight 6 beside qd 8 weight 1", Drive((light, vm("busy", "uniform", 1, "qd=8")))
    )
    quiet = "start=stopped"
    for what, neighbour, minimum in (
        ("does nothing", quiet, ""),
        ("1 MiB qd 1", "bs=1MiB", ""),
        ("1 MiB qd 32", "bs=1MiB,qd=32", ""),
        ("4 KiB qd 256", "qd=256", ""),
        ("reads qd 32", "read=1,qd=32", ""),
        ("on and off every 0.3 drive writes, qd 64", "qd=64", ""),
        ("4 KiB qd 8, and b has min=2500", "qd=8", ",min=2500"),
    ):
        vms = (
            vm("a", "uniform", 3, "qd=4"),
            vm("b", "uniform", 1, f"qd=4{minimum}"),
            vm("c", "uniform", 2, "qd=4"),
            vm("d", "uniform", 1, neighbour),
        )
        events: tuple[str, ...] = ()
        if "on and off" in what:
            moments = range(1, 66)
            events = tuple(f"at={0.3 * n:.1f}x,vm=d,action={'stop' if n % 2 else 'start'}" for n in moments)
        yield Neighbours(f"a 3, b 1, c 2 at qd 4; d 1: {what}", Drive(vms, FAST15, events))


def write_share(run: RunResult) -> float:
    """Share of written pages among all pages."""
    length_s = (run.window.to_virtual_s or 0.0) - (run.window.from_virtual_s or 0.0)
    pages = total_pages_per_s(run) * length_s
    return sum(v.host_page_writes for v in run.vms) / pages if pages else 0.0


def compare_runs(name: str, run: RunResult, shared: RunResult) -> Compared:
    """The figures of the two runs."""
    total = total_pages_per_s(run)
    rows = []
    for own, other in zip(run.vms, shared.vms, strict=True):
        data = pages_per_s(own) > 0 or pages_per_s(other) > 0 or not own.iops
        rows.append(
            VmRow(
                vm=own.name,
                weight=own.weight,
                minimum_iops=own.min_iops,
                unit="pages/s" if data else "requests/s",
                entitled=None if run.events or not data else (own.target_share or 0.0) * total,
                got=pages_per_s(own) if data else own.iops or 0.0,
                shared=pages_per_s(other) if data else other.iops or 0.0,
                p99_ms=own.p99_us / 1e3,
                shared_p99_ms=other.p99_us / 1e3,
                ops_blocks=own.ops_blocks,
                limited=own.limited,
            )
        )
    return Compared(
        name=name,
        total=total,
        shared_total=total_pages_per_s(shared),
        waf=run.waf or 1.0,
        shared_waf=shared.waf or 1.0,
        pages_per_request=total / run.iops if run.iops else 0.0,
        shared_pages_per_request=total_pages_per_s(shared) / shared.iops if shared.iops else 0.0,
        write_share=write_share(run),
        shared_write_share=write_share(shared),
        vms=tuple(rows),
    )


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}"


def lines(compared: Compared) -> Iterator[str]:
    """The table as text."""
    yield f"{compared.name}: total {compared.total:,.0f}, shared {compared.shared_total:,.0f} pages/s"
    if compared.lower:
        yield f"    lower: {compared.lower}"
    for row in compared.vms:
        minimum = "" if row.minimum_iops is None else f" min={row.minimum_iops:g}"
        yield (
            f"    {row.vm:7} weight {row.weight:g}{minimum:9} got {row.got:9,.0f}, "
            f"entitled {_rate(row.entitled):>9}, shared {row.shared:9,.0f} {row.unit:10} "
            f"p99 {row.p99_ms:7.1f} ms, shared {row.shared_p99_ms:7.1f}  OPS {row.ops_blocks}"
            + ("  at a limit" if row.limited else "")
        )
    for text in compared.missed:
        yield f"    MISSED: {text}"


def markdown(found: Sequence[Compared]) -> Iterator[str]:
    """The table for the documentation: each VM as `got (entitled; shared)`."""
    yield "| scenario | each VM: got (entitled; on an ordinary SSD) | total | ordinary SSD | why lower |"
    yield "|---|---|---|---|---|"
    for compared in found:
        cells = [
            f"{row.vm} {row.got:,.0f} ({_rate(row.entitled)}; {row.shared:,.0f})"
            + (" TRIMs" if row.unit != "pages/s" else "")
            + (" at a limit" if row.limited else "")
            for row in compared.vms
        ]
        yield (
            f"| {compared.name} | {', '.join(cells)} | {compared.total:,.0f} | {compared.shared_total:,.0f} "
            f"| {compared.lower} |"
        )


def main() -> int:
    """Every scenario."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="REGEX", help="scenarios whose name matches")
    parser.add_argument("--quick", action="store_true", help="without the tlc drive")
    parser.add_argument("--json", action="store_true", help="JSON instead of the table")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also a table for the documentation")
    options = parser.parse_args()
    found = []
    out = sys.stderr if options.json else sys.stdout
    with tempfile.TemporaryDirectory() as folder:
        for each in scenarios(Path(folder)):
            if not re.search(options.only, each.name) or (options.quick and "tlc" in each.name):
                continue
            with PreparedDrive(each.drive) as preconditioned:
                run = preconditioned.run(Proportional(), "wfq", each.duration)
                shared = preconditioned.run(Shared(), "fifo", each.duration)
            found.append(compare_runs(each.name, run, shared))
            print("\n".join(lines(found[-1])), file=out, flush=True)
    if not found:
        parser.error("no scenario was run")
    missed = sum(bool(each.missed) for each in found)
    if options.markdown:
        options.markdown.write_text("\n".join(markdown(found)) + "\n")
    if options.json:
        rows = [asdict(each) | {"lower": each.lower, "missed": each.missed} for each in found]
        print(json.dumps({"label": "emulated", "scenarios": rows, "missed": missed}, indent=1))
    else:
        print("EMULATED SSD, synthetic workloads; pages are 4 KiB")
        print(f"{len(found)} scenarios, {missed} with a VM below {LEAST_OF_DUE:.0%} of its entitlement")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
