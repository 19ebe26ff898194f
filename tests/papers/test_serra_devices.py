"""Devices in virtual time: they reproduce their data sheets, and SeRRa can estimate them."""

from __future__ import annotations

import pytest

from ftl_emul import Disks, DriveError, disk_presets
from papers.serra.devices import (
    BARRACUDA_XT,
    CHEETAH_15K7,
    ArrayParameters,
    Buffer,
    DiskArray,
    EmulatedSsd,
    SataParameters,
    SataSsd,
    measure_completely,
)
from slo_ctl.base.progress import Silent
from slo_ctl.decide.profile_fit import Fit, analyse
from slo_ctl.decide.request_sizes import DEFAULT_INTERVALS, all_sizes, draw_points
from slo_ctl.model.measurement import ACCESSES, RAND_READ, RAND_WRITE, SEQ_READ, SEQ_WRITE, Direction, Part
from slo_ctl.profile.sweep import StoppingRule, SweepPlan, run

MIB = 1 << 20


def test_random_access_time_matches_calculation_by_hand() -> None:
    # Over the whole disk: average seek, half a revolution, a command, and the transfer.
    parameters = ArrayParameters(BARRACUDA_XT, file_bytes=2_000_000_000_000 // 50 * 49, placed_within=1.0)
    # A minute has 5000 of the 30 million requests of the whole test.
    found = DiskArray(parameters, 1).measure(RAND_READ, 65536, 0, 60.0, Part(end=1))
    assert found.elapsed_s >= 60.0
    expected = 8.5e-3 * 0.98 + 60 / 7200 / 2 + 100e-6 + 65536 / 103.5e6
    assert found.access_time_s == pytest.approx(expected, rel=0.03)


def test_a_stream_runs_at_the_media_rate() -> None:
    one = ArrayParameters(BARRACUDA_XT, file_bytes=200 * MIB, placed_within=0.001)
    found = DiskArray(one, 1).measure(SEQ_READ, MIB, 0, None)
    assert MIB / found.access_time_s == pytest.approx(138e6, rel=0.02)
    two = ArrayParameters(CHEETAH_15K7, disks=2, file_bytes=200 * MIB, placed_within=0.01)
    both = DiskArray(two, 1).measure(SEQ_READ, MIB, 0, None)
    assert MIB / both.access_time_s == pytest.approx(2 * 204e6, rel=0.02)


def test_presets_name_their_sources() -> None:
    known = {preset.name: preset for preset in disk_presets()}
    assert set(known) == {BARRACUDA_XT, CHEETAH_15K7}
    assert all("Assumed" in preset.description for preset in known.values())
    with pytest.raises(ValueError, match="cheetah-15k7"):
        Disks("cheetah", 1, 65536)
    with pytest.raises(DriveError, match="disks"):
        Disks(CHEETAH_15K7, 0, 65536)


def test_truncated_test_keeps_its_time_limit() -> None:
    for access in ACCESSES:
        device = DiskArray(ArrayParameters(BARRACUDA_XT, file_bytes=200 * MIB), 1)
        found = device.measure(access, 8192, 0, 0.25)
        # The write cache is emptied within the test.
        assert 0.25 <= found.elapsed_s < (0.6 if access.direction is Direction.WRITE else 0.3)
        assert device.now_s() == pytest.approx(found.elapsed_s)


def test_the_same_seed_gives_the_same_times() -> None:
    times = {
        DiskArray(ArrayParameters(BARRACUDA_XT, file_bytes=40 * MIB), seed)
        .measure(RAND_WRITE, 65536, 2, None)
        .access_time_s
        for seed in (1, 1, 2)
    }
    assert len(times) == 2


@pytest.mark.parametrize(("disk", "disks"), [(BARRACUDA_XT, 1), (CHEETAH_15K7, 2)])
def test_two_points_estimate_a_disk_within_the_bars(disk: str, disks: int) -> None:
    """The required accuracy, with a file of the size for which bench/serra.py has more."""
    parameters = ArrayParameters(disk, disks=disks, file_bytes=400_000_000)
    complete = measure_completely(DiskArray(parameters, 99), all_sizes(DEFAULT_INTERVALS), tuple(Direction))
    benchmark = DiskArray(parameters, 1)
    plan = SweepPlan(draw_points(DEFAULT_INTERVALS, 2, 1), ACCESSES, StoppingRule(), 1.0)
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


def test_a_sata_ssd_does_what_its_data_sheet_says() -> None:
    ssd = SataSsd(SataParameters())
    times = {access: ssd.measure(access, 4096, 0, None).access_time_s for access in ACCESSES}
    assert 1 / times[RAND_READ] == pytest.approx(10_000, rel=0.01)
    assert 1 / times[RAND_WRITE] == pytest.approx(40_000, rel=0.01)
    large = {access: (4 << 20) / ssd.measure(access, 4 << 20, 0, None).access_time_s for access in ACCESSES}
    assert large[SEQ_READ] == pytest.approx(540e6, rel=0.01)
    assert large[SEQ_WRITE] == pytest.approx(520e6, rel=0.01)
    assert large[RAND_READ] < large[SEQ_READ]
    begun = ssd.now_s()
    cut = ssd.measure(RAND_READ, 4096, 1, 0.01)
    assert 0.01 <= ssd.now_s() - begun == pytest.approx(cut.elapsed_s, rel=1e-6)
    assert cut.requests == 101


def test_a_buffer_hides_the_flash_from_what_it_foresees() -> None:
    spec, file_bytes = "preset=tlc,size=1GiB,op=300%,block=1536KiB", 16 * MIB
    plain, buffered = EmulatedSsd(spec, file_bytes, 1), EmulatedSsd(spec, file_bytes, 1, buffer=Buffer())
    without, with_it = (
        {access: ssd.measure(access, 4096, 0, None).access_time_s for access in ACCESSES}
        for ssd in (plain, buffered)
    )
    # Memblaze on a PBlaze7 7940: 5.96 us.
    assert with_it[SEQ_READ] == pytest.approx(5.96e-6, rel=0.02)
    # A random read waits for command and flash in sequence.
    assert with_it[RAND_READ] == pytest.approx(without[RAND_READ] + Buffer().command_s, rel=0.02)
    assert with_it[RAND_READ] > 5 * with_it[SEQ_READ]
    assert with_it[RAND_WRITE] < without[RAND_WRITE]
    ratios = [
        buffered.measure(RAND_READ, size, 0, None).access_time_s
        / buffered.measure(SEQ_READ, size, 0, None).access_time_s
        for size in (8192, 65536, 4 * MIB)
    ]
    assert ratios[0] > ratios[1] > ratios[2] == pytest.approx(1, rel=0.05)


def test_a_buffered_test_cut_short_keeps_to_its_time() -> None:
    ssd = EmulatedSsd("preset=tlc,size=1GiB,op=300%,block=1536KiB", 16 * MIB, 1, buffer=Buffer())
    begun = ssd.now_s()
    found = ssd.measure(SEQ_READ, 4096, 0, 0.005)
    assert 0.005 <= found.elapsed_s < 0.0055
    assert ssd.now_s() - begun == pytest.approx(found.elapsed_s)
    assert found.elapsed_s / found.requests == pytest.approx(found.access_time_s)


def test_a_file_larger_than_the_drive() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        EmulatedSsd("preset=fast15,size=256MiB,op=20%", 512 * MIB, 1)
