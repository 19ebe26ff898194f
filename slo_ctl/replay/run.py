"""Running a scenario: preconditioning, then each policy on a copy of the drive, then each VM alone."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Self

from ftl_emul import Device
from slo_ctl.base import numbers
from slo_ctl.base.files import remove_leftovers
from slo_ctl.base.progress import ProgressSink, Silent, drive_writes_on
from slo_ctl.base.text import and_list
from slo_ctl.base.workers import GivenUp, Workers, died, report
from slo_ctl.decide.policies import make_policy, policy_entry
from slo_ctl.drives.build import DrivePlan, plan_drive
from slo_ctl.model.sample import Placement, TimingModel
from slo_ctl.replay.player import Requests, requests_of
from slo_ctl.replay.policy_run import PolicyRun
from slo_ctl.replay.result import DeviceResult, DeviceTiming, Result, RunResult
from slo_ctl.replay.scenario import Scenario, Window
from slo_ctl.replay.scenario_text import command_line

_MERGE_VICTIMS = {"bast": "least recently written log block", "fast": "oldest log block"}
_NOTED_FROM_PASSES = 1.1
_ALONE_PART = 0.25
"""Share of the duration for which a VM runs alone, as it then writes about as much as all together."""


def plan_of(scenario: Scenario) -> DrivePlan:
    """The drive of a scenario, with a namespace for each VM. Raises UserError."""
    return plan_drive(
        scenario.device,
        [(vm.name, vm.size_bytes) for vm in scenario.vms],
        timing=scenario.timing,
        scheduler="fifo" if scenario.scheduler == "auto" else scenario.scheduler,
        seed=scenario.seed,
    )


@dataclass(frozen=True, slots=True)
class RunTask:
    """One replay: of all VMs under a policy, or of one VM alone."""

    policy: str
    alone: str = ""
    """Name of the VM that runs alone; empty: all VMs."""

    @property
    def name(self) -> str:
        """Name for display."""
        return f"{self.alone} alone" if self.alone else self.policy


def run(scenario: Scenario, progress: ProgressSink, jobs: int = 1) -> Result:
    """Run each policy of the scenario, and each VM alone, on equally preconditioned drives.

    `jobs`: number of processes, which does not affect the result. Ctrl-C ends the run early with the results
    so far (`complete` is then False). Raises UserError and TraceError before the first run.
    """
    tasks = _tasks(scenario)
    done: dict[RunTask, RunResult] = {}
    with PreparedRuns(scenario, progress) as stage:
        try:
            if jobs > 1 and len(tasks) > 1:
                _play_on_workers(scenario, stage, tasks, jobs, progress, done)
            else:
                for task in tasks:
                    done[task] = _play(scenario, stage, task, progress)
                    if not done[task].complete:
                        break
        except KeyboardInterrupt:
            stage.notes.append("interrupted: the missing runs were not started")
        runs = _with_alone(done)
        return Result(
            scenario=scenario.echo(),
            command=command_line(scenario),
            seed=scenario.seed,
            device=_describe(stage.plan, stage.preconditioning_drive_writes),
            runs=runs,
            complete=all(task in done and done[task].complete for task in tasks),
            notes=[*stage.notes, *_one_rule(scenario), *_repeated_traces(scenario, stage.sources, runs)],
        )


def _tasks(scenario: Scenario) -> list[RunTask]:
    tasks = [RunTask(name) for name in scenario.policies]
    if scenario.measure_alone and len(scenario.vms) > 1 and scenario.timing is not TimingModel.NONE:
        tasks += [RunTask("shared", vm.name) for vm in scenario.vms]
    return tasks


def _one_rule(scenario: Scenario) -> list[str]:
    """A note where policies of both kinds are compared: all are judged by the entitlements of the last."""
    exact = policy_entry(scenario.policy).exact
    if all(policy_entry(name).exact is exact for name in scenario.policies):
        return []
    rule = "exact proportions" if exact else "what a VM does not use goes to the others"
    return [f"TARGET and VERDICT of all policies are by the rule of {scenario.policy}: {rule}"]


def _repeated_traces(scenario: Scenario, sources: Sequence[Requests], runs: Sequence[RunResult]) -> list[str]:
    """A note where writes of traces were repeated, by the rates in the measured windows."""
    repeated = []
    for index, (vm, source) in enumerate(zip(scenario.vms, sources, strict=True)):
        requests = [(run.virtual_s or 0.0) * (run.vms[index].iops or 0.0) for run in runs]
        passes = max(requests, default=0.0) / source.trace_records if source.trace_records else 0.0
        if passes > _NOTED_FROM_PASSES and any(run.vms[index].host_page_writes for run in runs):
            repeated.append(f"{vm.name} about {numbers.count(passes)} times")
    if not repeated:
        return []
    note = (
        f"traces were played repeatedly, {and_list(repeated)}: pages are then overwritten in the same order "
        "again, so GC may move fewer of them, and IOPS be higher, than for requests that do not repeat"
    )
    return [note]


def _describe(plan: DrivePlan, preconditioning_drive_writes: float | None) -> DeviceResult:
    config, timing, ops = plan.config, plan.timing, sum(plan.ops_blocks)
    usable = plan.logical_blocks + ops
    block_bytes = config.page_bytes * config.block_pages
    return DeviceResult(
        preset=plan.preset,
        logical_bytes=plan.total_pages * config.page_bytes,
        physical_bytes=usable * block_bytes,
        op=usable * config.block_pages / plan.total_pages - 1,
        page_bytes=config.page_bytes,
        pages_per_block=config.block_pages,
        blocks=usable,
        ops_blocks=ops,
        channels=config.channels,
        dies=config.dies,
        planes=config.planes,
        mapping=config.mapping,
        cluster_dies=config.cluster_dies,
        victim_policy=_MERGE_VICTIMS.get(config.mapping, config.victim),
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


@dataclass(frozen=True, slots=True)
class Prepared:
    """Preconditioned drives."""

    folder: Path
    tenants: dict[Placement, list[int]]
    """Tenant numbers of the VMs, by placement."""


def _unused_space(scenario: Scenario) -> list[str]:
    """A note where the VMs' sizes leave a part of the device, which is not emulated."""
    size, op = scenario.device.size_bytes, scenario.device.op
    occupied = sum(vm.size_bytes for vm in scenario.vms)
    # Equal parts of the rest are rounded down.
    if size - occupied < len(scenario.vms):
        return []
    op_percent = 100 * (size * (1 + op) / occupied - 1)
    note = (
        f"the VMs have {numbers.size(occupied)} of {numbers.size(size)}, and the drive is emulated without "
        f"the rest; with it as over-provisioning, as in a sweep: op={op_percent:.4g}%"
    )
    return [note]


