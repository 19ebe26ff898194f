"""The engine: events, ends, windows, interruption, and reproducible results."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dying_tasks import die

from slo_ctl.base import progress as progress_module
from slo_ctl.base.errors import UserError
from slo_ctl.base.progress import ProgressSink, Silent
from slo_ctl.replay import policy_run
from slo_ctl.replay import run as engine
from slo_ctl.replay.result import Result
from slo_ctl.replay.scenario_build import build_scenario
from slo_ctl.replay.scenario_text import ScenarioText
from slo_ctl.show.replay_table import workloads_label

TRACES = Path(os.environ.get("SLO_CTL_TRACES", Path(__file__).resolve().parents[3] / "shared" / "traces"))
REAL = [
    "vscsi/cloudPhysicsIO.vscsi.zst",
    "spc/Financial1_10k_reconstructed.spc.zst",
    "disksim/disksim_iozone_100K.ascii.zst",
]
TWO = ("name=a,workload=uniform", "name=b,workload=hotcold,weight=2")


def replay(
    *vms: str,
    device: str = "size=64MiB,dies=2",
    events: tuple[str, ...] = (),
    jobs: int = 1,
    progress: ProgressSink | None = None,
    **settings: str,
) -> Result:
    text = ScenarioText()
    text.add_device(f"preset=fast15,op=15%,{device}")
    for vm in vms or TWO:
        text.add_vm(vm)
    for event in events:
        text.add_event(event)
    for key, value in {"alone": "no", "duration": "2x", **settings}.items():
        text.set(key, value)
    return engine.run(build_scenario(text), progress or Silent(), jobs)


def test_events_happen_at_their_time() -> None:
    (run,) = replay(
        events=("at=.5x,vm=a,action=weight,weight=4", "at=1x,vm=b,action=stop", "at=1.5x,vm=b,action=start")
    ).runs
    assert [(e.vm, e.action, e.weight) for e in run.events] == [
        ("a", "weight", 4.0),
        ("b", "stop", None),
        ("b", "start", None),
    ]
    assert [e.drive_writes for e in run.events] == pytest.approx([0.5, 1.0, 1.5], abs=1e-3)
    assert run.vms[0].weight == 4.0
    b = run.series.vms[1]
    stopped = [share for x, share in zip(run.series.drive_writes, b.share, strict=True) if 1.06 < x < 1.5]
    assert stopped
    assert not any(stopped)
    assert b.share[-1]


def test_algorithm1_by_the_iops_that_the_ssd_is_specified_with() -> None:
    result = replay(policy="algorithm1:2000", compare="algorithm1:50", timing="paper", duration="4x")
    easy, hard = result.runs
    assert (easy.policy, hard.policy) == ("algorithm1:50", "algorithm1:2000")
    # 50 IOPS are reached with any OPS: no block moves. 2,000 are not: a VM is drained.
    assert easy.vms[0].ops_blocks != hard.vms[0].ops_blocks


def test_a_window_is_judged_by_the_slos_and_vms_of_its_own_end() -> None:
    weights = "at=1x,vm=a,action=weight,weight=6"
    (later,) = replay(window="0x..1x", events=("at=1.5x,vm=a,action=stop",)).runs
    assert later.vms[0].target_share
    assert not later.notes
    (before,) = replay(window="1x..2x", events=(weights,)).runs
    assert before.vms[0].weight == 6.0
    assert not before.notes
    (within,) = replay(window=".5x..1.5x", events=(weights, "at=1.2x,vm=b,action=stop")).runs
    assert within.notes == [
        "VM a got weight 6 and VM b stopped in the measured window: TARGET is that of its end only"
    ]


def test_a_trace_that_steps_back_in_time_is_reported_where_times_count(tmp_path: Path) -> None:
    lines = ["#slo-ctl-trace 1", "time_ns,op,offset_bytes,length_bytes,volume"]
    lines += [f"{second * 10**9},write,{4096 * second},4096,v" for second in (0, 3, 1, 2, 4)]
    trace = tmp_path / "steps.csv"
    trace.write_text("\n".join(lines) + "\n")
    result = replay(f"name=a,trace={trace},mode=open,scale=2", TWO[1])
    (note,) = [note for note in result.notes if "order of time" in note]
    assert note.startswith("VM a: its trace is not in order of time: 2 of 5 requests are sent with earlier")
    assert note.endswith("up to 1 s late")
    assert "order of time" not in str(replay(f"name=a,trace={trace}", TWO[1]).notes)


def test_years_between_requests_matter_only_to_an_open_loop(tmp_path: Path) -> None:
    century_ns = 10**9 * 3600 * 24 * 365 * 100
    trace = tmp_path / "century.csv"
    rows = f"0,write,0,4096,v\n{century_ns},write,4096,4096,v\n"
    trace.write_text(f"#slo-ctl-trace 1\ntime_ns,op,offset_bytes,length_bytes,volume\n{rows}")
    (run,) = replay(f"name=a,trace={trace}", TWO[1]).runs
    assert run.vms[0].host_page_writes > 1000
    with pytest.raises(UserError) as caught:
        replay(f"name=a,trace={trace},mode=open", TWO[1], duration="10000000000s", epoch="1000000000s")
    assert caught.value.message == f"VM a: {trace}: the repeated trace is longer than 146 years"
    assert "--max-gap" in caught.value.hint


def test_the_longest_time_can_be_played() -> None:
    longest = "18446744073s"
    (run,) = replay("name=a,workload=uniform,total=1MiB", duration=longest, epoch=longest).runs
    assert run.host_page_writes == 256


def test_a_trace_of_flushes_can_be_scaled(tmp_path: Path) -> None:
    """It has no end, by which offsets would be scaled."""
    trace = tmp_path / "flushes.csv"
    rows = "0,flush,0,0,v\n1000,flush,0,0,v\n"
    trace.write_text(f"#slo-ctl-trace 1\ntime_ns,op,offset_bytes,length_bytes,volume\n{rows}")
    (run,) = replay(f"name=a,trace={trace},remap=scale", TWO[1], duration="1s").runs
    assert run.vms[0].iops


def test_a_trace_without_time_is_repeated_only_with_a_period(tmp_path: Path) -> None:
    """It was repeated millions of times at one instant, for minutes, and was taken for one of reads only."""
    trace = tmp_path / "one.csv"
    trace.write_text("#slo-ctl-trace 1\ntime_ns,op,offset_bytes,length_bytes,volume\n0,write,0,4096,v\n")
    with pytest.raises(UserError) as caught:
        replay(f"name=a,trace={trace},mode=open", TWO[1], duration="1s")
    assert caught.value.message.startswith(f"VM a: {trace}: all requests have the same time")
    assert "period=60s" in caught.value.hint
    for key, writes in (("loops=1", 1), ("period=100ms,loops=10", 10)):
        run = replay(f"name=a,trace={trace},mode=open,{key}", TWO[1], duration="1s", window="all").runs[0]
        assert run.vms[0].host_page_writes == writes


def test_the_label_says_synthetic_also_of_vms_that_did_not_run() -> None:
    result = replay(TWO[0], TWO[1] + ",start=stopped")
    assert workloads_label(result) == "synthetic workloads"


def test_event_times_can_be_virtual_time() -> None:
    (run,) = replay(duration="20s", epoch="1s", events=("at=10s,vm=a,action=stop",)).runs
    assert run.events[0].virtual_s == pytest.approx(10.0, abs=1e-6)
    assert run.virtual_s == pytest.approx(20.0)


def test_a_vm_that_starts_stopped_waits_for_its_event() -> None:
    vms = (TWO[0], TWO[1] + ",start=stopped")
    (never,) = replay(*vms).runs
    assert never.vms[1].host_page_writes == 0
    assert never.vms[1].target_share == 0.0
    assert never.vms[1].share_error is None
    assert never.vms[0].target_share == 1.0
    (later,) = replay(*vms, events=("at=1x,vm=b,action=start",)).runs
    assert later.vms[1].host_page_writes > 0


def test_new_drive_collects_no_garbage_until_it_is_full() -> None:
    result = replay(
        duration="0.9x", window="all", policy="shared", device="size=64MiB,dies=2,precondition=no"
    )
    assert result.device.preconditioning_drive_writes is None
    assert result.runs[0].waf == 1.0


def test_all_policies_are_judged_by_the_rule_of_the_last() -> None:
    (note,) = replay(duration=".2x", policy="proportional-strict", compare="proportional").notes
    assert (
        note == "TARGET and VERDICT of all policies are by the rule of proportional-strict: exact proportions"
    )
    assert replay(duration=".2x", policy="proportional", compare="shared").notes == []


def test_repeated_writes_of_a_trace_are_reported(tmp_path: Path) -> None:
    trace = tmp_path / "fin.spc"
    trace.write_text("".join(f"0,{8 * page},4096,w,{page}\n" for page in range(5000)))
    (note,) = replay(f"name=a,trace={trace}", TWO[1]).notes
    assert note.startswith("traces were played repeatedly, a about ")
    assert replay(f"name=a,trace={trace},loops=1", TWO[1]).notes == []
    reads = tmp_path / "reads.spc"
    reads.write_text(trace.read_text().replace("w", "r"))
    assert replay(f"name=a,trace={reads}", TWO[1]).notes == []


def test_space_that_a_trace_does_not_touch_is_reported(tmp_path: Path) -> None:
    trace = tmp_path / "fin.spc"
    trace.write_text("".join(f"0,{8 * page},4096,w,{page}\n" for page in range(256)))
    (note,) = replay(f"name=a,trace={trace},loops=1,size=4MiB", TWO[1]).notes
    assert note == "VM a: its trace touches 1 MiB of its 4 MiB; nothing is written to the rest during the run"


def test_vms_that_ended_early_are_reported() -> None:
    (run,) = replay("name=a,workload=uniform,requests=100", TWO[1]).runs
    assert "VM a had completed its requests before the measured window" in run.notes
    (run,) = replay(events=("at=.1x,vm=a,action=stop", "at=.1x,vm=b,action=stop")).runs
    assert "all VMs had completed their requests or were stopped before the end of the run" in run.notes


def test_shares_without_a_clock_are_of_pages_read_and_written() -> None:
    reader = "name=a,workload=uniform,read=.5"
    (run,) = replay(reader, "name=b,workload=uniform,weight=3", timing="none").runs
    assert [round(vm.share or 0.0, 2) for vm in run.vms] == [0.25, 0.75]
    assert [str(vm.judged().verdict) for vm in run.vms] == ["ok", "ok"]


def test_finite_workloads_end_the_run() -> None:
    (run,) = replay("name=a,workload=uniform,requests=3000", "name=b,workload=uniform,requests=2000").runs
    assert run.host_page_writes == 5000
    assert run.complete
    assert any("had completed their requests" in note for note in run.notes)


@pytest.mark.parametrize("timing", ["full", "none"])
def test_vms_that_only_read_end_a_run_in_drive_writes(monkeypatch: pytest.MonkeyPatch, timing: str) -> None:
    monkeypatch.setattr(policy_run, "_LEAST_READS", 200_000)
    reader = "name=r,workload=uniform,read=1"
    (run,) = replay(reader, timing=timing).runs
    assert run.notes[0] == "VMs that only read never reach 2x drive writes: give seconds, such as 600s"
    (mixed,) = replay("name=w,workload=uniform", reader, alone="yes").runs
    assert not mixed.notes
    assert mixed.window.to_drive_writes == pytest.approx(2.0)
    assert mixed.vms[1].alone_iops
    (timed,) = replay(reader, duration="20s", epoch="1s").runs
    assert not timed.notes


def test_window_has_the_requested_edges() -> None:
    (run,) = replay(window=".5x..1.25x").runs
    assert run.window.from_drive_writes == pytest.approx(0.5, abs=1e-3)
    assert run.window.to_drive_writes == pytest.approx(1.25, abs=1e-3)
    written = sum(vm.host_page_writes for vm in run.vms)
    assert written == pytest.approx(0.75 * 64 * 256, rel=1e-3)
    (whole,) = replay(window="all").runs
    assert sum(vm.host_page_writes for vm in whole.vms) == whole.host_page_writes


def test_interruption_keeps_completed_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    epochs = 0
    sample = policy_run.PolicyRun._sample

    def interrupted(run: policy_run.PolicyRun) -> object:
        nonlocal epochs
        epochs += 1
        if epochs == 30:
            raise KeyboardInterrupt
        return sample(run)

    monkeypatch.setattr(policy_run.PolicyRun, "_sample", interrupted)
    result = replay(compare="static")
    assert not result.complete
    (run,) = result.runs
    assert run.policy == "static"
    assert not run.complete
    assert run.window.to_drive_writes == pytest.approx(29 * 0.05, abs=0.01)
    assert sum(vm.host_page_writes for vm in run.vms) > 0
    assert Result.model_validate_json(result.to_json()).result_hash() == result.result_hash()


def test_same_seed_same_result_and_another_seed_another() -> None:
    settings: dict[str, Any] = {
        "compare": "shared,static,algorithm1,min_waf",
        "alone": "yes",
        "duration": "1x",
    }
    first, second = (replay(seed="7", **settings) for _ in range(2))
    assert first.result_hash() == second.result_hash()
    assert first.result_hash() != replay(seed="8", **settings).result_hash()


@pytest.mark.parametrize("names", [*([name] for name in REAL), REAL], ids=lambda names: str(len(names)))
def test_real_traces_give_finite_reproducible_reports(names: list[str]) -> None:
    missing = [name for name in names if not (TRACES / name).exists()]
    if missing:
        pytest.skip(
            f"no real traces {', '.join(missing)}: set SLO_CTL_TRACES to the directory that holds them"
        )
    vms = [f"name=vm{number},trace={TRACES / name}" for number, name in enumerate(names)]
    first, second = (replay(*vms, device="size=256MiB,dies=4", duration="1x") for _ in range(2))
    assert first.result_hash() == second.result_hash()
    assert all(vm.iops for vm in first.runs[0].vms)


@pytest.mark.parametrize("policy", ["shared", "static", "algorithm1", "proportional", "min_waf"])
def test_untimed_run_gives_writes_without_rates(policy: str) -> None:
    (run,) = replay(timing="none", policy=policy).runs
    assert run.iops is None
    assert run.virtual_s is None
    assert run.waf
    a, b = run.vms
    assert (a.iops, a.latency_us.write.p50) == (None, None)
    assert b.host_page_writes == pytest.approx(2 * a.host_page_writes, rel=0.05)
    assert run.host_page_writes >= 2 * 64 * 256


def test_too_little_op_for_the_dies_is_refused() -> None:
    with pytest.raises(UserError, match="over-provisioning blocks"):
        replay(device="size=64MiB,dies=16")


def test_a_device_that_is_large_enough_is_not_to_be_enlarged() -> None:
    """The VMs leave space on it, which is not emulated."""
    with pytest.raises(UserError, match="over-provisioning blocks") as refused:
        replay("name=a,workload=uniform,size=32MiB", device="size=64MiB,dies=8")
    assert refused.value.hint == "write op=25%, or make the VMs together at least 54MiB large"


def test_every_epoch_is_a_point_of_the_series() -> None:
    (run,) = replay(epoch=".1x").runs
    assert run.series.drive_writes == pytest.approx([0.1 * (i + 1) for i in range(20)], abs=1e-3)
    assert all(sum(vm.share[i] or 0.0 for vm in run.series.vms) == pytest.approx(1.0) for i in range(20))


@pytest.mark.parametrize("mapping", ["bast", "fast"])
def test_merges_are_counted_and_timed_for_each_vm(mapping: str) -> None:
    device = f"size=64MiB,dies=2,mapping={mapping}"
    result = replay("name=a,workload=sequential", "name=b,workload=uniform", device=device, policy="static")
    a, b = (vm.merges for vm in result.runs[0].vms)
    assert a is not None
    assert b is not None
    assert a.switch > 0
    assert a.full == 0
    assert b.full > 0
    assert b.merged_blocks >= b.full
    assert b.full_s is not None
    assert b.full_s > 0
    counted = replay("name=b,workload=uniform", device=device, policy="static", timing="none")
    merges = counted.runs[0].vms[0].merges
    assert merges is not None
    assert merges.full > 0
    assert merges.full_s is None


def test_a_page_mapping_has_no_merges() -> None:
    (run,) = replay().runs
    assert [vm.merges for vm in run.vms] == [None, None]


class Amounts(Silent):
    """Records the progress of each phase, and its total."""

    def __init__(self) -> None:
        self.done_of: dict[str, list[float | None]] = {}

    def phase(self, name: str, total: float | None, unit: str) -> Amounts:
        del unit
        self.current = self.done_of[name] = [total, 0.0]
        return self

    def advance(self, amount: float) -> None:
        self.current[1] = (self.current[1] or 0.0) + amount


def test_reading_a_long_trace_shows_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took minutes without output before the first run began."""
    lines = ["#slo-ctl-trace 1", "time_ns,op,offset_bytes,length_bytes,volume"]
    lines += [f"{number},write,{4096 * (number % 1000)},4096,v" for number in range(50_000)]
    trace = tmp_path / "long.csv"
    trace.write_text("\n".join(lines) + "\n")
    short, long = Amounts(), Amounts()
    monkeypatch.setattr(progress_module, "_SHORT_S", 1000.0)
    replay(f"name=a,trace={trace}", TWO[1], progress=short)
    assert "reading long.csv" not in short.done_of
    monkeypatch.setattr(progress_module, "_SHORT_S", 0.0)
    replay(f"name=a,trace={trace}", TWO[1], progress=long)
    assert long.done_of["reading long.csv"] == [trace.stat().st_size] * 2


