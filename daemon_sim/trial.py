"""A trial of a scenario: as many runs as its checks need, and their result as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from daemon_sim.checks import CHECKS, Violation, by_check, check
from daemon_sim.entitlement import Ledger, Measure
from daemon_sim.result import Result
from daemon_sim.run import simulate
from daemon_sim.scenario import Scenario
from daemon_sim.scenarios import DEFAULT_SIZE, random_scenario, scenario, wide_scenario


@dataclass(frozen=True, slots=True)
class Order:
    """The simulation given on the command line."""

    seed: int = 0
    scenario: str | None = None
    """Name of the scenario; None: the random one of the seed."""
    wide: bool = False
    """The random one with queue depths and sizes from a wider range."""
    size: str = DEFAULT_SIZE
    hours: float | None = None
    policy: str | None = None
    checks: tuple[str, ...] = tuple(CHECKS)
    measure: Measure = Measure.PAGES
    with_daemon: bool = True
    """Without it nothing is checked."""

    def build(self) -> Scenario:
        if self.scenario is None:
            base = wide_scenario(self.seed) if self.wide else random_scenario(self.seed)
        else:
            base = scenario(self.scenario, self.size, self.seed, self.hours)
        return base if self.policy is None else replace(base, policy=self.policy)

    def command(self) -> str:
        """The command line that repeats it."""
        words = ["python bench/simulate.py", f"--seed {self.seed}"]
        if self.scenario is not None:
            words.append(f"--scenario {self.scenario}")
            if self.size != DEFAULT_SIZE:
                words.append(f"--size {self.size}")
            if self.hours is not None:
                words.append(f"--hours {self.hours:g}")
        if self.wide:
            words.append("--wide")
        if self.policy is not None:
            words.append(f"--policy {self.policy}")
        if self.checks != tuple(CHECKS):
            words.append(f"--checks {','.join(self.checks)}")
        if self.measure is not Measure.PAGES:
            words.append(f"--shares-of {_MEASURES[self.measure]}")
        if not self.with_daemon:
            words.append("--without-daemon")
        return " ".join(words)


_MEASURES = {
    Measure.PAGES: "pages",
    Measure.DEVICE_TIME: "device-time",
    Measure.REQUESTS: "requests",
}
MEASURES = {name: measure for measure, name in _MEASURES.items()}
"""Measures by their names on the command line."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of a trial."""

    order: Order
    run: Result
    without: Result | None
    violations: tuple[Violation, ...]

    @property
    def passed(self) -> bool:
        return not self.violations

    def counts(self) -> dict[str, int]:
        """Violations by check."""
        return {name: len(found) for name, found in by_check(self.violations).items()}

    def lines(self, most: int = 12) -> list[str]:
        """The result as text: the VMs, the cost, and the first `most` violations of each check."""
        run = self.run
        name, seed, drive = run.scenario.name, run.scenario.seed, run.scenario.drive
        epochs = max(1, len(run.epochs))
        statistics, others = run.statistics_calls / epochs, len(run.commands) / epochs
        lines = [
            f"{name}: {run.seconds} s, {len(run.vms)} VMs, {len(run.happened)} events, seed {seed}",
            f"drive: {drive.spec}",
            f"CPU: drive {run.drive_s:.1f} s, daemon {run.daemon_s:.1f} s",
            f"an epoch: {1e3 * run.epochs_s / epochs:.1f} ms, {statistics:.1f} `stats`, {others:.1f} others",
            *_vm_table(run, self.without, self.order.measure),
        ]
        for check_name, found in by_check(self.violations).items():
            lines.append(f"{check_name}: {len(found)} violations")
            lines += [f"  {violation}" for violation in found[:most]]
        if not self.order.with_daemon:
            lines.append("without the daemon: nothing is checked")
        elif not self.violations:
            lines.append(f"nothing violated of {', '.join(self.order.checks)}")
        return lines

    def as_json(self) -> dict[str, Any]:
        return {
            "scenario": self.run.scenario.name,
            "seed": self.order.seed,
            "command": self.order.command(),
            "seconds": self.run.seconds,
            "epochs": len(self.run.epochs),
            "drive_cpu_s": self.run.drive_s,
            "daemon_cpu_s": self.run.daemon_s,
            "digest": self.run.digest(),
            "violations": [
                {"check": violation.check, "at_s": violation.at_s, "vm": violation.vm, "what": violation.text}
                for violation in self.violations
            ],
        }


def run_trial(order: Order) -> Trial:
    """Run a scenario and the runs that its checks compare it with."""
    planned = order.build()
    if not order.with_daemon:
        return Trial(order, simulate(planned, daemon=False), None, ())
    run = simulate(planned)
    without = simulate(planned, daemon=False) if {"conserved", "busy"} & set(order.checks) else None
    honest = simulate(planned.honest()) if planned.hostile and "hostile" in order.checks else None
    found = check(run, without, honest, names=order.checks, measure=order.measure)
    return Trial(order, run, without, tuple(found))


_MAX_ROWS = 16
_VM_TABLE_S = 60


def _vm_table(run: Result, without: Result | None, measure: Measure) -> list[str]:
    """A line for each VM, over the last period without a change, or otherwise the second half of the run."""
    ledger = Ledger(run, measure)
    start_s, end_s = run.seconds // 2, run.seconds
    calms = [calm for calm in ledger.calms() if calm.end_s - calm.start_s >= _VM_TABLE_S]
    if calms:
        start_s, end_s = calms[-1].start_s, calms[-1].end_s
    before = Ledger(without, measure) if without is not None else None
    due = ledger.due(start_s, end_s)
    head = (
        f"{'VM':8} {'IOPS':>8} {'without':>8} {'WAF':>5} {'OPS':>5} {'due':>6} {'got':>6} {'limit':>7}  load"
    )
    lines = [f"from {start_s} to {end_s} s, shares of {_MEASURES[measure]} among those who want more:", head]
    for vm in run.scenario.vms[:_MAX_ROWS]:
        row = run.vms.index(vm.name)
        written = run.of("written_pages")[row, start_s:end_s].sum()
        copied = run.of("gc_pages")[row, start_s:end_s].sum()
        limit = run.of("limit_iops")[row, end_s - 1]
        baseline = before.sum("requests", vm.name, start_s, end_s) / (end_s - start_s) if before else None
        cells = (
            f"{due.iops[vm.name]:.0f}",
            "" if baseline is None else f"{baseline:.0f}",
            f"{(written + copied) / written:.2f}" if written else "",
            f"{run.of('ops_blocks')[row, end_s - 1]:.0f}",
            _percent(due.shares.get(vm.name)),
            _percent(due.got.get(vm.name)),
            "" if limit == float("inf") else f"{limit:.0f}",
        )
        figures = "".join(f"{cell:>9}" for cell in cells)
        lines.append(f"{vm.name:8.8}{figures}  {_fields(dict(vm.slo_fields))}{vm.load}")
    if len(run.vms) > _MAX_ROWS:
        lines.append(f"and {len(run.vms) - _MAX_ROWS} more")
    return lines


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _fields(fields: dict[str, float]) -> str:
    return "".join(f"{name}={value:g} " for name, value in fields.items())
