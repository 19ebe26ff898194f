"""Files that `bench/peers.py` writes for other simulators and reads from them, recorded from real runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import peers
import pytest
from peer_femu import Femu, femu_free_lines, femu_line_pages
from peer_programs import (
    DiskSim,
    Flash,
    PeerError,
    disksim_drive,
    disksim_flash,
    disksim_requests,
    mqsim_drive,
    mqsim_flash,
    mqsim_never_completed,
    mqsim_requests,
    mqsim_work,
    program_of,
)
from peer_work import (
    BURST,
    WORKS,
    Drive,
    OurDrive,
    Outcome,
    Phase,
    make_work,
    our_config,
    run_ours,
    write_lines,
)

SMALL = Drive(dies=2, blocks_per_die=64)
SIX = Phase(
    np.array([0, 0, 0, 100_000, 2_000_000, 2_000_000]),
    np.array([0, 2, 0, 1, 5, 0]),
    np.array([1, 1, 1, 1, 0, 1], np.bool_),
)
"""Recorded on `SMALL`."""

EVENTS = """\
Request completion: simtime 0.820480, devno 0, blkno 0, time 0.000000
Request completion: simtime 0.920480, devno 0, blkno 8, time 0.000000
Request completion: simtime 1.640960, devno 0, blkno 16, time 0.000000
Request completion: simtime 2.080480, devno 0, blkno 40, time 0.000000
Request completion: simtime 2.461440, devno 0, blkno 0, time 0.000000
Request completion: simtime 3.281920, devno 0, blkno 0, time 0.000000
"""
LOG = """\
SimulationTime(us)\tReponseTime(us)\tEndToEndDelay(us)
820\t820\t820
920\t820\t820
1641\t1641\t1641
2080\t80\t80
2462\t2462\t2462
3283\t1283\t1283
"""
# Output of a drive after GC.
FTL = """\
<MQSim_Results><SSDDevice><SSDDevice.FTL Issued_Flash_Program_CMD="3925652" Issued_Flash_Erase_CMD="28692"
Total_GC_Executions="28689" Average_Page_Movement_For_GC="96.594653" Total_WL_Executions="3"/>
</SSDDevice></MQSim_Results>
"""
CLEANED = """\
ssd  #0 elem #0   Total reqs issued:\t122697
ssd  #0 elem #0   Total time taken:\t103396.243200
ssd  #0 elem #0   Total cleaning reqs issued:\t3533
ssd  #0 elem #0   Pages moved:\t330435
ssd  #0 elem #0   Total dead blocks:\t0
ssd  #0 elem #1   Total reqs issued:\t122743
ssd  #0 elem #1   Total cleaning reqs issued:\t3538
ssd  #0 elem #1   Pages moved:\t331020
ssd  #0 elem #1   Total dead blocks:\t0
"""


@pytest.fixture(name="events")
def _events(tmp_path: Path) -> Path:
    path = tmp_path / "events"
    path.write_text(EVENTS)
    return path


def test_parsers_of_both_peers_agree_on_six_requests(events: Path, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(LOG)
    of_disksim, of_mqsim = disksim_requests(events, [SIX], 8), mqsim_requests(tmp_path / "log", 0)
    assert of_disksim.response_ns.tolist() == [820_480, 820_480, 1_640_960, 80_480, 2_461_440, 1_281_920]
    # MQSim has whole us, and some hundred ns for commands.
    assert np.abs(of_disksim.response_ns - of_mqsim.response_ns).max() < 2_000
    assert np.abs(of_disksim.completed_ns - of_mqsim.completed_ns).max() < 2_000


def test_slo_ctl_takes_as_long_for_one_request() -> None:
    ours = OurDrive(SMALL, our_config(SMALL))
    one = Phase(SIX.time_ns[:1], SIX.page[:1], SIX.is_write[:1])
    assert ours.play(one)[1] == pytest.approx(0.82048)
    read = Phase(SIX.time_ns[:1], SIX.page[:1], ~SIX.is_write[:1])
    assert ours.play(read)[1] == pytest.approx(0.08048)


def test_unknown_request_in_output_is_refused(events: Path) -> None:
    fewer = Phase(SIX.time_ns[:5], SIX.page[:5], SIX.is_write[:5])
    with pytest.raises(PeerError, match="completed 6 requests of 5"):
        disksim_requests(events, [fewer], 8)


def test_gc_counters_are_parsed() -> None:
    assert mqsim_flash(FTL, 1_155_440) == Flash(1_155_440, 2_771_204, 28_689)
    assert disksim_flash(CLEANED, 245_440) == Flash(245_440, 661_455, 7_071)


def test_mqsim_without_gc_has_no_average() -> None:
    never = re.sub(r'Executions="28689" Average_Page_Movement_For_GC="[\d.]+"', "", FTL)
    never = never.replace("Total_GC_", 'Total_GC_Executions="0" Average_Page_Movement_For_GC="-nan"')
    assert mqsim_flash(never, 5) == Flash(5, 0, 0)


def test_dead_blocks_and_missing_counters_are_refused() -> None:
    with pytest.raises(PeerError, match="fewer --requests"):
        disksim_flash(CLEANED.replace("dead blocks:\t0", "dead blocks:\t3"), 1)
    with pytest.raises(PeerError, match="no Total dead blocks"):
        disksim_flash("*** error", 1)
    with pytest.raises(PeerError, match="Total_GC_Executions"):
        mqsim_flash("<MQSim_Results/>", 1)


def test_uncompleted_requests_of_mqsim_are_counted() -> None:
    output = "Flow trace - total requests generated: 1155440 total requests serviced:1154116\n"
    assert mqsim_never_completed(output) == 1_324


def test_traces_have_the_operation_that_each_simulator_expects(tmp_path: Path) -> None:
    last = Phase(SIX.time_ns[3:5], SIX.page[3:5], SIX.is_write[3:5])
    write_lines(tmp_path / "mqsim", "{:.0f} 0 {} {} {}\n", [last], 1, 8)
    assert (tmp_path / "mqsim").read_text() == "100000 0 8 8 0\n2000000 0 40 8 1\n"
    write_lines(tmp_path / "disksim", "{:.6f} 0 {} {} {}\n", [last], 1_000_000, 8)
    assert (tmp_path / "disksim").read_text() == "0.100000 0 8 8 0\n2.000000 0 40 8 1\n"


def test_descriptions_have_the_same_drive() -> None:
    xml = ElementTree.fromstring(mqsim_drive(SMALL, preemptible_gc=True, logged=True))  # noqa: S314
    text = disksim_drive(SMALL, None)

    def mqsim(name: str) -> float:
        (found,) = xml.iter(name)
        return float(found.text or "")

    def disksim(name: str) -> float:
        (found,) = re.findall(rf"^{name} = ([\d.]+),?$", text, re.MULTILINE)
        return float(found)

    assert mqsim("Flash_Channel_Count") == disksim("Flash chip elements") == SMALL.dies
    assert mqsim("Block_No_Per_Plane") == disksim("Blocks per plane") == disksim("Blocks per element")
    assert mqsim("Page_No_Per_Block") == disksim("Pages per block") == SMALL.pages_per_block
    assert mqsim("Page_Read_Latency_LSB") == disksim("Page read latency") * 1e6 == SMALL.read_ns
    assert mqsim("Page_Program_Latency_LSB") == disksim("Page write latency") * 1e6 == SMALL.program_ns
    assert mqsim("Block_Erase_Latency") == disksim("Block erase latency") * 1e6 == SMALL.erase_ns
    # Two bytes in (1000 / rate, in whole ns) x 2; sectors of 512 + 16 bytes, in ms.
    assert int(1000 / mqsim("Channel_Transfer_Rate")) * SMALL.page_bytes == SMALL.transfer_ns
    assert disksim("Chip xfer latency") * 8 * 528 * 1e6 == pytest.approx(SMALL.transfer_ns)
    assert mqsim("Overprovisioning_Ratio") < 1 - SMALL.logical_pages / SMALL.pages
    assert "<Channel_IDs>0,1<" in mqsim_work(SMALL)
    assert "Detailed execution trace = events" in disksim_drive(SMALL, "events")


@pytest.mark.parametrize("name", WORKS)
def test_requests_are_repeatable_and_fit(name: str) -> None:
    work, again = (make_work(name, SMALL, 500, seed=1) for _ in range(2))
    for phase, same in zip(work.phases, again.phases, strict=True):
        assert np.array_equal(phase.page, same.page)
        assert np.array_equal(phase.time_ns, same.time_ns)
        assert phase.page.min() >= 0
        assert phase.page.max() < SMALL.logical_pages
        assert (np.diff(phase.time_ns) >= 0).all()
    assert np.array_equal(work.fill.page, np.arange(SMALL.logical_pages))
    assert 0.6 < 1 - work.burst.is_write.mean() < 0.8 if name == "mixed" else work.burst.is_write.all()
    assert work.burst.time_ns.min() > work.warm_up.time_ns.max()
    assert np.ptp(work.burst.time_ns) == 0


def test_as_many_paced_requests_as_the_burst_has_are_paced() -> None:
    assert np.ptp(make_work("uniform", SMALL, BURST, seed=1).paced.time_ns) > 0


def test_a_fifth_of_the_pages_gets_four_fifths_of_the_writes() -> None:
    warm_up = make_work("hot/cold", SMALL, 500, seed=1).warm_up
    writes = np.bincount(warm_up.page, minlength=SMALL.logical_pages)
    hottest = np.sort(writes)[::-1][: SMALL.logical_pages // 5].sum()
    assert hottest / writes.sum() == pytest.approx(0.8, abs=0.02)


def test_slo_ctl_without_gc_has_its_ideal_speed() -> None:
    found = run_ours(make_work("sequential", SMALL, 2_000, seed=1), SMALL)
    assert found.waf == 1.0
    assert found.iops == pytest.approx(2e9 / (SMALL.program_ns + SMALL.transfer_ns), rel=0.03)


def test_missing_build_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PeerError, match="no such directory; --mqsim takes a checkout of MQSim"):
        program_of(tmp_path / "nowhere", "MQSim", "MQSim")
    assert peers.main(["--mqsim", str(tmp_path), "--only", "sequential"]) == 2
    assert "build MQSim in its checkout first" in capsys.readouterr().err


def test_disksim_checkout_without_ssd_extension_is_reported(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "disksim").touch(mode=0o755)
    with pytest.raises(PeerError, match="no SSD extension"):
        DiskSim(tmp_path)


def test_table_has_rows_and_reasons() -> None:
    drive = Drive()
    outcome = Outcome("DiskSim", "uniform", 3.75, 1155, 16.9, 82.8, 270_540, 93.1)
    lost = Outcome("MQSim, GC first", "uniform", 4.1, 1000, 72.0, 300.0, 60_000, 96.6, never_completed=1_239)
    same = peers.Reproduced("DiskSim", "uniform", 3.69)
    table = peers.as_table([outcome, lost], [same], drive)
    assert table.startswith("SIMULATED: 4 dies")
    assert "1,239 never completed" in table
    assert "ours, kept alike    3.69" in table
    first, second = peers.why([outcome, lost], [same], drive, 108_000)
    assert "+1.6 % from that of ours with what DiskSim keeps" in first
    assert "here 81.6 ms" in second


def test_a_peer_that_stalled_is_not_compared() -> None:
    stalled = Outcome("MQSim, GC first", "mixed", 1.4, 2600, 8.9, 292.0, 72_812, 96.5, never_completed=60_538)
    same = peers.Reproduced("MQSim, GC first", "mixed", 4.03)
    assert peers.deviation(stalled, [same], 108_000) is None
    assert peers.deviation(replace(stalled, never_completed=0), [same], 108_000) == pytest.approx(
        1.4 / 4.03 - 1
    )
    assert "stalled" in peers.why([stalled], [same], Drive(), 108_000)[0]


def test_mean_of_slo_ctl_is_explained_by_gc() -> None:
    ours = Outcome("slo-ctl", "uniform", 3.37, 1379, 2.94, 4.18, 3_500_000, 90.0)
    assert "its part of GC, 2.90 ms" in peers.why([ours], [], Drive(), 108_000)[0]


def test_unknown_workload_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        peers.main(["--only", "uniform,random"])
    assert "random: not of uniform" in capsys.readouterr().err


def test_femu_needs_a_checkout_whose_ftl_compiles(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"ftl\.c is missing: --femu takes a checkout"):
        Femu(tmp_path)
    ftl = tmp_path / "hw/femu/bbssd/ftl.c"
    ftl.parent.mkdir(parents=True)
    ftl.write_text("not C")
    with pytest.raises(PeerError, match=r"ftl\.c cannot be compiled: "):
        Femu(tmp_path)


def test_femu_keeps_a_hundredth_of_its_lines_free() -> None:
    drive = Drive()
    config = peers.config_like(Femu.name, drive)
    assert femu_free_lines(drive) == 5
    assert config.free_floor == 6
    assert config.pages_per_block == femu_line_pages(drive) == 512
    # As large as the drive, in blocks of a line.
    assert OurDrive(drive, config).device.blocks * 512 == drive.pages
