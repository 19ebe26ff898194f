"""Output of `bench/harm.py` for a case."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from harm_figures import WINDOW_S, Compared, Load, ReportedVerdict, compare, distinct, load_of, waf
from harm_host import EpochFacts, Run

SHARE_OVER_S = 30
SHARE_TOLERANCE = 0.10
"""Relative tolerance of shares, as in verdicts."""
STATUS_TOLERANCE = 0.02
"""Absolute tolerance of shares in the status: its window ends up to an epoch earlier than that of the
clients.
"""
STOP_WITHIN_S = 10.0
"""Longest time from SIGTERM to the daemon's exit."""
_STEP_S = 5


@dataclass(slots=True)
class Result:
    """Result of one case, as printed and written as JSON."""

    title: str
    seconds: int
    targets: dict[str, float]
    """Shares by weight."""
    status_shares: dict[str, float | None]
    """Shares in the last status, of its window."""
    client_shares: dict[str, float]
    """Shares of the clients in that window."""
    last_verdicts: dict[str, str]
    waf_with: float | None
    """WAF over the last seconds."""
    ops_blocks: dict[str, dict[str, int]]
    """OPS blocks by moment and VM."""
    verdicts: dict[str, list[ReportedVerdict]]
    decided: list[str]
    """Decisions reported by the daemon, with their times."""
    timeline: list[dict[str, Any]]
    compared: Compared | None = None
    without: Load | None = None
    with_: Load | None = None
    shares: dict[str, float] = field(default_factory=dict)
    """Shares of the clients over the last seconds."""
    waf_without: float | None = None
    problems: list[str] = field(default_factory=list)
    """Other violations."""
    notes: list[str] = field(default_factory=list)

    @property
    def kept(self) -> bool:
        """Whether the case meets the bars."""
        return (self.compared is None or self.compared.kept) and not self.problems

    def beside(self, without: Run, without_from_s: float, run: Run, from_s: float) -> None:
        """Compare with the run without the daemon; the times are those of the measured period."""
        self.without = load_of(without.requests, without_from_s, self.seconds)
        self.with_ = load_of(run.requests, from_s, self.seconds)
        self.compared = compare(self.without.total, self.with_.total)
        self.shares = self.with_.shares(SHARE_OVER_S)
        self.waf_without = _waf_at_the_end(_between(without.moments, without_from_s, self.seconds))

    def judge_shares(self) -> None:
        """Compare the shares of the clients with their weights, and the status with the clients."""
        for vm, due in self.targets.items():
            received, reported = self.shares.get(vm, 0.0), self.status_shares[vm]
            if abs(received / due - 1.0) > SHARE_TOLERANCE:
                self.problems.append(f"{vm} has {_percent(received)} of the pages and is due {_percent(due)}")
            if reported is None or abs(reported - self.client_shares[vm]) > STATUS_TOLERANCE:
                of_client = _percent(self.client_shares[vm])
                self.problems.append(
                    f"{vm} has {_percent(reported)} by its status, and its client got {of_client}"
                )
            if self.last_verdicts.get(vm) != "ok":
                self.problems.append(f"{vm} is {self.last_verdicts.get(vm)} at the end")

    def judge_stop(self, run: Run) -> None:
        """Check how the daemon exited, and find differences from the state before it."""
        stopped, first, last = run.stopped, run.moments[0], run.moments[-1]
        if stopped is None:
            self.problems.append("the daemon was not stopped")
            return
        exit_s = stopped.at_s + stopped.took_s
        before = [m for m in run.moments if m.at_s <= stopped.at_s][-1]
        after = next((m for m in run.moments if m.at_s >= exit_s), last)
        self.ops_blocks |= {"at SIGTERM": _ops(before), "at exit": _ops(after), "end": _ops(last)}
        self.notes.append(f"exit after {stopped.took_s:.1f} s with code {stopped.exit_code}")
        self.notes += stopped.log_lines
        if stopped.took_s > STOP_WITHIN_S:
            self.problems.append(f"exit only after {stopped.took_s:.1f} s")
        if stopped.exit_code:
            self.problems.append(f"exit code {stopped.exit_code}")
        for vm, space in last.spaces.items():
            for what in ("ops_blocks", "weight", "limit_iops"):
                was, now = getattr(first.spaces[vm], what), getattr(space, what)
                if was != now:
                    rest = f"{last.at_s - exit_s:.0f} s after the exit"
                    self.problems.append(f"{vm}: {what} was {was} and is {now} {rest}")


