"""Runs the same requests on the same modelled drive with MQSim, DiskSim and its SSD extension, FEMU's FTL and
slo-ctl.

    .venv/bin/python bench/peers.py --mqsim DIR --disksim DIR --femu DIR [--requests N] [--only NAMES]

DIR is a checkout in which the simulator has been built as its README describes; it is not part of this
repository, and is not changed. FEMU need not be built: one of its files is compiled elsewhere.
$SLO_CTL_MQSIM, $SLO_CTL_DISKSIM and $SLO_CTL_FEMU are the defaults; each is optional. Everything is
simulated, except requests per CPU-second, which are measured here. Exit code 1 if the WAF of a peer differs
from that of slo-ctl with the same reserve. docs/validation.md has the reasons.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import checkout  # noqa: F401 - finds the packages of this checkout
import numpy as np
from peer_femu import Femu, femu_free_lines, femu_line_pages
from peer_programs import (
    DISKSIM_LEAST_FREE_PERCENT,
    MQSIM_GC_BLOCKS,
    DiskSim,
    MqSim,
    Peer,
    PeerError,
)
from peer_work import (
    BURST,
    OURS,
    WORKS,
    Drive,
    Outcome,
    Work,
    make_work,
    our_config,
    page_cost_ns,
    run_ours,
    waf_of_ours,
)
from validate import machine

from ftl_emul import Config
from lab import waf_theory
from slo_ctl.base.termination import terminable

FORMAT_VERSION = 1
WAF_BAR = 0.03
STALLED = 0.1
"""Share of measured requests that, left uncompleted, shows that a simulator has stopped working."""


@dataclass(frozen=True, slots=True)
class Reproduced:
    """The WAF of slo-ctl with the reserve of a peer."""

    simulator: str
    work: str
    waf: float


def outcome_of(peer: Peer, work: Work, drive: Drive) -> Outcome:
    """Run a peer up to the end of the warm-up, and again to the end: it counts from the start only."""
    phases = work.phases[peer.has_fill :]
    with tempfile.TemporaryDirectory(prefix="slo-peer-") as name:
        before, _, cpu_s = peer.run(Path(name), drive, phases[:-2], logged=False)
    with tempfile.TemporaryDirectory(prefix="slo-peer-") as name:
        after, requests, _ = peer.run(Path(name), drive, phases, logged=True)
    if requests is None:
        raise PeerError(f"{peer.name} logged no requests")
    burst_ns, paced_ns = int(work.burst.time_ns[0]), int(work.paced.time_ns[0])
    in_burst = (requests.completed_ns >= burst_ns) & (requests.completed_ns < paced_ns)
    response_ms = requests.response_ns[requests.completed_ns >= paced_ns] / 1e6
    if not in_burst.any() or not len(response_ms):
        raise PeerError(f"{peer.name} completed nothing after the warm-up of {work.name}")
    victims = after.victims - before.victims
    gc_pages = after.gc_page_writes - before.gc_page_writes
    return Outcome(
        simulator=peer.name,
        work=work.name,
        waf=1.0 + gc_pages / (after.host_page_writes - before.host_page_writes),
        iops=len(work.burst) * 1e9 / (int(requests.completed_ns[in_burst].max()) - burst_ns),
        mean_ms=float(response_ms.mean()),
        p99_ms=float(np.percentile(response_ms, 99, method="inverted_cdf")),
        requests_per_cpu_s=sum(map(len, phases[:-2])) / cpu_s,
        victim_pages=gc_pages / victims if victims else 0.0,
        never_completed=requests.never_completed,
    )


def config_like(simulator: str, drive: Drive) -> Config:
    """slo-ctl with the reserve of a peer: free blocks, frontiers, a page of each block."""
    if simulator.startswith("MQSim"):
        # The write frontier for the map stays empty, because the map is in memory.
        return our_config(drive, free_floor=MQSIM_GC_BLOCKS, separate_gc_frontier=True)
    if simulator == Femu.name:
        # A line is one block on each die: without a clock, one die with equally large blocks is equivalent.
        floor = femu_free_lines(drive) + 1
        return our_config(drive, channels=1, pages_per_block=femu_line_pages(drive), free_floor=floor)
    low = drive.blocks_per_die * DISKSIM_LEAST_FREE_PERCENT // 100
    return our_config(drive, pages_per_block=drive.pages_per_block - 1, free_floor=low + 1)


def deviation(outcome: Outcome, reproduced: Sequence[Reproduced], requests: int) -> float | None:
    """WAF of a peer over that of slo-ctl with the same reserve, less 1; None if unknown or stalled."""
    if outcome.never_completed > STALLED * requests:
        return None
    wafs = [r.waf for r in reproduced if (r.simulator, r.work) == (outcome.simulator, outcome.work)]
    return outcome.waf / wafs[0] - 1.0 if wafs else None


def as_table(outcomes: Sequence[Outcome], reproduced: Sequence[Reproduced], drive: Drive) -> str:
    """The results as a table."""
    alpha, np_ = drive.alpha, drive.pages_per_block
    header = f"{'':12}{'simulator':18}{'WAF':>6}{'IOPS':>8}{'mean ms':>9}{'p99 ms':>9}{'victim':>8}"
    lines = [
        f"SIMULATED: {drive.dies} dies of {drive.blocks_per_die} blocks of {np_} 4 KiB pages",
        f"physical / logical pages {alpha:.4f}; theory, uniform: WAF {waf_theory.greedy_waf(alpha, np_):.2f}",
        f"{header}{'requests/CPU-s':>16}",
    ]
    for outcome in outcomes:
        lines.append(
            f"{outcome.work:12}{outcome.simulator:18}{outcome.waf:6.2f}{outcome.iops:8,.0f}{outcome.mean_ms:9.2f}"
            f"{outcome.p99_ms:9.2f}{outcome.victim_pages:8.1f}{outcome.requests_per_cpu_s:16,.0f}"
            + (f"  {outcome.never_completed:,} never completed" if outcome.never_completed else "")
        )
        lines += [
            f"{'':12}{'ours, kept alike':18}{same.waf:6.2f}"
            for same in reproduced
            if (same.simulator, same.work) == (outcome.simulator, outcome.work)
        ]
    return "\n".join(lines)


def why(
    outcomes: Sequence[Outcome], reproduced: Sequence[Reproduced], drive: Drive, requests: int
) -> list[str]:
    """Reasons of the differences, with the figures of this run that show them."""
    sentences = []
    for outcome in outcomes:
        peer, work = outcome.simulator, outcome.work
        deviates = deviation(outcome, reproduced, requests)
        if deviates is not None:
            sentences.append(
                f"{work}: the WAF of {peer} is {100 * deviates:+.1f} % from that of ours "
                f"with what {peer} keeps"
            )
        if outcome.never_completed > STALLED * requests:
            sentences.append(f"{work}: {peer} stalled, so its figures mean nothing")
        collect_ms = (outcome.victim_pages * (drive.read_ns + drive.program_ns) + drive.erase_ns) / 1e6
        line_ms = (
            outcome.victim_pages / drive.dies * (drive.read_ns + drive.program_ns + 2 * drive.transfer_ns)
            + drive.erase_ns
        ) / 1e6
        if peer == OURS and outcome.victim_pages and work != "mixed":
            cost_ms = page_cost_ns(drive, outcome.waf) / 1e6
            sentences.append(
                f"{work}: in ours each write bears its part of GC, {cost_ms:.2f} ms with that WAF; "
                f"the mean is {outcome.mean_ms:.2f} ms"
            )
        elif peer == DiskSim.name and outcome.victim_pages:
            sentences.append(
                f"{work}: {peer} collects a whole block in one go, here {collect_ms:.1f} ms, while requests "
                f"of that die wait; its p99 is {outcome.p99_ms:.1f} ms"
            )
        elif peer == Femu.name and outcome.victim_pages:
            sentences.append(
                f"{work}: {peer} collects a block of every die in one go, here {line_ms:.1f} ms, while all "
                f"requests wait; its p99 is {outcome.p99_ms:.1f} ms"
            )
    return sentences


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    mqsim, disksim, femu = (
        os.environ.get(f"SLO_CTL_{name}") or None for name in ("MQSIM", "DISKSIM", "FEMU")
    )
    parser.add_argument("--mqsim", type=Path, metavar="DIR", default=mqsim, help="built checkout of MQSim")
    parser.add_argument(
        "--disksim", type=Path, metavar="DIR", default=disksim, help="DiskSim and its SSD extension, built"
    )
    parser.add_argument("--femu", type=Path, metavar="DIR", default=femu, help="checkout of FEMU")
    parser.add_argument("--requests", type=int, default=100_000, metavar="N", help="paced requests of a row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", metavar="NAMES", default=",".join(WORKS), help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout in place of the table")
    options = parser.parse_args(arguments)
    if options.requests < 1:
        parser.error("--requests: at least 1")
    names = options.only.split(",")
    if unknown := [name for name in names if name not in WORKS]:
        parser.error(f"--only {', '.join(unknown)}: not of {', '.join(WORKS)}")
    drive = Drive()
    outcomes: list[Outcome] = []
    reproduced: list[Reproduced] = []
    try:
        peers: list[Peer] = []
        if options.mqsim:
            peers += [MqSim(options.mqsim, preemptible_gc=preemptible) for preemptible in (False, True)]
        if options.disksim:
            peers.append(DiskSim(options.disksim))
        if options.femu:
            peers.append(Femu(options.femu))
        for name in names:
            work = make_work(name, drive, options.requests, options.seed)
            outcomes.append(run_ours(work, drive))
            for peer in peers:
                print(f"{name}: {peer.name} ...", file=sys.stderr, flush=True)
                outcomes.append(outcome_of(peer, work, drive))
                if name != "sequential":
                    waf = waf_of_ours(work, drive, config_like(peer.name, drive))
                    reproduced.append(Reproduced(peer.name, name, waf))
    except PeerError as error:
        print(f"peers.py: {error}", file=sys.stderr)
        return 2
    measured = BURST + options.requests
    sentences = why(outcomes, reproduced, drive, measured)
    if options.json:
        print(
            json.dumps(
                {
                    "format_version": FORMAT_VERSION,
                    "label": "simulated",
                    "machine": machine(),
                    "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
                    "drive": asdict(drive),
                    "outcomes": [asdict(outcome) for outcome in outcomes],
                    "ours_kept_alike": [asdict(same) for same in reproduced],
                    "why": sentences,
                },
                indent=1,
            )
        )
    else:
        print(as_table(outcomes, reproduced, drive), *sentences, f"on {machine()}", sep="\n")
    differences = [deviation(outcome, reproduced, measured) for outcome in outcomes]
    return 1 if any(abs(each) > WAF_BAR for each in differences if each is not None) else 0


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