class InterruptedAt(Silent):
    """Raises Ctrl-C at a given progress of the replays."""

    def __init__(self, amount: float) -> None:
        self.left = amount
        self.in_replays = False

    def phase(self, name: str, total: float | None, unit: str) -> InterruptedAt:
        del total, unit
        self.in_replays = "," in name
        return self

    def advance(self, amount: float) -> None:
        if self.in_replays:
            self.left -= amount
            if self.left <= 0:
                raise KeyboardInterrupt


def test_several_processes_come_to_the_same() -> None:
    settings: dict[str, Any] = {"compare": "shared,static", "alone": "yes"}
    one, several = (replay(jobs=jobs, **settings) for jobs in (1, 3))
    assert [run.policy for run in several.runs] == ["shared", "static", "proportional"]
    assert several.runs[0].vms[0].alone_iops
    assert several.result_hash() == one.result_hash()


def test_space_that_vms_leave_is_reported() -> None:
    """Without a message the drive was a quarter of --device, and a sweep had another WAF."""
    quarter = [f"{vm},size=32MiB" for vm in TWO]
    (note,) = replay(*quarter, device="size=256MiB,dies=2").notes
    assert note.startswith("the VMs have 64 MiB of 256 MiB, and the drive is emulated without the rest")
    assert note.endswith(": op=360%")
    assert not replay(*quarter, device="size=64MiB,dies=2").notes
    assert not replay(TWO[0], TWO[1], "name=c,workload=uniform", device="size=100MiB,dies=2").notes


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def waited_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 120
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_a_killed_replay_leaves_no_processes_and_its_files_only_until_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers waited for tasks indefinitely."""
    command = [
        sys.executable,
        "-m",
        "slo_ctl.cli",
        "replay",
        "--jobs",
        "2",
        "--duration",
        "100000x",
        "--quiet",
    ]
    command += ["--device", "size=64MiB,dies=2", "--compare", "shared", "--vm", TWO[0], "--vm", TWO[1]]
    process = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path)})
    try:
        # Includes the resource tracker process of multiprocessing.
        assert waited_for(lambda: len(children(process.pid)) == 3)
        workers = children(process.pid)
    finally:
        process.kill()
        process.wait()
    assert waited_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    replay()
    assert not list(tmp_path.iterdir())


def test_interruption_of_several_processes_leaves_what_was_measured() -> None:
    result = replay(jobs=2, progress=InterruptedAt(0.5), compare="shared", duration="5000x", window="all")
    assert not result.complete
    assert result.notes == ["interrupted: the missing runs were not started"]
    assert 0 < len(result.runs) <= 2
    assert all(not run.complete and run.host_page_writes for run in result.runs)


def test_a_worker_process_that_dies_is_an_error_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_play_in_worker", die)
    with pytest.raises(UserError, match="a worker process died"):
        replay(jobs=2, compare="shared")
