"""Replays of a policy with only some of its levers, on copies of one preconditioned drive.

`Parts` wraps a policy: from a given split of OPS, with or without its moves, limits and weights of the fair
queue. `PreparedDrive` runs any policy object on a scenario, while the engine runs only policies with a name.
The experiments of `papers/` and of bench/ use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from slo_ctl.base.progress import Silent
from slo_ctl.base.quantity import parse_duration
from slo_ctl.decide.ops_plan import OpsState, moves_between
from slo_ctl.decide.policies import DEFAULT_POLICY, STRICT_POLICY, Policy
from slo_ctl.decide.policies.proportional import Proportional, ProportionalState
from slo_ctl.decide.policies.proportional_strict import ProportionalStrict
from slo_ctl.model.decision import Decision, OpsMove
from slo_ctl.model.sample import DeviceSample, Placement, ShareBy
from slo_ctl.replay.policy_run import PolicyRun
from slo_ctl.replay.result import RunResult, VmResult
from slo_ctl.replay.run import PreparedRuns
from slo_ctl.replay.scenario import Window, WindowKind
from slo_ctl.replay.scenario_build import build_scenario
from slo_ctl.replay.scenario_text import ScenarioText

Split = tuple[int, ...]
"""OPS blocks of each VM, in order."""
PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Parts:
    """A policy without some of its levers, for which its decisions are dropped."""

    inner: Policy[Any]
    split: Split | None = None
    """Initial OPS; None: as the device was created (by size), or the split of `inner` if it may move OPS."""
    moves: bool = False
    limits: bool = False
    weights: bool = False
    placement: Placement = Placement.ISOLATED

    @property
    def name(self) -> str:
        """The name of the whole policy."""
        return self.inner.name

    def start(self, sample: DeviceSample) -> tuple[Any, Decision]:
        """The inner policy's start, with the requested split."""
        state, decision = self.inner.start(sample)
        decision = self._kept(decision)
        if self.split is None:
            return state, decision
        return state, replace(decision, moves=_moves_to(sample, self.split))

    def resume(self, sample: DeviceSample) -> tuple[Any, Decision]:
        state, decision = self.inner.resume(sample)
        return state, self._kept(decision)

    def step(self, state: Any, sample: DeviceSample) -> tuple[Any, Decision]:
        """The inner policy's step, without the disabled levers."""
        if isinstance(state, ProportionalState) and not self.moves:
            # Forget write rates, so that no split is searched for, which takes most of the time.
            state = replace(state, ops=OpsState())
        state, decision = self.inner.step(state, sample)
        return state, self._kept(decision)

    def _kept(self, decision: Decision) -> Decision:
        return replace(
            decision,
            moves=decision.moves if self.moves else (),
            limits_iops=decision.limits_iops if self.limits else {},
            scheduler_weights=decision.scheduler_weights if self.weights else {},
        )


def _moves_to(sample: DeviceSample, split: Split) -> tuple[OpsMove, ...]:
    wanted = {v.vm: blocks for v, blocks in zip(sample.vms, split, strict=True)}
    return moves_between({v.vm: v.ops_blocks for v in sample.vms}, wanted, sample.spare_blocks)


def held(split: Split | None = None) -> Parts:
    """The fair queue of `proportional`, shares enforced, with OPS that never moves."""
    return Parts(Proportional(), split, limits=True, weights=True)


@dataclass(frozen=True, slots=True)
class Drive:
    """VMs and the device they share, as arguments of `slo-ctl replay`."""

    vms: tuple[str, ...]
    device: str = "preset=fast15,size=512MiB,op=15%"
    events: tuple[str, ...] = ()
    timing: str = "full"
    seed: int = 1


class PreparedDrive:
    """A scenario whose drive is preconditioned once for each placement, or left clean (`precondition=no`);
    every run uses a copy. A context manager."""

    def __init__(self, drive: Drive) -> None:
        text = ScenarioText()
        text.add_device(drive.device)
        for vm in drive.vms:
            text.add_vm(vm)
        for event in drive.events:
            text.add_event(event)
        text.set("alone", "no")
        text.set("timing", drive.timing)
        text.set("seed", str(drive.seed))
        text.set("on_error", "skip")
        self._scenario = build_scenario(text)
        self._stage = PreparedRuns(self._scenario, Silent())
        self._plan = self._stage.plan

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stage.__exit__()

    @property
    def total_blocks(self) -> int:
        """OPS blocks of all VMs."""
        return sum(self._plan.ops_blocks)

    @property
    def block_pages(self) -> int:
        return self._plan.config.block_pages

    @property
    def sizes(self) -> tuple[int, ...]:
        """Logical pages of each VM."""
        return self._plan.logical_pages

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of each VM at the start."""
        return tuple(vm.slo.weight for vm in self._scenario.vms)

    @property
    def floors(self) -> Split:
        """The minimum OPS blocks with which each VM's GC makes progress."""
        device, tenants = self._stage.preconditioned_drive(Placement.ISOLATED, "wfq")
        return tuple(device.space(t).min_ops_blocks - self._plan.config.held_blocks for t in tenants)

    def run(
        self,
        policy: Policy[Any],
        scheduler: str = "wfq",
        duration: str = "20x",
        window: tuple[str, str] | None = None,
        *,
        exact: bool = True,
        only: str | None = None,
        share_by: ShareBy | None = None,
        epoch: str = "0.05x",
        weights: Mapping[str, float] | None = None,
    ) -> RunResult:
        """Run one policy; the last half is measured unless a window is given.

        `weights`: those of VMs, instead of the scenario's.
        `exact`: entitlements of `proportional-strict` are the exact proportions it aims at; otherwise they
        are those of `proportional`. `only`: the only active VM. `share_by`: by default, requests for
        `proportional-strict` and pages for the others.
        """
        strict = isinstance(getattr(policy, "inner", policy), ProportionalStrict)
        measured = Window()
        if window is not None:
            measured = Window(WindowKind.RANGE, parse_duration(window[0]), parse_duration(window[1]))
        vms = tuple(
            replace(vm, slo=replace(vm.slo, weight=(weights or {}).get(vm.name, vm.slo.weight)))
            for vm in self._scenario.vms
        )
        scenario = replace(
            self._scenario,
            vms=vms,
            duration=parse_duration(duration),
            window=measured,
            epoch=parse_duration(epoch),
            policy=STRICT_POLICY if strict and exact else DEFAULT_POLICY,
            share_by=share_by or (ShareBy.REQUESTS if strict else ShareBy.PAGES),
        )
        if only is not None:
            vms = tuple(replace(vm, starts_stopped=vm.name != only) for vm in vms)
            scenario = replace(scenario, vms=vms)
        device, tenants = self._stage.preconditioned_drive(policy.placement, scheduler)
        return PolicyRun(scenario, self._plan, self._stage.sources, device, tenants, policy).play(Silent())


def pages_per_s(vm: VmResult) -> float:
    """4 KiB pages read and written: a unit for the sum of VMs with different request sizes."""
    return (vm.bandwidth_bytes_s or 0.0) / PAGE_BYTES


def total_pages_per_s(run: RunResult) -> float:
    """Sum of all VMs."""
    return sum(pages_per_s(vm) for vm in run.vms)


def share_error(run: RunResult) -> float:
    """The worst share error of the active VMs, in the policy's own unit of shares."""
    return max((abs(v.share_error) for v in run.vms if v.share_error is not None), default=0.0)