def result_of(title: str, seconds: int, weights: dict[str, float], run: Run, from_s: float) -> Result:
    """Result of a run with the daemon; the measured period begins at `from_s`."""
    looked_at = _between(run.moments, from_s, seconds)
    total = sum(weights.values())
    last = next((m for m in reversed(looked_at) if m.status is not None), run.moments[-1])
    rows = {row.vm: row for row in last.status.vms} if last.status else {}
    return Result(
        title=title,
        seconds=seconds,
        targets={vm: weight / total for vm, weight in weights.items()},
        status_shares={vm: rows[vm].share if vm in rows else None for vm in weights},
        client_shares=_client_shares(run, last.at_s),
        last_verdicts={vm: row.verdict.value for vm, row in rows.items()},
        waf_with=_waf_at_the_end(looked_at),
        ops_blocks={"first": _ops(run.moments[0]), "end": _ops(looked_at[-1])},
        verdicts=_verdicts(run),
        decided=_decided(run),
        timeline=list(_timeline(run, 1)),
    )


def _between(moments: list[EpochFacts], from_s: float, seconds: float) -> list[EpochFacts]:
    return [m for m in moments if from_s <= m.at_s <= from_s + seconds + 1] or moments


def _ops(moment: EpochFacts) -> dict[str, int]:
    return {name: space.ops_blocks for name, space in moment.spaces.items()}


def _waf_at_the_end(moments: list[EpochFacts]) -> float | None:
    last = moments[-1]
    first = next(m for m in moments if m.at_s > last.at_s - WINDOW_S - 1)
    return waf(first.spaces.values(), last.spaces.values())


def _client_shares(run: Run, until_s: float) -> dict[str, float]:
    done = {vm: each.pages_between(until_s - WINDOW_S, until_s) for vm, each in run.requests.items()}
    everything = sum(done.values())
    return {vm: count / everything if everything else 0.0 for vm, count in done.items()}


def _verdicts(run: Run) -> dict[str, list[ReportedVerdict]]:
    verdicts: dict[str, list[tuple[int, str, str]]] = {vm: [] for vm in run.moments[0].spaces}
    for moment in run.moments:
        for row in moment.status.vms if moment.status else ():
            if row.vm in verdicts:
                second = round(moment.at_s - run.began_s)
                verdicts[row.vm].append((second, row.verdict.value, row.reason))
    return {vm: distinct(each) for vm, each in verdicts.items()}


def _decided(run: Run) -> list[str]:
    found: list[str] = []
    before: tuple[str, ...] = ()
    for moment in run.moments:
        for device in moment.status.devices if moment.status else ():
            at = f"{moment.at_s - run.began_s:.0f} s: "
            found += [at + reason for reason in device.reasons if reason not in before]
            found += [f"{at}problem: {device.problem}"] if device.problem else []
            before = device.reasons
    return found


