"""Contribution of each lever: OPS, rate limits and the device's fair queue, alone and together.

    .venv/bin/python bench/ablation.py [--quick] [--depth 8] [--json] [--markdown FILE]

Three VMs of weights 1:3:6 at queue depths 1, 8 and 32, a synthetic mix and real traces (if they are in
$SLO_CTL_TRACES or ../shared/traces). Columns:

- total, 4 KiB pages per second, and WAF of the whole device
- share error: that of the worst VM, relative to what it is entitled to if nobody has to wait for a VM that
  cannot use its share (the aim of `proportional`)
- off 1:3:6: the worst VM's distance from exact proportions (the aim of `proportional-strict`). Rows
  that use its levers count requests, the others pages.
- shares: those of the three VMs
- p99 of the VM of weight 6, and the worst of any VM
- limited: VMs that ran at a rate limit when the window ended

EMULATED SSD (fast15, 512 MiB, op 15 %), 20 drive writes, last half measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import checkout  # noqa: F401 - finds the packages of this checkout
from acceptance import REAL, TRACES, WEIGHTS, trio

from lab.parts import (
    Drive,
    Parts,
    PreparedDrive,
    pages_per_s,
    share_error,
    total_pages_per_s,
)
from slo_ctl.decide.policies import Policy
from slo_ctl.decide.policies.fast15 import Shared, Static
from slo_ctl.decide.policies.proportional import Proportional
from slo_ctl.decide.policies.proportional_strict import ProportionalStrict
from slo_ctl.model.sample import Placement, ShareBy
from slo_ctl.replay.result import RunResult

DEPTHS = (1, 8, 32)
MIXES = {
    "synthetic uniform/hotcold/50 % reads": ("uniform", "hotcold", "rw"),
    "real vscsi/Financial1/msr": ("vscsi", "spc", "msr1"),
}


@dataclass(frozen=True)
class Variant:
    """A choice of levers."""

    name: str
    policy: Policy[Any]
    scheduler: str


VARIANTS = (
    Variant("one pool, nothing", Shared(), "fifo"),
    Variant(
        "one pool, limits alone",
        Parts(ProportionalStrict(), limits=True, placement=Placement.SHARED),
        "fifo",
    ),
    Variant(
        "one pool, fair queue alone",
        Parts(Proportional(), weights=True, placement=Placement.SHARED),
        "wfq",
    ),
    Variant("even OPS, nothing", Parts(Shared()), "fifo"),
    Variant("OPS by weight alone (static)", Static(), "fifo"),
    Variant("OPS for the fewest GC writes alone", Parts(Proportional(), moves=True), "fifo"),
    Variant("OPS for shares alone", Parts(ProportionalStrict(), moves=True), "fifo"),
    Variant("even OPS, limits alone", Parts(ProportionalStrict(), limits=True), "fifo"),
    Variant("even OPS, fair queue alone", Parts(Proportional(), weights=True), "wfq"),
    Variant("fair queue + OPS (proportional)", Proportional(), "wfq"),
    Variant("proportional-strict", ProportionalStrict(), "wfq"),
)


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    mix: str
    depth: int
    levers: str
    total: float
    waf: float
    share_error: float
    off_weights: float
    shares: tuple[float, ...]
    p99_heaviest_ms: float
    p99_worst_ms: float
    unit: str
    limited: tuple[str, ...] = ()


def off_weights(amounts: Sequence[float], weights: Sequence[float]) -> float:
    """The largest relative deviation of a share from the weight's."""
    whole, weight_sum = sum(amounts), sum(weights)
    if not whole:
        return 0.0
    return max(
        abs(amount / whole * weight_sum / weight - 1.0)
        for amount, weight in zip(amounts, weights, strict=True)
    )


def row_of(mix: str, depth: int, levers: str, run: RunResult, unit: ShareBy) -> Row:
    """Figures of one run."""
    by_pages = unit is ShareBy.PAGES
    amounts = [pages_per_s(v) if by_pages else v.iops or 0.0 for v in run.vms]
    whole = sum(amounts) or 1.0
    latencies = [v.p99_us / 1e3 for v in run.vms]
    return Row(
        mix=mix,
        depth=depth,
        levers=levers,
        total=total_pages_per_s(run),
        waf=run.waf or 1.0,
        share_error=share_error(run),
        off_weights=off_weights(amounts, [v.weight for v in run.vms]),
        shares=tuple(amount / whole for amount in amounts),
        p99_heaviest_ms=latencies[-1],
        p99_worst_ms=max(latencies),
        unit=unit.value,
        limited=tuple(v.name for v in run.vms if v.limited),
    )


