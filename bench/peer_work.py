"""The drive, the requests and the measurement of bench/peers.py, for all simulators and for slo-ctl."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import checkout  # noqa: F401 - finds the packages of this checkout
import numpy as np

from ftl_emul import Config, Device
from lab import waf_theory

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

HOT_WRITES, HOT_SPACE = 0.8, 0.2
READS = 0.7
WARM_UP_OVERWRITES = 4.0
LOAD = 0.35
"""Load of the phase that measures response times, as a share of what a drive with the WAF of theory could do.
"""
BURST = 8_000
"""DiskSim stops when 10,000 requests wait."""
_REST_NS = 200 * 1_000_000_000
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Drive:
    """The modelled drive; one die on each channel, because DiskSim has no shared channels, of one plane."""

    dies: int = 4
    blocks_per_die: int = 512
    """A multiple of 8, as DiskSim demands."""
    pages_per_block: int = 128
    page_bytes: int = 4096
    reserved_percent: int = 15
    """Share of blocks that DiskSim excludes from its logical space; the others get the same logical space."""
    read_ns: int = 60_000
    program_ns: int = 800_000
    erase_ns: int = 1_500_000
    transfer_ns: int = 20_480
    """Transfer time of a page on its channel: 5 ns a byte, which MQSim can also be set to."""
    queue_depth: int = 1024
    """Most requests in the drive; others wait in the host."""

    @property
    def pages(self) -> int:
        """Physical pages."""
        return self.dies * self.blocks_per_die * self.pages_per_block

    @property
    def logical_pages(self) -> int:
        """DiskSim keeps a page of each block, and whole blocks of each die."""
        usable = self.blocks_per_die - self.blocks_per_die * self.reserved_percent // 100
        return self.dies * usable * (self.pages_per_block - 1)

    @property
    def alpha(self) -> float:
        """Physical pages over logical pages."""
        return self.pages / self.logical_pages


@dataclass(frozen=True, slots=True)
class Phase:
    """Requests of one page with their arrival times."""

    time_ns: Numbers
    page: Numbers
    is_write: Flags

    def __len__(self) -> int:
        return len(self.page)


@dataclass(frozen=True, slots=True)
class Work:
    """One row of the table: the same requests for every simulator."""

    name: str
    fill: Phase
    """Every page in order. DiskSim starts in this state without it."""
    warm_up: Phase
    burst: Phase
    """All arrive at once."""
    paced: Phase
    """Poisson arrivals, as in the fill and the warm-up."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """All phases in order."""
        return self.fill, self.warm_up, self.burst, self.paced


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a simulator for one `Work`; all simulated except `requests_per_cpu_s`."""

    simulator: str
    work: str
    waf: float
    """WAF of the writes after the warm-up."""
    iops: float
    """IOPS of the burst."""
    mean_ms: float
    """Mean response time of paced requests, from arrival to completion."""
    p99_ms: float
    requests_per_cpu_s: float
    """Requests of fill and warm-up per CPU-second, including reading the trace."""
    victim_pages: float
    """Valid pages in a block that GC collects, on average."""
    never_completed: int = 0
    """Requests."""


OURS = "slo-ctl"
WORKS = ("uniform", "hot/cold", "mixed", "sequential")


def make_work(name: str, drive: Drive, requests: int, seed: int) -> Work:
    """The requests of one row, of which `paced` are paced."""
    rng = np.random.default_rng([seed, WORKS.index(name)])
    pages = drive.logical_pages
    warm_up = pages if name == "sequential" else round(WARM_UP_OVERWRITES * pages)
    reads = READS if name == "mixed" else 0.0
    phases: list[Phase] = []
    start_ns, position = 0, 0
    for kind, count in (("fill", pages), ("warm-up", warm_up), ("burst", BURST), ("paced", requests)):
        part_of_reads = reads if kind in {"burst", "paced"} else 0.0
        if name == "sequential" or kind == "fill":
            page = (position + np.arange(count, dtype=np.int64)) % pages
            position = (position + count) % pages
        else:
            page = _drawn(name, pages, count, rng)
        gap_ns = _gap_ns(drive, name, part_of_reads)
        gaps_ns = np.zeros(count) if kind == "burst" else rng.exponential(gap_ns, count)
        time_ns = start_ns + np.cumsum(gaps_ns).astype(np.int64)
        phases.append(Phase(time_ns, page, rng.random(count) >= part_of_reads))
        # Even the slowest simulator has finished a phase when the next begins.
        start_ns = int(time_ns[-1]) + _REST_NS
    return Work(name, *phases)


def _drawn(name: str, pages: int, count: int, rng: np.random.Generator) -> Numbers:
    """Random page numbers; hot pages are spread over the whole space."""
    if name != "hot/cold":
        return rng.integers(0, pages, count, dtype=np.int64)
    hot = round(HOT_SPACE * pages)
    is_hot = rng.random(count) < HOT_WRITES
    rank = np.where(is_hot, rng.integers(0, hot, count), rng.integers(hot, pages, count))
    return np.random.default_rng(0).permutation(pages).astype(np.int64)[rank]


def page_cost_ns(drive: Drive, waf: float) -> float:
    """Time of a die per written page, including its part of GC."""
    victim_pages = drive.pages_per_block * (1.0 - 1.0 / waf)
    erase_ns = drive.erase_ns / (drive.pages_per_block - victim_pages)
    return drive.transfer_ns + drive.program_ns + (waf - 1.0) * (drive.read_ns + drive.program_ns) + erase_ns


