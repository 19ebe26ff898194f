"""Requirements on the OPS policies, measured on the emulated SSD: shares, re-convergence, minimums, maximums.

    .venv/bin/python bench/acceptance.py [--full] [--only REGEX] [--json]

Prints one line per case and policy; exit code 1 if a bar is missed. Real traces are searched for in
$SLO_CTL_TRACES or ../shared/traces; cases whose trace is missing are skipped with a message.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import checkout  # noqa: F401 - finds the packages of this checkout

from lab.parts import share_error
from slo_ctl.base.progress import Silent
from slo_ctl.replay import run as engine
from slo_ctl.replay.result import RunResult
from slo_ctl.replay.scenario import Scenario
from slo_ctl.replay.scenario_build import build_scenario
from slo_ctl.replay.scenario_text import ScenarioText

SHARE_BAR = 0.03
EVENT_BAR = 0.05
TOTAL_BAR = 0.01
BOUND_BAR = 0.03
"""Largest relative violation of a minimum or maximum."""
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
    """One replay and its bars."""

    name: str
    vms: tuple[str, ...]
    settings: tuple[tuple[str, str], ...] = ()
    device: str = "preset=fast15,size=512MiB"
    events: tuple[str, ...] = ()
    bar: float | None = SHARE_BAR
    """Largest relative error of a share; None if shares need not be kept."""
    compare: tuple[str, ...] = ()
    """Policies also run, for the table."""
    reaches: str = ""
    """Policy to compare with, whose total this one must reach within 1 %."""

    @property
    def missing(self) -> list[str]:
        """Paths of missing real traces."""
        wanted = [path for path in REAL.values() if path in " ".join(self.vms)]
        return [path for path in wanted if not (TRACES / path).exists()]

    def runs(self) -> list[RunResult]:
        """Results of the replay with each policy."""
        return engine.run(self.scenario(), Silent()).runs

    def scenario(self) -> Scenario:
        """The replay. Raises UserError if it is not valid."""
        text = ScenarioText()
        text.add_device(f"op=15%,{self.device}")
        for vm in self.vms:
            text.add_vm(vm)
        for event in self.events:
            text.add_event(event)
        for key, value in (
            ("alone", "no"),
            ("policy", "proportional-strict"),
            ("share_by", "requests"),
            *self.settings,
            ("compare", ",".join(self.compare)),
        ):
            text.set(key, value)
        return build_scenario(text)


def vm(name: str, what: str, weight: float, extra: str = "") -> str:
    """Text of a `--vm` option."""
    source = SYNTHETIC[what] if what in SYNTHETIC else f"trace={TRACES / REAL[what]}"
    return f"name={name},{source},weight={weight}" + (f",{extra}" if extra else "")


def trio(what: Iterable[str], extra: str = "", weights: Iterable[float] = WEIGHTS) -> tuple[str, ...]:
    """Three VMs a, b, c."""
    return tuple(vm(n, w, k, extra) for n, w, k in zip("abc", what, weights, strict=True))


def steady_cases(full: bool) -> Iterator[Case]:
    """Shares of three VMs over the last half of 20 drive writes."""
    mixes = [
        ("uniform", "uniform", "uniform"),
        ("hotcold", "hotcold", "hotcold"),
        ("rw", "zipf", "uniform"),
        ("financial", "msn", "exchange"),
    ]
    if full:
        mixes += [
            ("zipf", "zipf", "zipf"),
            ("rw", "rw", "rw"),
            ("zipf-rw", "hotcold", "sequential"),
            ("exchange", "financial", "msn"),
            ("msn", "exchange", "financial"),
        ]
    for mix, timing in itertools.product(mixes, ("full", "paper") if full else ("full",)):
        yield Case(f"{'/'.join(mix)} {timing}", trio(mix), (("timing", timing),))
    sizes = [("256MiB", "64MiB", "192MiB"), ("64MiB", "128MiB", "320MiB")]
    for mix, size in itertools.product(mixes[: len(mixes) if full else 1], sizes):
        names = zip("abc", mix, WEIGHTS, size, strict=True)
        yield Case(
            f"{'/'.join(mix)} {'/'.join(size)}", tuple(vm(n, w, k, f"size={s}") for n, w, k, s in names)
        )
    if full:
        large = "preset=fast15,size=2GiB"
        yield Case("financial/msn/exchange 2GiB", trio(mixes[3]), device=large, compare=("shared", "static"))
        tlc = "preset=tlc,size=8GiB,dies=8,channels=8"
        yield Case("rw/zipf/uniform tlc 8GiB", trio(mixes[2]), device=tlc)
    yield Case(
        "uniform 1GiB: beside static and algorithm1",
        trio(mixes[0]),
        (("timing", "paper"),),
        "preset=fast15,size=1GiB",
        compare=("static", "algorithm1"),
    )


def queue_cases(full: bool) -> Iterator[Case]:
    """Deeper queues and other schedulers."""
    depths = (4, 8) if full else (8,)
    for depth, scheduler in itertools.product(depths, ("fifo", "rr", "wfq")):
        for mix in (("uniform",) * 3, ("financial", "msn", "exchange"))[: 2 if full else 1]:
            yield Case(
                f"{mix[0]} qd={depth} {scheduler}", trio(mix, f"qd={depth}"), (("scheduler", scheduler),)
            )
    for depth, dies in ((4, 4), (8, 8)):
        yield Case(
            f"min_waf qd={depth} wfq {dies} dies",
            trio(("uniform",) * 3, f"qd={depth}"),
            (("scheduler", "wfq"), ("policy", "min_waf")),
            f"preset=fast15,size=512MiB,dies={dies}",
            bar=EVENT_BAR,
            compare=("proportional-strict",),
            # With fewer dies than requests everything waits for everything: both find the same split.
            reaches="proportional-strict" if dies == 8 else "",
        )
    # Without a clock shares are of pages, the only unit.
    untimed = (("timing", "none"), ("share_by", "pages"))
    yield Case("count only", trio(("uniform",) * 3), untimed, bar=None, compare=("min_waf",))


def mapping_cases(full: bool) -> Iterator[Case]:
    """Log blocks instead of OPS: the drives of docs/device.md, and the cache of DFTL."""
    mixes = [("uniform",) * 3, ("financial", "msn", "exchange"), ("hotcold",) * 3, ("rw", "zipf", "uniform")]
    keys = ["mapping=bast", "mapping=fast", "mapping=fast,cluster=2", "mapping=dftl"]
    for key, mix in itertools.product(keys, mixes if full else mixes[:2]):
        device = f"preset=fast15,size=512MiB,{key}"
        yield Case(f"{'/'.join(mix)} {key}", trio(mix), device=device, bar=EVENT_BAR, compare=("static",))


def trace_cases(full: bool) -> Iterator[Case]:
    """Real traces, closed loop."""
    mixes = [("vscsi", "spc", "msr1"), ("dtrs", "iozone", "postmark")]
    if full:
        mixes += [("msr2", "dtrs", "spc"), ("postmark", "vscsi", "iozone"), ("msr1", "msr2", "vscsi")]
        mixes += [("spc", "uniform", "dtrs"), ("iozone", "postmark", "msr2")]
    for mix in mixes:
        yield Case("traces " + "/".join(mix), trio(mix))


def event_cases(full: bool) -> Iterator[Case]:
    """Shares from 3 to 5 drive writes after a change."""
    window = (("window", "13x..15x"),)
    mixes = [
        ("uniform", "uniform", "uniform"),
        ("uniform", "hotcold", "rw"),
        ("financial", "msn", "exchange"),
    ]
    for mix in mixes if full else mixes[1:2]:
        label = "/".join(mix)
        for weight in (6, 2):
            event = f"at=10x,vm=a,action=weight,weight={weight}"
            yield Case(f"{label} a to weight {weight}", trio(mix), window, events=(event,), bar=EVENT_BAR)
        for name in "abc":
            event = f"at=10x,vm={name},action=stop"
            yield Case(f"{label} {name} stops", trio(mix), window, events=(event,), bar=EVENT_BAR)
            vms = tuple(
                vm(n, w, k, "start=stopped" if n == name else "")
                for n, w, k in zip("abc", mix, WEIGHTS, strict=True)
            )
            event = f"at=10x,vm={name},action=start"
            yield Case(f"{label} {name} starts", vms, window, events=(event,), bar=EVENT_BAR)


def bound_cases() -> Iterator[Case]:
    """Minimums and maximums."""
    a, b, c = trio(("uniform",) * 3)
    yield Case("a min=150", (f"{a},min=150", b, c))
    yield Case("c max=300", (a, b, f"{c},max=300"))
    yield Case("a max=50, b min=300", (f"{a},max=50", f"{b},min=300", c))
    a, b, c = trio(("financial", "msn", "exchange"), weights=(3, 6, 1))
    yield Case("c min=60 (exchange)", (a, b, f"{c},min=60"))


def all_cases(full: bool) -> Iterator[Case]:
    """Every case, or those that take a minute altogether."""
    yield from steady_cases(full)
    yield from queue_cases(full)
    yield from mapping_cases(full)
    yield from trace_cases(full)
    yield from event_cases(full)
    yield from bound_cases()


def missed(case: Case, runs: list[RunResult]) -> list[str]:
    """The bars that the case's own policy, which ran last, missed."""
    run = runs[-1]
    found = []
    if case.bar is not None and share_error(run) > case.bar:
        found.append(f"a share is off by {share_error(run):.1%}, more than {case.bar:.0%}")
    for v in run.vms:
        iops = v.iops or 0.0
        if v.min_iops is not None and iops < (1 - BOUND_BAR) * v.min_iops:
            found.append(f"{v.name} has {iops:.0f} IOPS, fewer than {v.min_iops:.0f}")
        if v.max_iops is not None and iops > (1 + BOUND_BAR) * v.max_iops:
            found.append(f"{v.name} has {iops:.0f} IOPS, more than {v.max_iops:.0f}")
    found += [
        f"{run.iops:.0f} IOPS in total, {case.reaches} has {other.iops:.0f}"
        for other in runs
        if other.policy == case.reaches and (run.iops or 0.0) < (1 - TOTAL_BAR) * (other.iops or 0.0)
    ]
    return found


