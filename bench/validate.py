"""The emulated SSD against what theory and independent simulations say, see docs/validation.md.

    .venv/bin/python bench/validate.py [--full] [--only REGEX] [--json]

One line per figure: what, expected, measured, deviation, bar. Exit code 1 where a bar is missed. All of it is
measured on the emulated device with synthetic requests; the same code gives the same figures every time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ftl_emul import Config, Device
from slo_ctl.act.ftl import FtlActuator
from slo_ctl.decide import iops, waf
from slo_ctl.decide.allocation import allocate
from slo_ctl.decide.curve import GcCurve
from slo_ctl.decide.policies import make_policy
from slo_ctl.decide.split import Writer, best_split
from slo_ctl.model import FlashTiming, Slo, TimingModel
from slo_ctl.observe.ftl import FtlObserver, Standing
from slo_ctl.replay.engine import run
from slo_ctl.replay.progress import Silent
from slo_ctl.replay.scenario_text import ScenarioText, build_scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from slo_ctl.replay.result import RunResult

FORMAT_VERSION = 1
SEED = 1

ALPHAS = (1.05, 1.07, 1.10, 1.15, 1.20, 1.30, 1.50, 2.0)
PAGES_PER_BLOCK = (32, 64, 128, 256, 1024)
QUICK_ALPHAS = (1.07, 1.20, 2.0)
QUICK_PAGES_PER_BLOCK = (32, 128)
LEAST_PAGES, LEAST_BLOCKS = 1_000_000, 4_000
"""Of a drive under uniform writes: below, its own fluctuations show in the last digit."""
UNIFORM_OVERWRITES = 20

HOTCOLD_BLOCKS, HOTCOLD_NP, HOTCOLD_OVERWRITES = 5_000, 128, 40
"""Logical blocks. Cold pages are overwritten once in four overwrites of the drive, so it takes longer."""
HOT_WRITES, HOT_SPACE = 0.8, 0.2
HOTCOLD_ALPHAS = (1.10, 1.28)

WAF_BAR, SMALL_BLOCK_BAR = 0.005, 0.01
HOTCOLD_BAR = 0.02
MIN_WAF_BAR = 0.03
SHARE_BAR = 0.03
TWO_DIGITS_BAR = 0.06
"""For references given with two digits only."""

# Simulated independently of this code; figures of the project's validation reference (docs/validation.md).
GREEDY_SIMULATED = {1.07: 7.394, 1.10: 5.456, 1.15: 3.905, 1.20: 3.120, 1.30: 2.330, 1.50: 1.699, 2.0: 1.248}
"""Uniform, greedy, 128 pages per block."""
SHARED_GREEDY_SIMULATED = {1.10: 5.819, 1.28: 2.785}
"""Hot/cold .8/.2 in one pool, greedy, 128 pages per block."""
STATIC_SIMULATED = {"b": 2.6, "c": 4.4}
"""Three VMs, `paper` timing: IOPS relative to VM a."""

STARVED = 0.5
"""Share of its target that a starving VM gets at most."""

_PAGE_BYTES = 4096
_CHUNK_REQUESTS = 1 << 16
_WRITE = 1


@dataclass(frozen=True, slots=True)
class Row:
    """One figure and what it should be."""

    what: str
    reference: float
    source: str
    measured: float
    bar: float
    """Largest |measured / reference - 1|."""
    at_most: bool = False
    """Less than the reference is as good."""

    @property
    def deviation(self) -> float:
        """Relative to the reference."""
        return self.measured / self.reference - 1.0

    @property
    def passed(self) -> bool:
        """Within the bar; NaN is not."""
        return (self.deviation if self.at_most else abs(self.deviation)) <= self.bar


@dataclass(frozen=True, slots=True)
class Case:
    """One run and the figures it yields."""

    name: str
    rows: Callable[[], list[Row]]
    quick: bool


# A drive without a clock.


@dataclass(frozen=True, slots=True)
class Space:
    """Size of one tenant; OPS counts usable blocks."""

    logical_pages: int
    ops_blocks: int


class CountedDrive:
    """A drive of one die and one write frontier a pool, under random 4 KiB writes in given proportions."""

    def __init__(
        self, spaces: Sequence[Space], pages_per_block: int, *, victim: str = "greedy", isolated: bool = True
    ) -> None:
        self.pages_per_block = pages_per_block
        self.pages = [space.logical_pages for space in spaces]
        # One block in each pool is kept free for GC; alpha does not count it.
        held = [1 if isolated or index == 0 else 0 for index in range(len(spaces))]
        given = [space.ops_blocks + extra for space, extra in zip(spaces, held, strict=True)]
        logical = sum(-(-pages // pages_per_block) for pages in self.pages)
        self.device = Device(
            Config(
                page_bytes=_PAGE_BYTES,
                pages_per_block=pages_per_block,
                blocks_per_die=logical + sum(given),
                channels=1,
                dies_per_channel=1,
                planes=1,
                read_ns=60_000,
                program_ns=800_000,
                erase_ns=1_500_000,
                transfer_ns=102_000,
                victim=victim,
                seed=SEED,
            )
        )
        self.tenants = [
            self.device.create_tenant(pages, isolated, blocks)
            for pages, blocks in zip(self.pages, given, strict=True)
        ]
        self._rng = np.random.default_rng(SEED)
        self._fill()

    def _fill(self) -> None:
        whole = np.array(self.pages, np.uint64) * np.uint64(_PAGE_BYTES)
        tenants = np.array(self.tenants, np.uint16)
        ops = np.full(len(tenants), _WRITE, np.uint8)
        self.device.apply(tenants, ops, np.zeros(len(tenants), np.uint64), whole)

    def overwrite(self, writes: int, write_shares: Sequence[float] = (1.0,)) -> None:
        """Random page writes, each to a tenant drawn by its share."""
        edges = np.cumsum(write_shares)[:-1]
        tenants, pages = np.array(self.tenants, np.uint16), np.array(self.pages, np.uint64)
        for start in range(0, writes, _CHUNK_REQUESTS):
            n = min(_CHUNK_REQUESTS, writes - start)
            who = np.searchsorted(edges, self._rng.random(n), side="right")
            page = self._rng.integers(0, pages[who], dtype=np.uint64)
            ops, length = np.full(n, _WRITE, np.uint8), np.full(n, _PAGE_BYTES, np.uint64)
            self.device.apply(tenants[who], ops, page * np.uint64(_PAGE_BYTES), length)

    def written(self) -> tuple[int, int]:
        """Host and GC page writes so far."""
        counters = [self.device.counters(tenant) for tenant in self.tenants]
        return sum(c.host_page_writes for c in counters), sum(c.gc_page_writes for c in counters)

    def waf_of_last_half(self, overwrites: float, write_shares: Sequence[float] = (1.0,)) -> float:
        """Overwrites the whole drive so many times; WAF of the second half."""
        writes = round(overwrites * sum(self.pages))
        self.overwrite(writes // 2, write_shares)
        before = self.written()
        self.overwrite(writes - writes // 2, write_shares)
        return waf_between(before, self.written())


def waf_between(before: tuple[int, int], after: tuple[int, int]) -> float:
    """(host + GC) / host page writes between two readings of `CountedDrive.written`."""
    return 1.0 + (after[1] - before[1]) / (after[0] - before[0])


# Uniform writes.


def uniform_space(alpha: float, pages_per_block: int, usable_blocks: int) -> Space:
    """A tenant of so many usable blocks at this alpha, to within half a page."""
    pages = round(usable_blocks * pages_per_block / alpha)
    return Space(pages, usable_blocks - -(-pages // pages_per_block))


def uniform_rows(
    victim: str, alpha: float, pages_per_block: int, usable_blocks: int | None = None
) -> list[Row]:
    """WAF of uniform random overwrites against the victim policy's formula."""
    blocks = usable_blocks or max(LEAST_BLOCKS, LEAST_PAGES // pages_per_block)
    drive = CountedDrive([uniform_space(alpha, pages_per_block, blocks)], pages_per_block, victim=victim)
    measured = drive.waf_of_last_half(UNIFORM_OVERWRITES)
    greedy = victim == "greedy"
    expected = waf.greedy_waf(alpha, pages_per_block) if greedy else waf.lru_waf(alpha)
    bar = SMALL_BLOCK_BAR if greedy and pages_per_block < 64 else WAF_BAR
    what = f"uniform, {victim}, Np {pages_per_block}, alpha {alpha:.2f}"
    rows = [Row(what, expected, "formula", measured, bar)]
    if greedy and pages_per_block == 128 and alpha in GREEDY_SIMULATED:
        rows.append(Row(what, GREEDY_SIMULATED[alpha], "simulated", measured, WAF_BAR))
    return rows


# Two tenants, one of them hot.


def hotcold_spaces(total_ops_blocks: int, hot_ops_blocks: int) -> list[Space]:
    """The hot tenant and the cold one."""
    hot = round(HOT_SPACE * HOTCOLD_BLOCKS)
    return [
        Space(hot * HOTCOLD_NP, hot_ops_blocks),
        Space((HOTCOLD_BLOCKS - hot) * HOTCOLD_NP, total_ops_blocks - hot_ops_blocks),
    ]


def hotcold_ops_blocks(alpha: float) -> int:
    """OPS of both together."""
    return round((alpha - 1.0) * HOTCOLD_BLOCKS)


def best_hot_ops(alpha: float) -> tuple[int, float]:
    """OPS of the hot tenant in the best split, and the WAF expected of both with it."""
    total = hotcold_ops_blocks(alpha)
    curves = [
        GcCurve.prior(space.logical_pages // HOTCOLD_NP, HOTCOLD_NP) for space in hotcold_spaces(total, 0)
    ]
    rates = (HOT_WRITES, 1.0 - HOT_WRITES)
    split = best_split([Writer(curve, rate) for curve, rate in zip(curves, rates, strict=True)], total)
    blocks = allocate(total, dict(zip("hc", split, strict=True)), dict.fromkeys("hc", 0))
    expected = sum(
        rate * waf.waf(curve.u_at(ops))
        for rate, curve, ops in zip(rates, curves, blocks.values(), strict=True)
    )
    return blocks["h"], expected


def hotcold_waf(alpha: float, hot_ops_blocks: int, *, victim: str = "greedy", isolated: bool = True) -> float:
    """WAF of both tenants together."""
    spaces = hotcold_spaces(hotcold_ops_blocks(alpha), hot_ops_blocks)
    drive = CountedDrive(spaces, HOTCOLD_NP, victim=victim, isolated=isolated)
    return drive.waf_of_last_half(HOTCOLD_OVERWRITES, (HOT_WRITES, 1.0 - HOT_WRITES))


def shared_rows(victim: str, alpha: float) -> list[Row]:
    """One pool for both: hot and cold pages mixed."""
    # Whose OPS it is does not matter in one pool.
    measured = hotcold_waf(alpha, hotcold_ops_blocks(alpha), victim=victim, isolated=False)
    what = f"hot/cold, shared, {victim}, alpha {alpha:.2f}"
    if victim == "greedy":
        return [Row(what, SHARED_GREEDY_SIMULATED[alpha], "simulated", measured, HOTCOLD_BAR)]
    expected = waf.hotcold_lru_waf(alpha, HOT_WRITES, HOT_SPACE)
    return [Row(what, expected, "formula", measured, HOTCOLD_BAR)]


def by_size_rows(alpha: float) -> list[Row]:
    """Isolated with OPS in proportion to size: each tenant has the device's alpha."""
    measured = hotcold_waf(alpha, round(HOT_SPACE * hotcold_ops_blocks(alpha)))
    expected = waf.greedy_waf(alpha, HOTCOLD_NP)
    return [
        Row(f"hot/cold, isolated, OPS by size, alpha {alpha:.2f}", expected, "formula", measured, HOTCOLD_BAR)
    ]


def best_split_rows(alpha: float) -> list[Row]:
    """Isolated with the OPS split that the formula says is best."""
    hot_ops_blocks, expected = best_hot_ops(alpha)
    measured = hotcold_waf(alpha, hot_ops_blocks)
    return [
        Row(f"hot/cold, isolated, best split, alpha {alpha:.2f}", expected, "formula", measured, HOTCOLD_BAR)
    ]


def min_waf_rows(alpha: float) -> list[Row]:
    """`min_waf` from a split by size, told nothing: both tenants have the same weight."""
    total = hotcold_ops_blocks(alpha)
    drive = CountedDrive(hotcold_spaces(total, round(HOT_SPACE * total)), HOTCOLD_NP)
    _, expected = best_hot_ops(alpha)
    measured = waf_under_policy(drive, "min_waf", HOTCOLD_OVERWRITES, (HOT_WRITES, 1.0 - HOT_WRITES))
    return [
        Row(f"hot/cold, min_waf by itself, alpha {alpha:.2f}", expected, "formula", measured, MIN_WAF_BAR)
    ]


def waf_under_policy(
    drive: CountedDrive, policy_name: str, overwrites: float, write_shares: Sequence[float]
) -> float:
    """Observe, decide, act every twentieth of an overwrite, as replay does; WAF of the last half."""
    vms = {f"vm{tenant}": tenant for tenant in drive.tenants}
    timing = FlashTiming(drive.pages_per_block, 60.0, 800.0, 1500.0, 102.0, TimingModel.NONE)
    observer = FtlObserver(drive.device, vms, timing, held_blocks=1, clocked=False)
    actuator = FtlActuator(drive.device, vms, clocked=False)
    standings = {vm: Standing(Slo(), running=True) for vm in vms}
    policy = make_policy(policy_name)
    epochs, pages = round(20 * overwrites), sum(drive.pages)
    drive.overwrite(2 * pages, write_shares)
    state, decision = policy.start(observer.sample(standings))
    refusals = actuator.apply(decision)
    actuator.finish_moves()
    half = drive.written()
    for epoch in range(1, epochs + 1):
        drive.overwrite(pages // 20, write_shares)
        if epoch == epochs // 2:
            half = drive.written()
        state, decision = policy.step(state, observer.sample(standings))
        refusals += actuator.apply(decision)
    if refusals:
        raise RuntimeError(f"the drive refused what {policy_name} decided: {refusals[0]}")
    return waf_between(half, drive.written())


# Three VMs on one device, with a clock.

WEIGHTS = {"a": 1, "b": 3, "c": 6}
VM_BLOCKS, OPS_BLOCKS, BLOCK_BYTES, DIES = 1000, 450, 512 * 1024, 4
"""A die for each VM's one outstanding write: with fewer they wait for one another, which evens out IOPS."""


def three_vms(policies: str, overwrites: int = 20) -> dict[str, RunResult]:
    """The results of the policies (named with commas), through the replay engine."""
    text = ScenarioText()
    size = len(WEIGHTS) * VM_BLOCKS * BLOCK_BYTES
    op = OPS_BLOCKS / (len(WEIGHTS) * VM_BLOCKS)
    text.add_device(f"preset=fast15,size={size},op={op},dies={DIES}")
    for name, weight in WEIGHTS.items():
        text.add_vm(f"name={name},workload=uniform,weight={weight},qd=1")
    first, _, rest = policies.partition(",")
    settings = {"policy": first, "compare": rest or None, "timing": "paper", "duration": f"{overwrites}x"}
    for key, value in {**settings, "alone": "no", "seed": str(SEED)}.items():
        text.set(key, value)
    return {result.policy: result for result in run(build_scenario(text), Silent()).runs}


def weights_rows() -> list[Row]:
    """What the OPS policies make of weights 1 : 3 : 6."""
    results = three_vms("static,algorithm1,proportional")
    return [
        *static_rows(results["static"]),
        *starvation_rows(results["algorithm1"]),
        *proportional_rows(results["proportional"]),
    ]


def static_rows(result: RunResult) -> list[Row]:
    """OPS in the ratio of the weights does not give IOPS in that ratio."""
    timing = FlashTiming(BLOCK_BYTES // _PAGE_BYTES, 60.0, 800.0, 1500.0, 102.0, TimingModel.PAPER)
    total = sum(WEIGHTS.values())
    expected = {
        name: 1e6
        / iops.write_time_us(
            timing,
            waf.u_at_alpha(1.0 + OPS_BLOCKS * weight / total / VM_BLOCKS, timing.pages_per_block),
        )
        for name, weight in WEIGHTS.items()
    }
    ratio = iops_ratios(result)
    rows = []
    for name, simulated in STATIC_SIMULATED.items():
        what = f"1:3:6, static, IOPS of {name} / a"
        formula = expected[name] / expected["a"]
        rows.append(Row(what, formula, "formula", ratio[name], SHARE_BAR))
        rows.append(Row(what, simulated, "simulated", ratio[name], TWO_DIGITS_BAR))
    return rows


def starvation_rows(result: RunResult) -> list[Row]:
    """Algorithm 1 drains the first VM to the least that GC can work with, and holds it there."""
    vm = next(vm for vm in result.vms if vm.name == "a")
    # On each die an open block, and one block's worth of slack.
    least = 2 * DIES
    starved = known(vm.share) / known(vm.target_share)
    return [
        Row("1:3:6, algorithm1, OPS blocks left to a", least, "minimum", known(vm.ops_blocks), 0.0),
        Row("1:3:6, algorithm1, share of a / target", STARVED, "at most", starved, 0.0, at_most=True),
    ]


def proportional_rows(result: RunResult) -> list[Row]:
    """Shares of the total, against the weights."""
    return [
        Row(
            f"1:3:6, proportional, share of {vm.name}",
            known(vm.target_share),
            "weights",
            known(vm.share),
            SHARE_BAR,
        )
        for vm in result.vms
    ]


def iops_ratios(result: RunResult) -> dict[str, float]:
    """IOPS of every VM relative to VM a."""
    by_name = {vm.name: known(vm.iops) for vm in result.vms}
    return {name: value / by_name["a"] for name, value in by_name.items()}


def known(value: float | None) -> float:
    """A figure that a timed, isolated run always has."""
    if value is None:
        raise ValueError("the replay left out a figure")
    return value


# The command.


def cases() -> Iterator[Case]:
    """Everything there is, in the order of the table."""
    for victim, pages_per_block, alpha in itertools.product(("greedy", "fifo"), PAGES_PER_BLOCK, ALPHAS):
        yield Case(
            f"uniform/{victim}/np={pages_per_block}/alpha={alpha:.2f}",
            partial(uniform_rows, victim, alpha, pages_per_block),
            quick=alpha in QUICK_ALPHAS and pages_per_block in QUICK_PAGES_PER_BLOCK,
        )
    for alpha in HOTCOLD_ALPHAS:
        runs: dict[str, Callable[[float], list[Row]]] = {
            "shared-lru": partial(shared_rows, "fifo"),
            "shared-greedy": partial(shared_rows, "greedy"),
            "by-size": by_size_rows,
            "best-split": best_split_rows,
            "min_waf": min_waf_rows,
        }
        for name, rows in runs.items():
            yield Case(f"hotcold/{name}/alpha={alpha:.2f}", partial(rows, alpha), quick=True)
    yield Case("weights", weights_rows, quick=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description="Validate the emulated SSD against theory.")
    parser.add_argument("--full", action="store_true", help="all points, not only those of two minutes")
    parser.add_argument("--only", metavar="REGEX", default="", help="cases whose name matches, --full or not")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout in place of the table")
    options = parser.parse_args(arguments)
    try:
        pattern = re.compile(options.only)
    except re.error as error:
        parser.error(f"--only {options.only}: {error}")
    everything = options.full or options.only
    chosen = [case for case in cases() if (everything or case.quick) and pattern.search(case.name)]
    if not chosen:
        parser.error(f"--only {options.only}: no case matches; there are {cases_in_short()}")

    began = time.monotonic()
    rows: list[Row] = []
    for number, case in enumerate(chosen, 1):
        seconds = time.monotonic() - began
        print(f"[{number}/{len(chosen)}, {seconds:.0f} s] {case.name}", file=sys.stderr, flush=True)
        rows += case.rows()
    wall_s = time.monotonic() - began
    print(as_json(rows, wall_s) if options.json else as_table(rows, wall_s))
    return 0 if all(row.passed for row in rows) else 1


def cases_in_short() -> str:
    """First parts of the cases' names."""
    return ", ".join(dict.fromkeys(case.name.split("/")[0] for case in cases()))


def as_table(rows: Sequence[Row], wall_s: float) -> str:
    """For reading, and for pasting into docs/validation.md."""
    header = f"{'emulated device, synthetic requests':44}{'expected':>9} {'from':11}{'measured':>9}"
    lines = [f"{header}{'deviation':>11}{'bar':>7}"]
    lines += [
        f"{row.what:44}{row.reference:#9.4g} {row.source:11}{row.measured:#9.4g}"
        f"{100 * row.deviation:+9.2f} %{100 * row.bar:5.1f} %  {'pass' if row.passed else 'FAIL'}"
        for row in rows
    ]
    failed = sum(not row.passed for row in rows)
    lines.append(f"{len(rows) - failed} of {len(rows)} pass; {wall_s:.0f} s on {machine()}")
    return "\n".join(lines)


def as_json(rows: Sequence[Row], wall_s: float) -> str:
    """For programs."""
    return json.dumps(
        {
            "format_version": FORMAT_VERSION,
            "label": "emulated",
            "machine": machine(),
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "wall_s": round(wall_s, 1),
            "passed": all(row.passed for row in rows),
            "rows": [asdict(row) | {"deviation": row.deviation, "passed": row.passed} for row in rows],
        },
        indent=1,
    )


def machine() -> str:
    """Kind of machine, without its name."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    model = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    cpu = model[1] if model else platform.machine()
    return f"{platform.system()}, {cpu}, {os.cpu_count()} CPUs, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main())
