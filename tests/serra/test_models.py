"""Devices in virtual time: what their data sheets say comes out again, and SeRRa estimates them."""

from __future__ import annotations

import numpy as np
import pytest

from slo_ctl.replay.progress import Silent
from slo_ctl.serra.analysis import analyse
from slo_ctl.serra.complete import measure_completely
from slo_ctl.serra.line import Fit
from slo_ctl.serra.measurement import ACCESSES, RAND_READ, RAND_WRITE, SEQ_READ, SEQ_WRITE, Direction
from slo_ctl.serra.models.array import ArrayParameters, DiskArray, _before
from slo_ctl.serra.models.disk import BARRACUDA_XT, CHEETAH_15K7, Disk, DiskParameters
from slo_ctl.serra.models.ssd import EmulatedSsd
from slo_ctl.serra.points import DEFAULT_INTERVALS, all_sizes, draw_points
from slo_ctl.serra.profiler import Plan, run
from slo_ctl.serra.stopping import StoppingRule

MIB = 1 << 20


@pytest.mark.parametrize("parameters", [BARRACUDA_XT, CHEETAH_15K7])
def test_seeks_are_as_long_as_the_data_sheet_says(parameters: DiskParameters) -> None:
    disk = Disk(parameters)
    draw = np.random.default_rng(1)
    ends = draw.integers(0, disk.cylinders, (2, 200_000)).astype(np.float64)
    assert disk.seek_s(np.abs(ends[0] - ends[1])).mean() == pytest.approx(parameters.seek_average_s, rel=0.01)
    assert disk.seek_s(np.array([0.0]))[0] == 0
    assert disk.seek_s(np.array([1.0]))[0] == parameters.seek_min_s
    assert disk.seek_s(np.array([float(disk.cylinders)]))[0] == pytest.approx(parameters.seek_max_s, rel=1e-3)
    curve = disk.seek_s(np.arange(disk.cylinders, dtype=np.float64))
    assert (np.diff(curve) >= 0).all(), "further is never faster"


def test_zones_and_cylinders() -> None:
    disk, p = Disk(BARRACUDA_XT), BARRACUDA_XT
    ends = np.array([0.0, p.capacity_bytes - 1.0])
    assert list(disk.rate_bytes_s(ends)) == [p.outer_bytes_s, p.inner_bytes_s]
    cylinders = disk.cylinder(np.linspace(0, p.capacity_bytes - 1, 1000))
    assert (np.diff(cylinders) > 0).all()
    assert (cylinders[0], cylinders[-1]) == (0, disk.cylinders - 1)


def test_a_random_access_of_a_disk_by_hand() -> None:
    # Over the whole of a disk: average seek, half a revolution, a command, and the transfer.
    parameters = ArrayParameters(file_bytes=BARRACUDA_XT.capacity_bytes // 50 * 49, placed_within=1.0)
    found = DiskArray(Disk(BARRACUDA_XT), parameters, 1).measure(RAND_READ, 8192, 0, 60.0)
    expected = 8.5e-3 * 0.98 + 60 / 7200 / 2 + 100e-6 + 8192 / 103.5e6
    assert found.access_time_s == pytest.approx(expected, rel=0.03)


def test_a_stream_runs_at_the_media_rate() -> None:
    found = DiskArray(Disk(BARRACUDA_XT), ArrayParameters(file_bytes=200 * MIB), 1).measure(
        SEQ_READ, MIB, 0, None
    )
    assert MIB / found.access_time_s == pytest.approx(138e6, rel=0.07)
    two = DiskArray(Disk(CHEETAH_15K7), ArrayParameters(disks=2, file_bytes=200 * MIB), 1).measure(
        SEQ_READ, MIB, 0, None
    )
    assert MIB / two.access_time_s == pytest.approx(2 * 204e6, rel=0.07)


def test_stripes_are_dealt_out_whole() -> None:
    parameters = ArrayParameters(disks=3, stripe_bytes=4)
    offsets = np.arange(0, 60, dtype=np.float64)
    parts = [_before(offsets, number, parameters) for number in range(3)]
    assert (sum(parts) == offsets).all()
    by_hand = [sum(1 for byte in range(int(end)) if byte // 4 % 3 == 1) for end in offsets]
    assert list(parts[1]) == by_hand


def test_a_test_cut_short_keeps_to_its_time() -> None:
    for access in ACCESSES:
        device = DiskArray(Disk(BARRACUDA_XT), ArrayParameters(file_bytes=200 * MIB), 1)
        found = device.measure(access, 8192, 0, 0.25)
        assert 0.2 < found.elapsed_s < 0.3
        assert device.now_s() == pytest.approx(found.elapsed_s)


def test_the_same_seed_gives_the_same_times() -> None:
    times = {
        DiskArray(Disk(BARRACUDA_XT), ArrayParameters(file_bytes=40 * MIB), seed)
        .measure(RAND_WRITE, 65536, 2, None)
        .access_time_s
        for seed in (1, 1, 2)
    }
    assert len(times) == 2


@pytest.mark.parametrize(("disk", "disks"), [(BARRACUDA_XT, 1), (CHEETAH_15K7, 2)])
def test_two_points_estimate_a_disk_within_the_bars(disk: DiskParameters, disks: int) -> None:
    """The issue's bars, with a file of the size where bench/serra.py has more."""
    parameters = ArrayParameters(disks=disks, file_bytes=400_000_000)
    complete = measure_completely(
        DiskArray(Disk(disk), parameters, 99), all_sizes(DEFAULT_INTERVALS), tuple(Direction)
    )
    benchmark = DiskArray(Disk(disk), parameters, 1)
    plan = Plan(draw_points(DEFAULT_INTERVALS, 2, 1), ACCESSES, StoppingRule(), 1.0)
    session = run(plan, benchmark, [], Silent(), lambda _: None)
    for summary in analyse(DEFAULT_INTERVALS, session.measurements, Fit.THEIL_SEN).summaries:
        assert complete.median_error(summary) <= 0.05
    assert benchmark.now_s() <= complete.spent_s / 168


def test_the_emulated_ssd_is_indifferent_to_order() -> None:
    ssd = EmulatedSsd("preset=fast15,size=256MiB,op=20%", 16 * MIB, 1)
    times = {access: ssd.measure(access, 65536, 0, None).access_time_s for access in ACCESSES}
    assert times[RAND_READ] == pytest.approx(times[SEQ_READ], rel=0.3)
    assert times[SEQ_WRITE] > times[SEQ_READ]
    begun = ssd.now_s()
    cut = ssd.measure(SEQ_WRITE, 4096, 1, 0.05)
    assert 0.05 <= ssd.now_s() - begun == pytest.approx(cut.elapsed_s)
    assert cut.requests < 16 * MIB // 4096


def test_a_file_larger_than_the_drive() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        EmulatedSsd("preset=fast15,size=256MiB,op=20%", 512 * MIB, 1)
