"""One policy on one preconditioned drive, epoch by epoch: observe, decide, act, record."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from ftl_emul import Device
from slo_ctl.base.progress import Phase, ProgressSink
from slo_ctl.base.quantity import Duration
from slo_ctl.decide.policies import POLICIES, STRICT_POLICY, Policy, make_policy, most_moves_of, without_lever
from slo_ctl.drives.build import DrivePlan, plan_drive
from slo_ctl.model import Decision, DeviceSample, Placement, Slo, TimingModel
from slo_ctl.replay.drive import PlayedDrive
from slo_ctl.replay.measure import DEMAND_MET_TO, Edge, SeriesRecorder, latencies, measure
from slo_ctl.replay.player import CountingPlayer, PlayedVm, Player, Requests, TimedPlayer, requests_of
from slo_ctl.replay.result import DeviceResult, DeviceTiming, EventResult, Latency, Result, RunResult
from slo_ctl.replay.scenario import Action, Event, Scenario, Window
from slo_ctl.replay.scenario_build import command_line

_NS_PER_S = 1e9
_MAX_NOTES = 12


@dataclass(slots=True)
class _Window:
    """The measured part: its edges as they are met."""

    start_at: Duration
    stop_at: Duration
    start: Edge | None = None
    stop: Edge | None = None
    latency: dict[str, Latency] = field(default_factory=dict)


class PolicyRun:
    """Everything that is in motion while one policy runs."""

    def __init__(
        self,
        scenario: Scenario,
        plan: DrivePlan,
        sources: Sequence[Requests],
        device: Device,
        tenants: Sequence[int],
        policy: Policy[Any],
    ) -> None:
        """`sources` and `tenants` are those of the VMs, in order; `device` is theirs to wear out."""
        self._scenario = scenario
        self._plan = plan
        self._device = device
        self._policy = policy
        self._clocked = scenario.timing is not TimingModel.NONE
        self._isolated = policy.placement is Placement.ISOLATED
        self._slos: dict[str, Slo] = {vm.name: vm.slo for vm in scenario.vms}
        self._vms = [
            PlayedVm(
                spec=vm,
                tenant=tenant,
                requests=iter(requests),
                weight=vm.slo.weight,
                running=not vm.starts_stopped,
            )
            for vm, tenant, requests in zip(scenario.vms, tenants, sources, strict=True)
        ]
        by_name = {vm.spec.name: vm.tenant for vm in self._vms}
        self._player: Player = (TimedPlayer if self._clocked else CountingPlayer)(device, self._vms)
        self._drive = PlayedDrive(device, by_name, plan.timing, plan.held_blocks, clocked=self._clocked)
        self._recorder = SeriesRecorder([vm.name for vm in scenario.vms], self._isolated, scenario.share_by)
        self._events = list(scenario.events)
        self._happened: list[EventResult] = []
        self._notes: list[str] = []
        self._remarks: Mapping[str, str] = {}
        start, stop = scenario.window.bounds(scenario.duration)
        self._window = _Window(self._moment(start), self._moment(stop))
        self._epochs = 0
        self._origin = self._edge()

    def play(self, phase: Phase) -> RunResult:
        """Run to the end, or to Ctrl-C: then the result says that it is not complete."""
        began = time.monotonic()
        complete = True
        try:
            self._run_epochs(phase)
        except KeyboardInterrupt:
            complete = False
        return self._result(time.monotonic() - began, complete)

    def _run_epochs(self, phase: Phase) -> None:
        state, decision = self._policy.start(self._sample())
        self._note(self._drive.apply(decision))
        if self._clocked:
            self._drive.apply(Decision(limits_iops={vm: slo.max_iops for vm, slo in self._slos.items()}))
        self._drive.finish_moves()
        self._meet_boundaries()
        reported = 0.0
        while not self._reached(self._scenario.duration):
            epoch = self._moment_in(self._scenario.epoch, (self._epochs + 1) * self._scenario.epoch.amount)
            going = self._advance(epoch)
            self._meet_boundaries()
            phase.advance(self._amount() - reported)
            reported = self._amount()
            if not going:
                self._notes.append("every VM had done all its requests before the run was over")
                return
            if not self._reached(epoch):
                continue
            self._epochs += 1
            sample = self._sample()
            self._recorder.add(self._drive_writes(), self._virtual_s(), sample)
            state, decision = self._policy.step(state, sample)
            self._note(self._drive.apply(decision))
            if self._window.stop is None:
                self._remarks = decision.remarks

    def _advance(self, epoch: Duration) -> bool:
        """Play until the nearest boundary of each kind."""
        ahead = [epoch, self._scenario.duration, *(event.at for event in self._events)]
        ahead += [edge for edge in (self._window.start_at, self._window.stop_at) if not self._reached(edge)]
        times = [at.virtual_s for at in ahead if at.virtual_s is not None]
        writes = [at.drive_writes for at in ahead if at.drive_writes is not None]
        pages = self._plan.total_pages
        return self._player.advance(
            min(times, default=None),
            None if not writes else max(self._player.host_page_writes + 1, round(min(writes) * pages)),
        )

    def _meet_boundaries(self) -> None:
        window = self._window
        if window.start is None and self._reached(window.start_at):
            window.start = self._edge()
            self._device.clear_latencies()
        if window.start is not None and window.stop is None and self._reached(window.stop_at):
            self._close_window()
        due = [event for event in self._events if self._reached(event.at)]
        self._events = [event for event in self._events if event not in due]
        for event in due:
            self._carry_out(event)

    def _close_window(self) -> None:
        self._window.stop = self._edge()
        if self._clocked:
            self._window.latency = {vm.spec.name: latencies(self._device, vm.tenant) for vm in self._vms}

    def _carry_out(self, event: Event) -> None:
        vm = next(vm for vm in self._vms if vm.spec.name == event.vm)
        if event.action is Action.WEIGHT and event.weight is not None:
            vm.weight = event.weight
            self._slos[event.vm] = replace(self._slos[event.vm], weight=event.weight)
        else:
            self._player.set_running(vm, event.action is Action.START)
        self._happened.append(
            EventResult(
                drive_writes=self._drive_writes(),
                virtual_s=self._virtual_s(),
                vm=event.vm,
                action=event.action.value,
                weight=event.weight,
            )
        )

    def _sample(self) -> DeviceSample:
        running = {vm.spec.name for vm in self._vms if vm.running and not vm.finished}
        sample = self._drive.sample(self._slos, running)
        budget = most_moves_of(self._policy.name, sample)
        return replace(sample, max_move_blocks=budget, share_by=self._scenario.share_by)

    def _result(self, wall_s: float, complete: bool) -> RunResult:
        window = self._window
        if window.start is None:
            self._notes.append("the run ended before its window began; all of it was measured instead")
            window.start = self._origin
        if window.stop is None:
            self._close_window()
        stop = window.stop or self._edge()
        names = [vm.spec.name for vm in self._vms]
        measured = measure(
            window.start,
            stop,
            self._vms,
            self._slos,
            window.latency or dict.fromkeys(names, Latency()),
            self._ops_blocks() if self._isolated else None,
            self._drive.limits_iops,
            self._plan.block_pages,
            share_by=self._scenario.share_by,
            remarks=self._all_remarks(),
            strict=self._scenario.policy == STRICT_POLICY,
            merging=self._plan.merges,
        )
        self._notes += [
            f"VM {vm.name}: {vm.iops:,.0f} of the {vm.demand_iops:,.0f} IOPS that arrived were served"
            for vm in measured.vms
            if vm.iops is not None and vm.demand_iops and vm.iops < (1 - DEMAND_MET_TO) * vm.demand_iops
        ][: max(0, _MAX_NOTES - len(self._notes))]
        return RunResult(
            policy=self._policy.name,
            isolated=self._isolated,
            share_by=self._scenario.share_by.value,
            complete=complete,
            wall_s=wall_s,
            host_page_writes=self._player.host_page_writes,
            virtual_s=self._virtual_s(),
            window=measured.window,
            iops=measured.iops,
            waf=measured.waf,
            vms=measured.vms,
            gc_pages_moved=measured.moved,
            series=self._recorder.series(),
            events=self._happened,
            notes=self._notes,
        )

    def _all_remarks(self) -> dict[str, str]:
        """What the policy did for each VM, and which bounds it has no lever for."""
        found = {}
        for name, slo in self._slos.items():
            parts = self._remarks.get(name, ""), without_lever(self._policy.name, slo)
            found[name] = "; ".join(part for part in parts if part)
        return found

    def _ops_blocks(self) -> dict[str, int]:
        held = self._plan.held_blocks
        return {vm.spec.name: self._device.space(vm.tenant).ops_blocks - held for vm in self._vms}

    def _edge(self) -> Edge:
        waiting = self._vms if self._clocked else []
        outstanding = {vm.spec.name: self._device.outstanding(vm.tenant) for vm in waiting}
        readings = self._drive.read()
        return Edge(self._drive_writes(), self._virtual_s(), readings, outstanding)

    def _note(self, refusals: list[str]) -> None:
        room = _MAX_NOTES - len(self._notes)
        self._notes += refusals[: max(0, room)]

    def _drive_writes(self) -> float:
        return self._player.host_page_writes / self._plan.total_pages

    def _virtual_s(self) -> float | None:
        return self._device.now_ns / _NS_PER_S if self._clocked else None

    def _amount(self) -> float:
        timed = self._scenario.duration.timed
        return (self._virtual_s() or 0.0) if timed else self._drive_writes()

    def _moment(self, amount: float) -> Duration:
        return self._moment_in(self._scenario.duration, amount)

    @staticmethod
    def _moment_in(unit: Duration, amount: float) -> Duration:
        if unit.timed:
            return replace(unit, virtual_s=amount)
        return replace(unit, drive_writes=amount)

    def _reached(self, at: Duration) -> bool:
        if at.virtual_s is not None:
            return self._device.now_ns >= round(at.virtual_s * _NS_PER_S)
        pages = (at.drive_writes or 0.0) * self._plan.total_pages
        return self._player.host_page_writes >= round(pages)


# Running a scenario: precondition the drive, then every policy on a copy of it, and every VM by itself.

_MERGED_FIRST = {"bast": "least recently written log block", "fast": "oldest log block"}
_ALONE_PART = 0.25
"""A VM by itself runs for this part of the duration: it writes as much as all together in that time."""


def plan_of(scenario: Scenario) -> DrivePlan:
    """The drive of a scenario, with a namespace for each VM. Raises UserError."""
    return plan_drive(
        scenario.device,
        [(vm.name, vm.size_bytes) for vm in scenario.vms],
        timing=scenario.timing,
        scheduler="fifo" if scenario.scheduler == "auto" else scenario.scheduler,
        seed=scenario.seed,
    )


def run(scenario: Scenario, progress: ProgressSink) -> Result:
    """Run every policy of the scenario in turn, each on an equally preconditioned drive.

    Ctrl-C ends the run early with what was measured (`complete` is then False). Raises UserError and
    TraceError for what cannot be run, before anything has.
    """
    runs: list[RunResult] = []
    complete = False
    with Stage(scenario, progress) as stage:
        try:
            for name in scenario.policies:
                runs.append(_run_policy(scenario, stage, name, progress))
                if not runs[-1].complete:
                    break
            else:
                if (
                    scenario.measure_alone
                    and len(scenario.vms) > 1
                    and scenario.timing is not TimingModel.NONE
                ):
                    runs = _with_alone(scenario, stage, runs, progress)
                complete = True
        except KeyboardInterrupt:
            stage.notes.append("interrupted: what is missing was not run")
        return Result(
            scenario=scenario.echo(),
            command=command_line(scenario),
            seed=scenario.seed,
            device=_describe(stage.plan, stage.preconditioning_drive_writes),
            runs=runs,
            complete=complete,
            notes=stage.notes,
        )


def _describe(plan: DrivePlan, preconditioning_drive_writes: float | None) -> DeviceResult:
    config, timing, ops = plan.config, plan.timing, sum(plan.ops_blocks)
    usable = plan.logical_blocks + ops
    block_bytes = config.page_bytes * plan.block_pages
    return DeviceResult(
        preset=plan.preset,
        logical_bytes=plan.total_pages * config.page_bytes,
        physical_bytes=usable * block_bytes,
        op=usable * plan.block_pages / plan.total_pages - 1,
        page_bytes=config.page_bytes,
        pages_per_block=plan.block_pages,
        blocks=usable,
        ops_blocks=ops,
        channels=config.channels,
        dies=config.channels * config.dies_per_channel,
        planes=config.planes,
        mapping=config.mapping,
        cluster_dies=config.cluster_dies,
        victim_policy=_MERGED_FIRST.get(config.mapping, config.victim),
        timing=DeviceTiming(
            model=timing.model.value,
            read_us=timing.read_us,
            program_us=timing.program_us,
            erase_us=timing.erase_us,
            transfer_us=timing.transfer_us,
            suspend_us=config.suspend_ns / 1000 or None,
            copyback=timing.copyback,
        ),
        preconditioning_drive_writes=preconditioning_drive_writes,
    )


class Stage:
    """What all runs start from: the VMs' requests, and a preconditioned drive for each placement.

    A context manager, which keeps the preconditioned drives in a folder.
    """

    def __init__(self, scenario: Scenario, progress: ProgressSink) -> None:
        """Raises UserError and TraceError for what cannot be run."""
        self.plan = plan_of(scenario)
        self.sources = [
            requests_of(
                vm, pages * self.plan.config.page_bytes, scenario.seed * 1000 + index, scenario.on_error
            )
            for index, (vm, pages) in enumerate(zip(scenario.vms, self.plan.logical_pages, strict=True))
        ]
        self.notes = [note for source in self.sources for note in source.notes]
        self.preconditioning_drive_writes: float | None = None
        self._scenario = scenario
        self._progress = progress
        self._drives: dict[Placement, list[int]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="slo-ctl-")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def aged_drive(self, placement: Placement, scheduler: str = "auto") -> tuple[Device, list[int]]:
        """A drive of its own, with the tenant numbers of the VMs; `scheduler` where the scenario leaves it
        open."""
        path = Path(self._folder.name) / placement.value
        if placement not in self._drives:
            self._drives[placement] = self._make(placement, path)
        config = self.plan.config
        if self._scenario.scheduler == "auto" != scheduler:
            config = replace(config, scheduler=scheduler)
        device, _label = Device.restore(path, config)
        return device, self._drives[placement]

    def _make(self, placement: Placement, path: Path) -> list[int]:
        device, tenants = self.plan.create(isolated=placement is Placement.ISOLATED)
        if not self._scenario.device.preconditioned:
            device.save(path, placement.value)
            return tenants
        phase = self._progress.phase(f"preconditioning the drive ({placement.value})", None, "drive writes")
        reported = 0.0

        def report(drive_writes: float) -> None:
            nonlocal reported
            phase.advance(drive_writes - reported)
            reported = drive_writes

        preconditioning = device.precondition(self._scenario.seed, report)
        phase.done()
        self.preconditioning_drive_writes = preconditioning.host_page_writes / self.plan.total_pages
        if not preconditioning.settled:
            self.notes.append(
                f"the {placement.value} drive's WAF had not settled after "
                f"{self.preconditioning_drive_writes:.1f} drive writes of preconditioning"
            )
        device.save(path, placement.value)
        return tenants


def _run_policy(scenario: Scenario, stage: Stage, name: str, progress: ProgressSink) -> RunResult:
    policy = make_policy(name)
    device, tenants = stage.aged_drive(policy.placement, POLICIES[name].scheduler)
    run = PolicyRun(scenario, stage.plan, stage.sources, device, tenants, policy)
    unit = "virtual s" if scenario.duration.timed else "drive writes"
    phase = progress.phase(name, scenario.duration.amount, unit)
    result = run.play(phase)
    phase.done()
    return result


def _with_alone(
    scenario: Scenario, stage: Stage, runs: list[RunResult], progress: ProgressSink
) -> list[RunResult]:
    """The same runs with what each VM does when it has the shared drive to itself."""
    alone = {vm.name: _alone(scenario, stage, vm.name, progress) for vm in scenario.vms}
    return [
        run.model_copy(
            update={
                "vms": [
                    vm.model_copy(
                        update={"alone_iops": alone[vm.name][0], "alone_victim_u": alone[vm.name][1]}
                    )
                    for vm in run.vms
                ]
            }
        )
        for run in runs
    ]


def _alone(
    scenario: Scenario, stage: Stage, name: str, progress: ProgressSink
) -> tuple[float | None, float | None]:
    amount = scenario.duration.amount * _ALONE_PART
    timed = scenario.duration.timed
    duration = replace(scenario.duration, **{"virtual_s" if timed else "drive_writes": amount})
    single = replace(
        scenario,
        vms=tuple(replace(vm, starts_stopped=vm.name != name) for vm in scenario.vms),
        events=(),
        duration=duration,
        window=Window(),
        policy="shared",
        compare=(),
    )
    device, tenants = stage.aged_drive(Placement.SHARED)
    phase = progress.phase(f"{name} alone", amount, "virtual s" if timed else "drive writes")
    run = PolicyRun(single, stage.plan, stage.sources, device, tenants, make_policy("shared"))
    result = run.play(phase)
    phase.done()
    if not result.complete:
        raise KeyboardInterrupt
    vm = next(vm for vm in result.vms if vm.name == name)
    return vm.iops, vm.victim_u