_FOLDER = "slo-ctl-replay"


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """A directory that is removed by the next replay on this host if this process is killed."""
    _remove_leftovers(Path(tempfile.gettempdir()))
    own = f".{os.getpid()}@{os.uname().nodename}.partial"
    return tempfile.TemporaryDirectory(prefix=f".{_FOLDER}.", suffix=own)


@cache
def _remove_leftovers(folder: Path) -> None:
    """Remove directories of killed replays: once, before this process has any."""
    remove_leftovers(folder, _FOLDER)


class PreparedRuns:
    """Requests of the VMs, and a preconditioned drive for each placement, from which all runs start.

    A context manager, which stores the preconditioned drives in a directory.
    """

    def __init__(self, scenario: Scenario, progress: ProgressSink, prepared: Prepared | None = None) -> None:
        """`prepared`: drives that another process has preconditioned. Raises UserError and TraceError."""
        self.plan = plan_of(scenario)
        self.sources = [
            requests_of(
                vm,
                pages * self.plan.config.page_bytes,
                scenario.seed * 1000 + index,
                scenario.on_error,
                progress,
            )
            for index, (vm, pages) in enumerate(zip(scenario.vms, self.plan.logical_pages, strict=True))
        ]
        self.notes = [*_unused_space(scenario), *(note for source in self.sources for note in source.notes)]
        self.preconditioning_drive_writes: float | None = None
        self._scenario = scenario
        self._progress = progress
        self._folder = None if prepared else _temporary_folder()
        folder = Path(self._folder.name) if self._folder else Path()
        self._prepared = prepared or Prepared(folder, {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def prepare(self, placements: Iterable[Placement]) -> Prepared:
        """Precondition drives of these placements for other processes."""
        for placement in placements:
            self._prepare(placement)
        return self._prepared

    def _prepare(self, placement: Placement) -> Path:
        path = self._prepared.folder / placement.value
        if placement not in self._prepared.tenants:
            self._prepared.tenants[placement] = self._make(placement, path)
        return path

    def preconditioned_drive(self, placement: Placement, scheduler: str = "auto") -> tuple[Device, list[int]]:
        """A copy of the preconditioned drive, with the tenant numbers of the VMs.

        `scheduler` is used if that of the scenario is `auto`.
        """
        path = self._prepare(placement)
        config = self.plan.config
        if self._scenario.scheduler == "auto" != scheduler:
            config = replace(config, scheduler=scheduler)
        device, _label = Device.restore(path, config)
        return device, self._prepared.tenants[placement]

    def _make(self, placement: Placement, path: Path) -> list[int]:
        device, tenants = self.plan.create(isolated=placement is Placement.ISOLATED)
        if not self._scenario.device.preconditioned:
            device.save(path, placement.value)
            return tenants
        with drive_writes_on(self._progress, f"preconditioning the drive ({placement.value})") as advance:
            preconditioning = device.precondition(self._scenario.seed, advance)
        self.preconditioning_drive_writes = preconditioning.host_page_writes / self.plan.total_pages
        if not preconditioning.settled:
            self.notes.append(
                f"the {placement.value} drive's WAF was not steady after "
                f"{self.preconditioning_drive_writes:.1f} drive writes of preconditioning"
            )
        device.save(path, placement.value)
        return tenants


def _play(scenario: Scenario, stage: PreparedRuns, task: RunTask, progress: ProgressSink) -> RunResult:
    """Run one task. Raises KeyboardInterrupt if the run of a VM alone is interrupted."""
    policy, scheduler = make_policy(task.policy), policy_entry(task.policy).scheduler
    if task.alone:
        scenario, scheduler = _single(scenario, task.alone), "auto"
    device, tenants = stage.preconditioned_drive(policy.placement, scheduler)
    run = PolicyRun(scenario, stage.plan, stage.sources, device, tenants, policy)
    phase = progress.phase(task.name, scenario.duration.amount, _unit(scenario))
    result = run.play(phase)
    phase.done()
    if task.alone and not result.complete:
        raise KeyboardInterrupt
    return result


def _unit(scenario: Scenario) -> str:
    return "virtual s" if scenario.duration.timed else "drive writes"


def _single(scenario: Scenario, name: str) -> Scenario:
    """The scenario of one VM alone, with a shorter duration."""
    return replace(
        scenario,
        vms=tuple(replace(vm, starts_stopped=vm.name != name) for vm in scenario.vms),
        events=(),
        duration=scenario.duration.with_amount(scenario.duration.amount * _ALONE_PART),
        window=Window(),
        policy="shared",
        compare=(),
    )


def _with_alone(done: Mapping[RunTask, RunResult]) -> list[RunResult]:
    """The runs of all VMs, with the results of each VM alone."""
    alone = {
        task.alone: {"alone_iops": vm.iops, "alone_victim_u": vm.victim_u}
        for task, result in done.items()
        for vm in result.vms
        if vm.name == task.alone
    }
    return [
        result.model_copy(update={"vms": [vm.model_copy(update=alone.get(vm.name, {})) for vm in result.vms]})
        for task, result in done.items()
        if not task.alone
    ]


# Worker processes, which open the preconditioned drives.

_stage: PreparedRuns | None = None
"""Of a worker process, which runs one scenario."""


class _Reporter(Silent):
    """The progress sink of a worker process."""

    def advance(self, amount: float) -> None:
        """Raises KeyboardInterrupt when the run is being stopped."""
        report(amount)


def _play_in_worker(scenario: Scenario, prepared: Prepared, task: RunTask) -> RunResult | None:
    """Run one task; None if it was interrupted and its result is of no use."""
    global _stage
    _stage = _stage or PreparedRuns(scenario, Silent(), prepared)
    try:
        return _play(scenario, _stage, task, _Reporter())
    except KeyboardInterrupt:
        return None


def _play_on_workers(
    scenario: Scenario,
    stage: PreparedRuns,
    tasks: Sequence[RunTask],
    jobs: int,
    progress: ProgressSink,
    done: dict[RunTask, RunResult],
) -> None:
    """Fill `done` in the order of `tasks`; after Ctrl-C with completed ones. Raises KeyboardInterrupt."""
    prepared = stage.prepare(make_policy(task.policy).placement for task in tasks)
    alone = sum(_ALONE_PART for task in tasks if task.alone)
    total = (len(scenario.policies) + alone) * scenario.duration.amount
    phase = progress.phase(", ".join(task.name for task in tasks), total, _unit(scenario))
    results: dict[RunTask, RunResult] = {}
    arguments = {task: (scenario, prepared, task) for task in tasks}
    with Workers(_play_in_worker, arguments, jobs, advance=phase.advance) as workers:
        try:
            _take(workers, results)
        except KeyboardInterrupt:
            # Workers stop at their next epoch.
            workers.stop()
            _take(workers, results)
            raise
        finally:
            phase.done()
            done |= {task: results[task] for task in tasks if task in results}


def _take(workers: Workers[RunTask, RunResult | None], results: dict[RunTask, RunResult]) -> None:
    """Add the results of all tasks. Raises UserError if a process dies."""
    for task, result in workers:
        if isinstance(result, GivenUp):
            raise died()
        if result is not None:
            results[task] = result