def rows(mix: str, depth: int, duration: str) -> Iterator[Row]:
    """Run every variant on copies of one preconditioned drive."""
    drive = Drive(trio(MIXES[mix], f"qd={depth}", WEIGHTS))
    with PreparedDrive(drive) as preconditioned:
        for variant in VARIANTS:
            run = preconditioned.run(variant.policy, variant.scheduler, duration, exact=False)
            strict = isinstance(getattr(variant.policy, "inner", variant.policy), ProportionalStrict)
            unit = ShareBy.REQUESTS if strict else ShareBy.PAGES
            yield row_of(mix, depth, variant.name, run, unit)


def line(row: Row) -> str:
    """The row as text."""
    shares = "/".join(f"{100 * share:.0f}" for share in row.shares)
    return (
        f"  {row.levers:36} {row.total:7.0f} {row.waf:6.2f} {row.share_error:7.1%} {row.off_weights:8.1%} "
        f"{shares:>9} {row.p99_heaviest_ms:8.1f} {row.p99_worst_ms:8.1f} "
        f" {'/'.join(row.limited)}"
    )


HEADER = (
    f"  {'':36} {'pages/s':>7} {'WAF':>6} {'shares':>7} {'off':>8} {'shares':>9} {'p99 w6':>8} {'worst':>8}\n"
    f"  {'levers':36} {'':7} {'':6} {'err':>7} {'1:3:6':>8} {'%':>9} {'ms':>8} {'ms':>8}  limited"
)


def markdown(found: Sequence[Row]) -> Iterator[str]:
    """A table for each mix."""
    for mix in dict.fromkeys(row.mix for row in found):
        depths = sorted({row.depth for row in found if row.mix == mix})
        by_key = {(row.levers, row.depth): row for row in found if row.mix == mix}
        yield f"{mix}; each cell: total (WAF) share error / off 1:3:6, p99 of weight 6 / worst in ms"
        yield ""
        yield "| levers | " + " | ".join(f"qd {depth}" for depth in depths) + " |"
        yield "|---|" + "---|" * len(depths)
        for levers in dict.fromkeys(row.levers for row in found):
            cells = [
                f"{row.total:,.0f} ({row.waf:.2f}) {row.share_error:.0%} / {row.off_weights:.0%}, "
                f"{row.p99_heaviest_ms:.0f} / {row.p99_worst_ms:.0f}"
                + (f"; limited: {', '.join(row.limited)}" if row.limited else "")
                for row in (by_key[levers, depth] for depth in depths)
            ]
            yield f"| {levers} | " + " | ".join(cells) + " |"
        yield ""


def main() -> int:
    """Every mix and depth."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="8 drive writes, queue depth 8 only")
    parser.add_argument("--depth", type=int, action="append", help=f"instead of {DEPTHS}")
    parser.add_argument("--json", action="store_true", help="JSON instead of the table")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also a table for the documentation")
    options = parser.parse_args()
    depths = options.depth or ((8,) if options.quick else DEPTHS)
    found: list[Row] = []
    out = sys.stderr if options.json else sys.stdout
    for mix, workloads in MIXES.items():
        missing = [REAL[name] for name in workloads if name in REAL and not (TRACES / REAL[name]).exists()]
        if missing:
            print(f"{mix} skipped: no {', '.join(missing)}", file=sys.stderr)
            continue
        for depth in depths:
            print(f"{mix}, weights 1:3:6, qd {depth}\n{HEADER}", file=out)
            for row in rows(mix, depth, "8x" if options.quick else "20x"):
                found.append(row)
                print(line(row), file=out, flush=True)
    if not found:
        parser.error("no mix was run")
    if options.markdown:
        options.markdown.write_text("\n".join(markdown(found)))
    if options.json:
        print(json.dumps({"label": "emulated", "rows": [asdict(row) for row in found]}, indent=1))
    else:
        print("EMULATED SSD")
    return 0


if __name__ == "__main__":
    sys.exit(main())