def line(case: Case, run: RunResult) -> str:
    """One run as a line of the table."""
    errors = " ".join(f"{v.name} {v.share_error or 0.0:+7.1%}" for v in run.vms)
    total = "    -" if run.iops is None else f"{run.iops:5.0f}"
    return f"{case.name:42} {run.policy:12} {errors}  {total} IOPS  WAF {run.waf or 0.0:5.2f}"


def summary(case: Case, runs: list[RunResult], bars_missed: list[str]) -> dict[str, object]:
    """One case for `--json`."""
    return {
        "case": case.name,
        "bar": case.bar,
        "missed": bars_missed,
        "runs": [
            {
                "policy": run.policy,
                "iops": run.iops,
                "waf": run.waf,
                "share_errors": {v.name: v.share_error for v in run.vms},
                "iops_of": {v.name: v.iops for v in run.vms},
                "ops_blocks": {v.name: v.ops_blocks for v in run.vms},
            }
            for run in runs
        ],
    }


def main() -> int:
    """Run the matrix."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="every case, about three minutes")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose name matches")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    options = parser.parse_args()
    summaries, failed, skipped = [], 0, 0
    for case in all_cases(options.full):
        if not re.search(options.only, case.name):
            continue
        if case.missing:
            print(f"{case.name:42} skipped: no {', '.join(case.missing)} in {TRACES}", file=sys.stderr)
            skipped += 1
            continue
        runs = case.runs()
        bars_missed = missed(case, runs)
        failed += bool(bars_missed)
        summaries.append(summary(case, runs, bars_missed))
        if not options.json:
            for run in runs:
                print(line(case, run), flush=True)
            for text in bars_missed:
                print(f"    MISSED: {text}", flush=True)
    if not summaries:
        parser.error(f"no case was run, {skipped} skipped")
    if options.json:
        print(json.dumps({"cases": summaries, "missed": failed, "skipped": skipped}, indent=2))
    else:
        print(f"{len(summaries)} cases, {failed} missed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
