"""Profiles of the modelled devices: complete ones, and SeRRa's estimates."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from papers.figure import Trial
from papers.serra.devices import (
    BARRACUDA_XT,
    CHEETAH_15K7,
    ArrayParameters,
    Buffer,
    Complete,
    DiskArray,
    EmulatedSsd,
    SataParameters,
    SataSsd,
    Varying,
    measure_as_the_paper,
    measure_completely,
)
from slo_ctl.decide.profile_fit import Analysis, Fit, analyse
from slo_ctl.decide.request_sizes import DEFAULT_INTERVALS, all_sizes, draw_points
from slo_ctl.model.measurement import Access, Benchmark, Direction, Order

QUARTER_FULL = "preset=tlc,size=8GiB,op=300%,block=1536KiB"
"""A quarter of the drive holds data and the rest is trimmed, as on the paper's nodes (1.2 of 64 to 500 GB).
"""
SMALL_SSD = "preset=tlc,size=1GiB,op=300%,block=1536KiB"
"""The same drive, smaller, for quick runs and small files."""
CLASSES = ("HDD", "RAID-0", "SSD")
BUFFERED = "SSD with a buffer"
SLOW_BUS = "SATA SSD at 1.5 Gb/s"
VARYING = "SSD whose runs vary"
_DEVIATION = 0.1
"""Errors are then of the size of the paper's."""
ALL_CLASSES = (*CLASSES, BUFFERED, "SATA SSD")
"""And the emulated SSD behind a buffer that takes writes and reads ahead; a SATA SSD by its data sheet."""
MODELLED = ("HDD", "RAID-0", "SATA SSD")
FILE_MB = (40, 200, 400, 800, 1200)
LABELS = ("modelled disks", "emulated SSD", "virtual time")
_MB = 1_000_000


def make_device(name: str, file_mb: int, spec: str = QUARTER_FULL) -> Callable[[int, bool], Benchmark]:
    """A device of one of ALL_CLASSES, SLOW_BUS or VARYING.

    The arguments of the result are a seed and whether all tests share one file.
    """
    if name == "SSD":
        return lambda seed, one: EmulatedSsd(spec, file_mb * _MB, seed, one)
    if name == VARYING:
        return lambda seed, one: Varying(EmulatedSsd(spec, file_mb * _MB, seed, one), _DEVIATION, seed)
    if name == BUFFERED:
        return lambda seed, one: EmulatedSsd(spec, file_mb * _MB, seed, one, Buffer())
    if name == "SATA SSD":
        return lambda _seed, _one: SataSsd(SataParameters(file_mb * _MB))
    if name == SLOW_BUS:
        # 8b/10b: a byte is ten bits on the wire.
        slow = SataParameters(file_mb * _MB, read_bytes_s=150e6, write_bytes_s=150e6)
        return lambda _seed, _one: SataSsd(slow)
    if name == "HDD":
        disk = ArrayParameters(BARRACUDA_XT, file_bytes=file_mb * _MB)
    else:
        disk = ArrayParameters(CHEETAH_15K7, disks=2, file_bytes=file_mb * _MB)
    return lambda seed, one: DiskArray(disk, seed, one)


def _device(name: str, file_mb: int, seed: int) -> Benchmark:
    """A device on which each test has its own file, as with IOzone."""
    return make_device(name, file_mb, SMALL_SSD)(seed, False)


def file_mb(trial: Trial, name: str) -> int:
    """The paper's 1200 MB; less if every page of an SSD is simulated, and in quick runs."""
    if name in ("SSD", BUFFERED, VARYING):
        return 20 if trial.quick else 40
    return 200 if trial.quick else 1200


def file_sizes(trial: Trial) -> tuple[int, ...]:
    """The paper's five sizes; two of them in quick runs."""
    return FILE_MB[:2] if trial.quick else FILE_MB


@lru_cache(maxsize=128)
def complete(name: str, megabytes: int, seed: int) -> Complete:
    """The complete profile: every size, until each mean is known."""
    return measure_completely(
        _device(name, megabytes, 1000 + seed), all_sizes(DEFAULT_INTERVALS), tuple(Direction)
    )


@lru_cache(maxsize=1024)
def serra(name: str, megabytes: int, seed: int, points: int, repetitions: int) -> tuple[Analysis, float]:
    """The tool's profile as published, and the virtual seconds it took."""
    device = _device(name, megabytes, seed)
    sizes = draw_points(DEFAULT_INTERVALS, points, seed)
    found = measure_as_the_paper(device, sizes, repetitions)
    return analyse(DEFAULT_INTERVALS, found, Fit.LEAST_SQUARES), device.now_s()


def name_of(access: Access) -> str:
    """One of `write`, `random write`, `read`, `random read`."""
    return f"{'random ' if access.order is Order.RANDOM else ''}{access.direction.value}"
