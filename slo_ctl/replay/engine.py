"""Running a scenario: age the drive, then every policy on a copy of it, and every VM by itself."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ftl_emul import Device
from slo_ctl.decide.policies import POLICIES, make_policy
from slo_ctl.model import Placement, TimingModel
from slo_ctl.replay.device import DrivePlan, plan_drive
from slo_ctl.replay.policy_run import PolicyRun
from slo_ctl.replay.requests import Requests, requests_of
from slo_ctl.replay.result import Result, RunResult
from slo_ctl.replay.scenario_command import command_line
from slo_ctl.replay.scenario_parts import Window

if TYPE_CHECKING:
    from slo_ctl.replay.progress import ProgressSink
    from slo_ctl.replay.scenario import Scenario

_ALONE_PART = 0.25
"""A VM by itself runs for this part of the duration: it writes as much as all together in that time."""


def run(scenario: Scenario, progress: ProgressSink) -> Result:
    """Run every policy of the scenario in turn, each on an equally aged drive.

    Ctrl-C ends the run early with what was measured (`complete` is then False). Raises UserError and
    TraceError for what cannot be run, before anything has.
    """
    plan = plan_drive(scenario)
    sources = [
        requests_of(vm, pages * plan.config.page_bytes, scenario.seed * 1000 + index, scenario.on_error)
        for index, (vm, pages) in enumerate(zip(scenario.vms, plan.logical_pages, strict=True))
    ]
    notes = [note for source in sources for note in source.notes]
    runs: list[RunResult] = []
    complete = False
    with tempfile.TemporaryDirectory(prefix="slo-ctl-") as folder:
        stage = _Stage(scenario, plan, sources, Path(folder), progress, notes)
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
            notes.append("interrupted: what is missing was not run")
        return Result(
            scenario=scenario.echo(),
            command=command_line(scenario),
            seed=scenario.seed,
            device=plan.describe(plan.config.victim, stage.ageing_drive_writes),
            runs=runs,
            complete=complete,
            notes=notes,
        )


class _Stage:
    """What all runs start from: the VMs' requests, and drives aged once for each placement, then copied."""

    def __init__(
        self,
        scenario: Scenario,
        plan: DrivePlan,
        sources: list[Requests],
        folder: Path,
        progress: ProgressSink,
        notes: list[str],
    ) -> None:
        self._scenario = scenario
        self.plan = plan
        self.sources = sources
        self._folder = folder
        self._progress = progress
        self._notes = notes
        self._made: dict[Placement, list[int]] = {}
        self.ageing_drive_writes: float | None = None

    def aged_drive(self, placement: Placement, scheduler: str = "auto") -> tuple[Device, list[int]]:
        """A drive of its own, with the tenant numbers of the VMs; `scheduler` where the scenario leaves it
        open."""
        path = self._folder / placement.value
        if placement not in self._made:
            self._made[placement] = self._make(placement, path)
        config = self.plan.config
        if self._scenario.scheduler == "auto" != scheduler:
            config = replace(config, scheduler=scheduler)
        device, _label = Device.restore(path, config)
        return device, self._made[placement]

    def _make(self, placement: Placement, path: Path) -> list[int]:
        device, tenants = self.plan.create(isolated=placement is Placement.ISOLATED)
        phase = self._progress.phase(f"ageing the drive ({placement.value})", None, "drive writes")
        reported = 0.0

        def report(drive_writes: float) -> None:
            nonlocal reported
            phase.advance(drive_writes - reported)
            reported = drive_writes

        ageing = device.age(self._scenario.seed, report)
        phase.done()
        self.ageing_drive_writes = ageing.host_page_writes / self.plan.total_pages
        if not ageing.settled:
            self._notes.append(
                f"the {placement.value} drive's WAF had not settled after "
                f"{self.ageing_drive_writes:.1f} drive writes of ageing"
            )
        device.save(path, placement.value)
        return tenants


def _run_policy(scenario: Scenario, stage: _Stage, name: str, progress: ProgressSink) -> RunResult:
    policy = make_policy(name)
    device, tenants = stage.aged_drive(policy.placement, POLICIES[name].scheduler)
    run = PolicyRun(scenario, stage.plan, stage.sources, device, tenants, policy)
    unit = "virtual s" if scenario.duration.timed else "drive writes"
    phase = progress.phase(name, scenario.duration.amount, unit)
    result = run.play(phase)
    phase.done()
    return result


def _with_alone(
    scenario: Scenario, stage: _Stage, runs: list[RunResult], progress: ProgressSink
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
    scenario: Scenario, stage: _Stage, name: str, progress: ProgressSink
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
