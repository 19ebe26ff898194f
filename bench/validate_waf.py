"""WAF of the emulated SSD without a clock: uniform writes, and two tenants of which one is hot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from validate_figure import PAGE_BYTES, SEED, Row

from ftl_emul import Config, Device
from lab import waf_theory
from slo_ctl.decide import gc_model
from slo_ctl.decide.gc_model import GcCurve, Writer, best_split
from slo_ctl.decide.ops_plan import allocate
from slo_ctl.decide.policies import make_policy
from slo_ctl.model.sample import FlashTiming, TimingModel
from slo_ctl.model.slo import Slo
from slo_ctl.replay.policy_run import PlayedDrive

LEAST_PAGES, LEAST_BLOCKS = 1_000_000, 4_000
"""Smallest drive under uniform writes: on a smaller one, fluctuations affect the last digit."""
UNIFORM_OVERWRITES = 20

HOTCOLD_BLOCKS, HOTCOLD_NP, HOTCOLD_OVERWRITES = 5_000, 128, 40
"""Logical blocks. Cold pages are overwritten once in four overwrites of the drive, so it takes longer."""
HOT_WRITES, HOT_SPACE = 0.8, 0.2

WAF_BAR, SMALL_BLOCK_BAR = 0.005, 0.01
HOTCOLD_BAR = 0.02
MIN_WAF_BAR = 0.03

# Simulated independently of this code; figures of the project's validation reference (docs/validation.md).
GREEDY_SIMULATED = {1.07: 7.394, 1.10: 5.456, 1.15: 3.905, 1.20: 3.120, 1.30: 2.330, 1.50: 1.699, 2.0: 1.248}
"""Uniform, greedy, 128 pages per block."""
SHARED_GREEDY_SIMULATED = {1.10: 5.819, 1.28: 2.785}
"""Hot/cold .8/.2 in one pool, greedy, 128 pages per block."""

_CHUNK_REQUESTS = 1 << 16
_WRITE = 1


@dataclass(frozen=True, slots=True)
class Space:
    """Size of one tenant; OPS counts usable blocks."""

    logical_pages: int
    ops_blocks: int


class CountedDrive:
    """A drive of one die and one write frontier per pool, under random 4 KiB writes in given proportions."""

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
                page_bytes=PAGE_BYTES,
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
        whole = np.array(self.pages, np.uint64) * np.uint64(PAGE_BYTES)
        tenants = np.array(self.tenants, np.uint16)
        ops = np.full(len(tenants), _WRITE, np.uint8)
        self.device.apply(tenants, ops, np.zeros(len(tenants), np.uint64), whole)

    def overwrite(self, writes: int, write_shares: Sequence[float] = (1.0,)) -> None:
        """Write random pages, each of a tenant chosen by its share."""
        edges = np.cumsum(write_shares)[:-1]
        tenants, pages = np.array(self.tenants, np.uint16), np.array(self.pages, np.uint64)
        for start in range(0, writes, _CHUNK_REQUESTS):
            n = min(_CHUNK_REQUESTS, writes - start)
            who = np.searchsorted(edges, self._rng.random(n), side="right")
            page = self._rng.integers(0, pages[who], dtype=np.uint64)
            ops, length = np.full(n, _WRITE, np.uint8), np.full(n, PAGE_BYTES, np.uint64)
            self.device.apply(tenants[who], ops, page * np.uint64(PAGE_BYTES), length)

    def written(self) -> tuple[int, int]:
        """Host and GC page writes so far."""
        counters = [self.device.counters(tenant) for tenant in self.tenants]
        return sum(c.host_page_writes for c in counters), sum(c.gc_page_writes for c in counters)

    def waf_of_last_half(self, overwrites: float, write_shares: Sequence[float] = (1.0,)) -> float:
        """Overwrite the entire drive this many times; returns the WAF of the second half."""
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
    """A tenant of this many usable blocks at this alpha, to within half a page."""
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
    expected = waf_theory.greedy_waf(alpha, pages_per_block) if greedy else waf_theory.lru_waf(alpha)
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
    """OPS of both tenants together."""
    return round((alpha - 1.0) * HOTCOLD_BLOCKS)


def best_hot_ops(alpha: float) -> tuple[int, float]:
    """OPS of the hot tenant in the best split, and the expected WAF of both."""
    total = hotcold_ops_blocks(alpha)
    curves = [
        GcCurve.prior(space.logical_pages // HOTCOLD_NP, HOTCOLD_NP) for space in hotcold_spaces(total, 0)
    ]
    rates = (HOT_WRITES, 1.0 - HOT_WRITES)
    split = best_split([Writer(curve, rate) for curve, rate in zip(curves, rates, strict=True)], total)
    blocks = allocate(total, dict(zip("hc", split, strict=True)), dict.fromkeys("hc", 0))
    expected = sum(
        rate * gc_model.waf(curve.u_at(ops))
        for rate, curve, ops in zip(rates, curves, blocks.values(), strict=True)
    )
    return blocks["h"], expected


def hotcold_waf(alpha: float, hot_ops_blocks: int, *, victim: str = "greedy", isolated: bool = True) -> float:
    """WAF of both tenants together."""
    spaces = hotcold_spaces(hotcold_ops_blocks(alpha), hot_ops_blocks)
    drive = CountedDrive(spaces, HOTCOLD_NP, victim=victim, isolated=isolated)
    return drive.waf_of_last_half(HOTCOLD_OVERWRITES, (HOT_WRITES, 1.0 - HOT_WRITES))


def shared_rows(victim: str, alpha: float) -> list[Row]:
    """One pool for both: hot and cold pages are mixed."""
    # In one pool the owner of the OPS does not matter.
    measured = hotcold_waf(alpha, hotcold_ops_blocks(alpha), victim=victim, isolated=False)
    what = f"hot/cold, shared, {victim}, alpha {alpha:.2f}"
    if victim == "greedy":
        return [Row(what, SHARED_GREEDY_SIMULATED[alpha], "simulated", measured, HOTCOLD_BAR)]
    expected = waf_theory.hotcold_lru_waf(alpha, HOT_WRITES, HOT_SPACE)
    return [Row(what, expected, "formula", measured, HOTCOLD_BAR)]


def by_size_rows(alpha: float) -> list[Row]:
    """Isolated with OPS in proportion to size: each tenant has the device's alpha."""
    measured = hotcold_waf(alpha, round(HOT_SPACE * hotcold_ops_blocks(alpha)))
    expected = waf_theory.greedy_waf(alpha, HOTCOLD_NP)
    return [
        Row(f"hot/cold, isolated, OPS by size, alpha {alpha:.2f}", expected, "formula", measured, HOTCOLD_BAR)
    ]


