"""What a result says, in sentences made from its numbers and from nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.model import Verdict
from slo_ctl.show import numbers
from slo_ctl.show.verdict import TOLERANCE, verdict, worst_share_error

if TYPE_CHECKING:
    from slo_ctl.replay.result import GcPagesMoved, Result, RunResult, VmResult


def story(result: Result) -> list[str]:
    """A few plain sentences: each run in turn, then the last against the first."""
    if not result.runs:
        return ["No run got far enough to measure anything."]
    sentences = [_run(run) for run in result.runs]
    if len(result.runs) > 1:
        sentences += _against(result.runs[0], result.runs[-1])
    return sentences


def foreign_pages(moved: GcPagesMoved) -> tuple[int, int]:
    """Pages that GC moved for a VM other than their owner, and all pages it moved."""
    total = sum(map(sum, moved.pages))
    own = sum(row[index] for index, row in enumerate(moved.pages))
    return total - own, total


def _run(run: RunResult) -> str:
    parts = [f"{run.policy}: {_interference(run)}", _shares(run)]
    return " ".join(part for part in parts if part)


def _interference(run: RunResult) -> str:
    layout = (
        "every VM has flash blocks and OPS of its own" if run.isolated else "all VMs' pages mix in one pool"
    )
    if run.gc_pages_moved is None:
        return f"{layout}."
    foreign, total = foreign_pages(run.gc_pages_moved)
    if total == 0:
        return f"{layout}; GC moved no page."
    if foreign == 0:
        return f"{layout}; all {numbers.count(total)} pages that GC moved belonged to the VM it worked for."
    return (
        f"{layout}; {numbers.percent(foreign / total, 0)} of the {numbers.count(total)} pages that GC moved "
        "belonged to another VM than the one it worked for."
    )


def _shares(run: RunResult) -> str:
    worst = worst_share_error(run)
    if worst is None:
        return ""
    if abs(worst) <= TOLERANCE:
        return f"Every VM's share of the {_unit(run)} is within {numbers.percent(abs(worst))} of its target."
    furthest = _furthest_vm(run.vms)
    told = (
        f"{furthest.name} is furthest off: its weight asks for {numbers.percent(furthest.target_share)} of "
        f"the {_unit(run)} and it got {numbers.percent(furthest.share)} ({numbers.signed_percent(worst)})."
    )
    short = [vm.name for vm in run.vms if verdict(vm) is Verdict.INSUFFICIENT]
    return f"{told} Short of their target: {', '.join(short)}." if short else told


def _unit(run: RunResult) -> str:
    return run.share_by.replace("-", " ")


def _furthest_vm(vms: list[VmResult]) -> VmResult:
    return max(vms, key=lambda vm: abs(vm.share_error or 0.0))


def _against(first: RunResult, last: RunResult) -> list[str]:
    """What changed from the baseline to the policy in question."""
    changes = []
    if first.waf and last.waf:
        changes.append(f"WAF went from {numbers.decimal(first.waf)} to {numbers.decimal(last.waf)}")
    if first.iops and last.iops:
        changes.append(
            f"the total from {numbers.count(first.iops)} to {numbers.count(last.iops)} IOPS "
            f"({numbers.signed_percent(last.iops / first.iops - 1)})"
        )
    before, after = worst_share_error(first), worst_share_error(last)
    if before is not None and after is not None:
        changes.append(
            f"the worst share error from {numbers.signed_percent(before)} to {numbers.signed_percent(after)}"
        )
    return [f"From {first.policy} to {last.policy}: {', '.join(changes)}."] if changes else []