def _timeline(run: Run, step: int) -> Iterator[dict[str, Any]]:
    for before, now in zip(run.moments[::step], run.moments[step::step], strict=False):
        rows = {row.vm: row for row in now.status.vms} if now.status else {}
        vms = {}
        for vm, space in now.spaces.items():
            had, row = before.spaces[vm], rows.get(vm)
            host = space.host_page_writes - had.host_page_writes
            gc, victims = space.gc_page_writes - had.gc_page_writes, space.victims - had.victims
            requests = run.requests.get(vm)
            done = requests.pages_between(before.at_s, now.at_s) if requests else 0
            vms[vm] = {
                "pages_s": round(done / (now.at_s - before.at_s)),
                "ops_blocks": space.ops_blocks,
                "pending_out_blocks": space.pending_out_blocks,
                "gc_passes": victims,
                "waf": round((host + gc) / host, 2) if host else None,
                "weight": space.weight,
                "limit_iops": None if space.limit_iops is None else round(space.limit_iops),
                "verdict": row.verdict.value if row else "",
                "reason": row.reason if row else "",
            }
        yield {"s": round(now.at_s - run.began_s), "spare_blocks": now.spare_blocks, "vms": vms}


def print_timeline(run: Run) -> None:
    """Print the run every few seconds; gc: passes in that time, -N: blocks still to be given away."""
    head = "".join(
        f" | {f'{vm}: pages':>10} {'OPS':>11} {'gc':>5} {'WAF':>5} {'wt':>4} {'limit':>5} {'verdict':<12}"
        for vm in run.moments[0].spaces
    )
    print(f"  {'s':>4}{head}")
    for each in _timeline(run, _STEP_S):
        cells = []
        for row in each["vms"].values():
            pending = f"-{row['pending_out_blocks']}" if row["pending_out_blocks"] else ""
            ops, limit = f"{row['ops_blocks']}{pending}", row["limit_iops"]
            ratio = "-" if row["waf"] is None else row["waf"]
            cells.append(
                f" | {row['pages_s']:>10} {ops:>11} {row['gc_passes']:>5} {ratio:>5}"
                f" {row['weight']:>4.3g} {'-' if limit is None else limit:>5} {row['verdict']:<12}"
            )
        spare = f"  spare {each['spare_blocks']}" if each["spare_blocks"] else ""
        print(f"  {each['s']:>4}{''.join(cells)}{spare}")
    print()


def print_result(result: Result) -> None:
    """Print the result as text."""
    print(f"{result.title}, {result.seconds} s (EMULATED drive): {'pass' if result.kept else 'FAIL'}")
    compared = result.compared
    if compared is not None:
        print(
            f"  pages/s without {compared.without_pages_s:,.0f}, with {compared.with_pages_s:,.0f}: "
            f"ratio {compared.ratio:.3f}; worst {WINDOW_S} s {compared.worst_ratio:.3f} from second "
            f"{compared.worst_from_s} on"
        )
    for what, load in (("without", result.without), ("with", result.with_)):
        for vm, latency in load.latency.items() if load else ():
            print(
                f"  {vm} {what}: mean {latency.mean_ms:.2f} ms, p99 {latency.p99_ms:.1f} ms, "
                f"max {latency.max_ms:.0f} ms"
            )
    if len(result.shares) > 1:
        pairs = ", ".join(
            f"{vm} {_percent(share)} (by weight {_percent(result.targets[vm])})"
            for vm, share in result.shares.items()
        )
        print(f"  shares over the last {SHARE_OVER_S} s: {pairs}")
        pairs = ", ".join(
            f"{vm} {_percent(share)} (clients {_percent(result.client_shares.get(vm))})"
            for vm, share in result.status_shares.items()
        )
        print(f"  last status, of its window: {pairs}")
    print(f"  WAF at the end: without {_ratio(result.waf_without)}, with {_ratio(result.waf_with)}")
    splits = (f"{when} {'/'.join(map(str, ops.values()))}" for when, ops in result.ops_blocks.items())
    print(f"  OPS blocks {'/'.join(result.ops_blocks['first'])}: {', '.join(splits)}")
    for vm, verdicts in result.verdicts.items():
        print(*(f"  {vm} {each.sentence}" for each in verdicts), sep="\n")
    for what, lines in (("decided at", result.decided), ("stop:", result.notes), ("WRONG:", result.problems)):
        for line in lines:
            print(f"  {what} {line}")
    print(flush=True)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