def best_split_rows(alpha: float) -> list[Row]:
    """Isolated with the best OPS split by the formula."""
    hot_ops_blocks, expected = best_hot_ops(alpha)
    measured = hotcold_waf(alpha, hot_ops_blocks)
    return [
        Row(f"hot/cold, isolated, best split, alpha {alpha:.2f}", expected, "formula", measured, HOTCOLD_BAR)
    ]


def min_waf_rows(alpha: float) -> list[Row]:
    """`min_waf`, starting with a split by size, without hints: both tenants have the same weight."""
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
    played = PlayedDrive(drive.device, vms, timing, held_blocks=1, clocked=False)
    slos = dict.fromkeys(vms, Slo())
    policy = make_policy(policy_name)
    epochs, pages = round(20 * overwrites), sum(drive.pages)
    drive.overwrite(2 * pages, write_shares)
    state, decision = policy.start(played.sample(slos, vms))
    refusals = played.apply(decision)
    played.finish_moves()
    half = drive.written()
    for epoch in range(1, epochs + 1):
        drive.overwrite(pages // 20, write_shares)
        if epoch == epochs // 2:
            half = drive.written()
        state, decision = policy.step(state, played.sample(slos, vms))
        refusals += played.apply(decision)
    if refusals:
        raise RuntimeError(f"the drive refused what {policy_name} decided: {refusals[0]}")
    return waf_between(half, drive.written())
