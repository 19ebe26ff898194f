"""Run of one policy on a preconditioned drive: each epoch observes, decides, acts and records."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ftl_emul import Device, DriveError
from slo_ctl.base.progress import Phase
from slo_ctl.base.quantity import Duration, format_number
from slo_ctl.base.text import and_list
from slo_ctl.decide.policies import Policy, policy_entry, without_lever
from slo_ctl.drives.build import DrivePlan
from slo_ctl.model.decision import Decision, OpsMove
from slo_ctl.model.sample import DeviceSample, FlashTiming, Placement, TimingModel, VmSample
from slo_ctl.model.slo import Slo
from slo_ctl.observe.ssd import VmReading, sample_of
from slo_ctl.replay.measure import (
    DEMAND_MET_TO,
    Edge,
    MeasuredVm,
    SeriesRecorder,
    WindowFigures,
    latencies,
    measure,
)
from slo_ctl.replay.player import CountingPlayer, PlayedVm, Requests, TimedPlayer, WriteWatch
from slo_ctl.replay.result import EventResult, Latency, RunResult
from slo_ctl.replay.scenario import Action, Event, Scenario

_NS_PER_S = 1e9
_MAX_NOTES = 12
_LEAST_READS = 10_000_000
"""Least number of requests without any write after which a run in drive writes ends: some seconds."""


# Samples of the drive, and decisions applied to it.


class PlayedDrive:
    """Samples the windows of a drive and applies decisions to it."""

    def __init__(
        self,
        device: Device,
        tenants: Mapping[str, int],
        timing: FlashTiming,
        held_blocks: int,
        *,
        clocked: bool,
    ) -> None:
        """`tenants`: numbers by VM; `held_blocks`: blocks of each that GC keeps free, which are not OPS."""
        self._device = device
        self._tenants = dict(tenants)
        self._timing = timing
        self._held_blocks = held_blocks
        self._clocked = clocked
        self.limits_iops: dict[str, float | None] = dict.fromkeys(tenants)
        self._scheduler_weights: dict[str, float] = dict.fromkeys(tenants, 1.0)
        self._last = self.read()

    def read(self) -> dict[str, VmReading]:
        """Present counters of every VM."""
        return {vm: _reading_of(self._device, t, clocked=self._clocked) for vm, t in self._tenants.items()}

    def sample(self, slos: Mapping[str, Slo], running: Collection[str]) -> DeviceSample:
        """Sample of the window since the last sample."""
        now, last = self.read(), self._last
        self._last = now
        vms = tuple(
            self._vm(
                *(vm, reading.since(last[vm]), slos[vm]),
                running=vm in running,
                with_p99=self._clocked and slos[vm].p99_latency_us is not None,
            )
            for vm, reading in now.items()
        )
        return DeviceSample(timing=self._timing, vms=vms)

    def _vm(self, vm: str, window: VmReading, slo: Slo, *, running: bool, with_p99: bool) -> VmSample:
        space = self._device.space(self._tenants[vm])
        sample = VmSample(
            *(vm, 0.0),
            slo=slo,
            active=running,
            logical_blocks=space.logical_blocks,
            ops_blocks=space.ops_blocks - self._held_blocks,
            min_ops_blocks=space.min_ops_blocks - self._held_blocks,
            limit_iops=self.limits_iops[vm],
            scheduler_weight=self._scheduler_weights[vm],
        )
        if with_p99:
            recent = self._device.take_recent_latency_us(self._tenants[vm], [99.0])
            sample = sample._replace(
                p99_read_us=max(recent.read, default=None), p99_write_us=max(recent.write, default=None)
            )
        return sample_of(sample, window, self._timing.pages_per_block)

    def apply(self, decision: Decision) -> list[str]:
        """Apply a decision; returns a sentence for each part that the device refused."""
        refusals = self._move(decision.moves)
        if not self._clocked:
            return refusals
        for vm, limit in decision.limits_iops.items():
            self._device.set_limit(self._tenants[vm], iops=limit)
            self.limits_iops[vm] = limit
        for vm, weight in decision.scheduler_weights.items():
            self._device.set_weight(self._tenants[vm], weight)
            self._scheduler_weights[vm] = weight
        return refusals

    def _move(self, moves: tuple[OpsMove, ...]) -> list[str]:
        # While earlier moves are pending, the sample for this decision does not include their result.
        if not moves or self._device.advance_moves(0).pending_blocks:
            return []
        refusals = []
        for move in moves:
            ends = [None if vm is None else self._tenants[vm] for vm in (move.source, move.target)]
            try:
                self._device.request_move(ends[0], ends[1], move.blocks)
            except DriveError as error:
                refusals.append(f"unapplied: {move}: {error}")
        return refusals

    def finish_moves(self) -> None:
        """Complete all moves, with the garbage collection that they need."""
        while self._device.advance_moves(1024).gc_passes:
            pass


def _reading_of(device: Device, tenant: int, *, clocked: bool) -> VmReading:
    """Present counters of one tenant; queue counters are 0 on a device without a clock."""
    flash = device.counters(tenant)
    queue = device.queue_counters(tenant) if clocked else None
    return VmReading(
        now_ns=device.now_ns,
        reads=queue.reads if queue else 0,
        writes=queue.writes if queue else 0,
        other_requests=queue.trims + queue.write_zeroes + queue.flushes if queue else 0,
        read_bytes=queue.read_bytes if queue else 0,
        write_bytes=queue.write_bytes if queue else 0,
        latency_ns=queue.latency_ns if queue else 0,
        throttled_ns=queue.throttled_ns if queue else 0,
        backlog_ns=queue.backlog_ns if queue else 0,
        device_ns=queue.device_ns if queue else 0,
        queued_ns=queue.queued_ns if queue else 0,
        host_page_writes=flash.host_page_writes,
        host_page_reads=flash.host_page_reads + flash.unmapped_page_reads,
        gc_page_writes=flash.gc_page_writes,
        victims=flash.victims,
        victim_valid_pages=flash.victim_valid_pages,
        moved_pages_of=tuple(flash.moved_pages_of),
        switch_merges=flash.switch_merges,
        partial_merges=flash.partial_merges,
        full_merges=flash.full_merges,
        merged_blocks=flash.merged_blocks,
        switch_merge_ns=flash.switch_merge_ns,
        partial_merge_ns=flash.partial_merge_ns,
        full_merge_ns=flash.full_merge_ns,
    )


# The run.


@dataclass(slots=True)
class _Window:
    """The measured part of the run; edges are None before they are reached."""

    start_at: Duration
    stop_at: Duration
    start: Edge | None = None
    figures: WindowFigures | None = None


class PolicyRun:
    """State of the run of one policy."""

    def __init__(
        self,
        scenario: Scenario,
        plan: DrivePlan,
        sources: Sequence[Requests],
        device: Device,
        tenants: Sequence[int],
        policy: Policy[Any],
    ) -> None:
        """`sources` and `tenants` are in the order of the VMs; `device` is used by this run only."""
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
                requests=requests.play(),
                weight=vm.slo.weight,
                running=not vm.starts_stopped,
            )
            for vm, tenant, requests in zip(scenario.vms, tenants, sources, strict=True)
        ]
        by_name = {vm.spec.name: vm.tenant for vm in self._vms}
        pages = scenario.duration.amount * plan.total_pages
        self._watch = WriteWatch(None if scenario.duration.timed else max(_LEAST_READS, round(pages)))
        make_player = TimedPlayer if self._clocked else CountingPlayer
        self._player: TimedPlayer | CountingPlayer = make_player(device, self._vms, self._watch)
        held = plan.config.held_blocks
        self._drive = PlayedDrive(device, by_name, plan.timing, held, clocked=self._clocked)
        self._recorder = SeriesRecorder([vm.name for vm in scenario.vms], self._isolated, scenario.share_by)
        self._events = list(scenario.events)
        self._past_events: list[EventResult] = []
        self._notes: list[str] = []
        self._remarks: Mapping[str, str] = {}
        start, stop = scenario.window.bounds(scenario.duration)
        self._window = _Window(scenario.duration.with_amount(start), scenario.duration.with_amount(stop))
        self._epochs = 0
        self._origin = self._edge()

    def play(self, phase: Phase) -> RunResult:
        """Run to the end, or to Ctrl-C, after which the result is not `complete`."""
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
        self._handle_boundaries()
        reported = 0.0
        while not self._reached(self._scenario.duration):
            epoch = self._scenario.epoch.with_amount((self._epochs + 1) * self._scenario.epoch.amount)
            has_requests = self._advance(epoch)
            self._handle_boundaries()
            phase.advance(self._amount() - reported)
            reported = self._amount()
            if not has_requests:
                stopped = "" if all(vm.finished for vm in self._vms) else " or were stopped"
                reason = f"all VMs had completed their requests{stopped} before the end of the run"
                if self._watch.gave_up:
                    end = self._scenario.duration
                    reason = f"VMs that only read never reach {end} drive writes: give seconds, such as 600s"
                self._notes.append(reason)
                return
            if not self._reached(epoch):
                continue
            self._epochs += 1
            sample = self._sample()
            self._recorder.add(self._drive_writes(), self._virtual_s(), sample)
            state, decision = self._policy.step(state, sample)
            self._note(self._drive.apply(decision))
            if self._window.figures is None:
                self._remarks = decision.remarks

    def _advance(self, epoch: Duration) -> bool:
        """Play until the next boundary; False if no VM has requests."""
        ahead = [epoch, self._scenario.duration, *(event.at for event in self._events)]
        ahead += [edge for edge in (self._window.start_at, self._window.stop_at) if not self._reached(edge)]
        times = [at.virtual_s for at in ahead if at.virtual_s is not None]
        writes = [at.drive_writes for at in ahead if at.drive_writes is not None]
        pages = self._plan.total_pages
        return self._player.advance(
            min(times, default=None),
            None if not writes else max(self._player.host_page_writes + 1, round(min(writes) * pages)),
        )

    def _handle_boundaries(self) -> None:
        window = self._window
        if window.start is None and self._reached(window.start_at):
            window.start = self._edge()
            self._device.clear_latencies()
        if window.start is not None and window.figures is None and self._reached(window.stop_at):
            window.figures = self._measure(window.start)
        reached = [event for event in self._events if self._reached(event.at)]
        self._events = [event for event in self._events if event not in reached]
        for event in reached:
            self._apply_event(event)

    def _measure(self, start: Edge) -> WindowFigures:
        """What was measured since `start`, with the SLOs and states of the VMs as they are now."""
        stop = self._edge()
        if changes := self._changes_between(start, stop):
            self._notes.append(
                f"{and_list(changes, in_order=True)} in the measured window: TARGET is that of its end only"
            )
        measured = measure(
            start,
            stop,
            [self._measured_vm(vm) for vm in self._vms],
            self._plan.config.block_pages,
            share_by=self._scenario.share_by,
            strict=policy_entry(self._scenario.policy).exact,
            merging=self._plan.config.merges,
        )
        self._notes += [
            f"VM {vm.name} had completed its requests before the measured window"
            for vm, played in zip(measured.vms, self._vms, strict=True)
            if played.finished and not (vm.iops or vm.share)
        ]
        self._notes += [
            f"VM {vm.name}: {vm.iops:,.0f} of the {vm.demand_iops:,.0f} IOPS that arrived were served"
            for vm in measured.vms
            if vm.iops is not None and vm.demand_iops and vm.iops < (1 - DEMAND_MET_TO) * vm.demand_iops
        ][: max(0, _MAX_NOTES - len(self._notes))]
        return measured

    def _changes_between(self, start: Edge, stop: Edge) -> list[str]:
        """What changed the entitlements of VMs between two edges, such as `VM web stopped`."""
        changes = []
        for event in self._past_events:
            began, at = start.drive_writes, event.drive_writes
            if start.virtual_s is not None and event.virtual_s is not None:
                began, at = start.virtual_s, event.virtual_s
            if at > began:
                changes.append(f"VM {event.vm} {_event_text(event)}")
        for vm in self._vms:
            name = vm.spec.name
            if vm.finished and stop.readings[name].requests > start.readings[name].requests:
                changes.append(f"VM {name} completed its requests")
        return changes

    def _apply_event(self, event: Event) -> None:
        vm = next(vm for vm in self._vms if vm.spec.name == event.vm)
        if event.action is Action.WEIGHT and event.weight is not None:
            vm.weight = event.weight
            self._slos[event.vm] = replace(self._slos[event.vm], weight=event.weight)
        else:
            self._player.set_running(vm, event.action is Action.START)
        self._past_events.append(
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
        return replace(sample, share_by=self._scenario.share_by)

    def _result(self, wall_s: float, complete: bool) -> RunResult:
        window = self._window
        if window.start is None:
            self._notes.append("the run ended before its window, so all of it was measured")
            window.start = self._origin
        measured = window.figures or self._measure(window.start)
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
            events=self._past_events,
            notes=self._notes,
        )

    def _measured_vm(self, vm: PlayedVm) -> MeasuredVm:
        name, slo = vm.spec.name, self._slos[vm.spec.name]
        # The policy's remark, and bounds for which it has no lever.
        remarks = self._remarks.get(name, ""), without_lever(self._policy.name, slo)
        held = self._plan.config.held_blocks
        return MeasuredVm(
            played=vm,
            slo=slo,
            latency=latencies(self._device, vm.tenant) if self._clocked else Latency(),
            ops_blocks=self._device.space(vm.tenant).ops_blocks - held if self._isolated else None,
            limit_iops=self._drive.limits_iops[name],
            remark="; ".join(part for part in remarks if part),
        )

    def _edge(self) -> Edge:
        waiting = self._vms if self._clocked else []
        outstanding = {vm.spec.name: self._device.outstanding(vm.tenant) for vm in waiting}
        readings = self._drive.read()
        return Edge(self._drive_writes(), self._virtual_s(), readings, outstanding)

    def _note(self, refusals: list[str]) -> None:
        self._notes += refusals[: max(0, _MAX_NOTES - len(self._notes))]

    def _drive_writes(self) -> float:
        return self._player.host_page_writes / self._plan.total_pages

    def _virtual_s(self) -> float | None:
        return self._device.now_ns / _NS_PER_S if self._clocked else None

    def _amount(self) -> float:
        timed = self._scenario.duration.timed
        return (self._virtual_s() or 0.0) if timed else self._drive_writes()

    def _reached(self, at: Duration) -> bool:
        if at.virtual_s is not None:
            return self._device.now_ns >= round(at.virtual_s * _NS_PER_S)
        pages = (at.drive_writes or 0.0) * self._plan.total_pages
        return self._player.host_page_writes >= round(pages)


def _event_text(event: EventResult) -> str:
    if event.weight is not None:
        return f"got weight {format_number(event.weight)}"
    return "stopped" if event.action == Action.STOP else "started"