def _gap_ns(drive: Drive, name: str, reads: float) -> float:
    """Mean time between paced requests."""
    waf = 1.0 if name == "sequential" else waf_theory.greedy_waf(drive.alpha, drive.pages_per_block)
    cost_ns = reads * (drive.read_ns + drive.transfer_ns) + (1.0 - reads) * page_cost_ns(drive, waf)
    return cost_ns / drive.dies / LOAD


def write_lines(path: Path, line: str, phases: Sequence[Phase], time_unit_ns: int, sectors: int) -> None:
    """A trace of one line for each request: time, first sector, sectors, and 1 for a read."""
    with path.open("w") as out:
        for phase in phases:
            is_read = np.where(phase.is_write, 0, 1)
            columns = (phase.time_ns / time_unit_ns, phase.page * sectors, is_read)
            rows = zip(*(column.tolist() for column in columns), strict=True)
            out.writelines(line.format(time, sector, sectors, read) for time, sector, read in rows)


def page_writes(phases: Sequence[Phase]) -> int:
    """Number of page writes: requests are of one page."""
    return sum(int(phase.is_write.sum()) for phase in phases)


# Ours.


def our_config(drive: Drive, **changes: Any) -> Config:
    """The drive as a configuration of `ftl_emul`, with the same queue depth as the others."""
    keys: dict[str, Any] = {
        "page_bytes": drive.page_bytes,
        "pages_per_block": drive.pages_per_block,
        "blocks_per_die": drive.blocks_per_die,
        "channels": drive.dies,
        "dies_per_channel": 1,
        "planes": 1,
        "read_ns": drive.read_ns,
        "program_ns": drive.program_ns,
        "erase_ns": drive.erase_ns,
        "transfer_ns": drive.transfer_ns,
        "device_queue_depth": drive.queue_depth,
        "seed": 1,
    }
    return Config(**keys | changes)


class OurDrive:
    """One tenant that has the entire drive."""

    def __init__(self, drive: Drive, config: Config) -> None:
        self._page_bytes = drive.page_bytes
        self.device = Device(config)
        ops_blocks = self.device.blocks - -(-drive.logical_pages // config.pages_per_block)
        self._tenant = self.device.create_tenant(drive.logical_pages, True, ops_blocks)

    def count(self, phase: Phase) -> None:
        """Count without a clock."""
        n = len(phase)
        self.device.apply(
            np.full(n, self._tenant, np.uint16),
            phase.is_write.astype(np.uint8),
            phase.page.astype(np.uint64) * np.uint64(self._page_bytes),
            np.full(n, self._page_bytes, np.uint64),
        )

    def play(self, phase: Phase) -> tuple[float, float, float]:
        """IOPS, mean and 99th percentile of the response time in ms."""
        n, device, tenant = len(phase), self.device, self._tenant
        began_ns = device.now_ns
        device.open_queue(tenant, None)
        device.clear_latencies()
        device.feed(
            tenant,
            phase.time_ns - phase.time_ns[0] + began_ns,
            phase.is_write.astype(np.uint8),
            phase.page.astype(np.uint64) * np.uint64(self._page_bytes),
            np.full(n, self._page_bytes, np.uint64),
        )
        device.end_input(tenant)
        device.run()
        counters = device.queue_counters(tenant)
        if counters.reads + counters.writes != n:
            raise RuntimeError(f"{counters.reads + counters.writes} of {n} requests ended")
        return (
            n * _NS_PER_S / (device.now_ns - began_ns),
            counters.latency_ns / n / 1e6,
            _both_p99_ms(device, tenant),
        )

    def flash(self) -> tuple[int, int, int]:
        """Host page writes, GC page writes and victims so far."""
        counters = self.device.counters(self._tenant)
        return counters.host_page_writes, counters.gc_page_writes, counters.victims


def _both_p99_ms(device: Device, tenant: int) -> float:
    """The 99th percentile of reads and writes together, from the percentiles of each."""
    ranks = np.linspace(0.0, 100.0, 20_001)
    both = device.latency_us(tenant, ranks.tolist())
    values = np.concatenate([np.asarray(both.read), np.asarray(both.write)])
    weights = np.concatenate([np.full(len(both.read), both.reads), np.full(len(both.write), both.writes)])
    order = np.argsort(values)
    shares = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(shares, 0.99)]) / 1000.0


def run_ours(work: Work, drive: Drive) -> Outcome:
    """Run all phases with a clock."""
    ours = OurDrive(drive, our_config(drive))
    began_s = time.process_time()
    ours.play(work.fill)
    ours.play(work.warm_up)
    cpu_s = time.process_time() - began_s
    before = ours.flash()
    iops, _, _ = ours.play(work.burst)
    _, mean_ms, p99_ms = ours.play(work.paced)
    host, gc, victims = (now - then for now, then in zip(ours.flash(), before, strict=True))
    return Outcome(
        simulator=OURS,
        work=work.name,
        waf=1.0 + gc / host,
        iops=iops,
        mean_ms=mean_ms,
        p99_ms=p99_ms,
        requests_per_cpu_s=(len(work.fill) + len(work.warm_up)) / cpu_s,
        victim_pages=gc / victims if victims else 0.0,
    )


def waf_of_ours(work: Work, drive: Drive, config: Config) -> float:
    """WAF counted without a clock, for drives configured like a peer."""
    ours = OurDrive(drive, config)
    ours.count(work.fill)
    ours.count(work.warm_up)
    before = ours.flash()
    for phase in (work.burst, work.paced):
        ours.count(phase)
    host, gc, _ = (now - then for now, then in zip(ours.flash(), before, strict=True))
    return 1.0 + gc / host
