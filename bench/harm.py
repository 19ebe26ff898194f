"""Overhead of the daemon for VMs on an EMULATED SSD, in real time: the same load without and with it.

    .venv/bin/python bench/harm.py [--case 1,3] [--size 8GiB] [--seconds-scale 1] [--timeline] [--json FILE]

The drive is that of README's `A live host`: preset fast15, preconditioned, served with `--latency real`, with
the namespaces web and db. VMs are replaced by fio clients in cgroups (4 KiB random writes, queue depth 8,
unless the title of the case has another load), each with a second connection that stays open, like QEMU's.
Every run begins with a copy of the same drive, and throughput is in 4 KiB pages. Needs root, cgroups and fio.
Exit code 1 if a case is below the bar.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import checkout
from harm_figures import WINDOW_S
from harm_host import RANDOM_WRITES, VMS, Host, Run, copy_drive, host, make_drive, use_drive
from harm_report import Result, print_result, print_timeline, result_of

from slo_ctl.base.termination import terminable

NEW, USED = "new", "used"
BEFORE_S = 15.0
"""The daemon runs for this time before clients become active: longer than its status window."""


@dataclass(frozen=True, slots=True)
class Case:
    """A case. Times are in seconds from the start of the load."""

    number: str
    title: str
    seconds: int
    """Length of the measured period."""
    busy: tuple[str, ...] = VMS
    loads: dict[str, str] = field(default_factory=dict)
    """Options of fio by VM, instead of `RANDOM_WRITES`."""
    share_by: str = "pages"
    apart_s: float = 0.0
    """Time between the starts of clients."""
    drive: str = NEW
    weights: dict[str, float] = field(default_factory=lambda: dict.fromkeys(VMS, 1.0))
    daemon_at_s: float = -BEFORE_S
    from_s: float = 0.0
    """Start of the measured period."""
    change_at_s: float | None = None
    """Time of `slo-ctl vm set db weight=3,min=50`."""
    stop_at_s: float | None = None
    """Time of SIGTERM to the daemon."""
    shares_kept: bool = False
    """Whether shares and status are judged too: not while a change is still taking effect."""
    load_s: float | None = None
    """Length of the load; None: until the end of the measured period."""

    def scaled(self, scale: float) -> Case:
        """The case with times multiplied by `scale`, except the time before the load."""

        def of(at_s: float | None) -> float | None:
            return None if at_s is None else at_s * scale

        return replace(
            self,
            seconds=max(WINDOW_S, round(self.seconds * scale)),
            daemon_at_s=self.daemon_at_s * (scale if self.daemon_at_s > 0 else 1.0),
            from_s=self.from_s * scale,
            apart_s=self.apart_s * scale,
            change_at_s=of(self.change_at_s),
            stop_at_s=of(self.stop_at_s),
            load_s=of(self.load_s),
        )

    @property
    def alike(self) -> tuple[object, ...]:
        """Cases with the same value share one run without the daemon."""
        return self.drive, self.busy, tuple(self.loads.items()), self.apart_s

    @property
    def until_s(self) -> float:
        """End of the measured period."""
        return self.from_s + self.seconds

    @property
    def compared(self) -> bool:
        """Whether there is load in the measured period."""
        return self.load_s is None or self.load_s >= self.until_s


_UNEQUAL = {"web": 1.0, "db": 3.0}
CASES = (
    Case("1", "one VM busy, the other idle, new drive", 60, busy=("web",)),
    Case("2", "one VM busy, the other idle, drive in use", 120, busy=("web",), drive=USED),
    Case("3a", "two VMs wake up at once, equal weights", 115),
    Case("3b", "two VMs wake up, one 5 s after the other", 115, apart_s=5),
    Case(
        "4",
        "equal weights, both busy before the daemon starts",
        120,
        daemon_at_s=15,
        from_s=15,
        shares_kept=True,
    ),
    Case("5", "vm set db weight=3,min=50 while both run", 40, from_s=60, change_at_s=60),
    Case("6", "two VMs wake up, weights 1:3", 115, weights=_UNEQUAL),
    Case("7a", "SIGTERM while both run, weights 1:3", 40, weights=_UNEQUAL, from_s=60, stop_at_s=60),
    Case("7b", "SIGTERM while both are idle", 40, weights=_UNEQUAL, load_s=60, from_s=75, stop_at_s=75),
    Case(
        "8a",
        "4 KiB at depth 1, 70 % reads, beside 16 KiB writes at depth 64",
        115,
        loads={
            "web": "--rw=randrw --rwmixread=70 --bs=4k --iodepth=1",
            "db": "--rw=randwrite --bs=16k --iodepth=64",
        },
    ),
    Case(
        "8b",
        "4 to 64 KiB at depth 32, 50 % reads, beside a VM that writes and sleeps, 15 s each",
        115,
        # The drive's fair queue divides it like this without the daemon: pages of db take twice the time.
        share_by="device-time",
        loads={
            "web": "--rw=randrw --bssplit=4k/60:16k/30:64k/10 --iodepth=32",
            "db": f"{RANDOM_WRITES} --thinktime=15s --thinktime_iotime=15s",
        },
    ),
)


def main() -> int:
    options = _options()
    checkout.require("fio", root=True)
    wanted = options.case.split(",") if options.case else []
    cases = [case for case in CASES if not wanted or {case.number, case.number[:1]} & {*wanted}]
    if not cases:
        sys.exit(f"--case: there are {', '.join(case.number for case in CASES)}")
    results = []
    for result, run in _results([case.scaled(options.seconds_scale) for case in cases], options):
        print_result(result)
        if options.timeline:
            print_timeline(run)
        sys.stdout.flush()
        results.append(result)
        if options.json:
            options.json.write_text(json.dumps(_plain(results, options), indent=1) + "\n")
    return 0 if all(result.kept for result in results) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case", default="", help="such as 1,3 or 7a; 3 is 3a and 3b [default: all]")
    parser.add_argument("--size", default="8GiB", help="size of the drive [default: 8GiB]")
    parser.add_argument(
        "--seconds-scale", type=float, default=1.0, help="lengthen or shorten every case [default: 1]"
    )
    parser.add_argument(
        "--overwrite", type=float, default=1.0, help="drive writes before a drive is in use [default: 1]"
    )
    parser.add_argument("--timeline", action="store_true", help="print the state every five seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    parser.add_argument("--folder", help="folder for drives and logs [default: that for temporary files]")
    return parser.parse_args()


def _results(cases: list[Case], options: argparse.Namespace) -> Iterator[tuple[Result, Run]]:
    with tempfile.TemporaryDirectory(prefix="slo-harm-", dir=options.folder) as name:
        scratch = Path(name)
        drives = _drives(scratch, cases, options)
        without: dict[tuple[object, ...], Run] = {}
        for case in cases:
            if case.compared and case.alike not in without:
                seconds = max(each.until_s for each in cases if each.compared and each.alike == case.alike)
                _say(
                    f"without the daemon, {' and '.join(case.busy)} busy, {case.drive} drive: {seconds:.0f} s"
                )
                without[case.alike] = _run_without(drives[case.drive], scratch, case, seconds)
            _say(f"case {case.number}: {case.title}")
            run = _run_with(drives[case.drive], scratch, case)
            yield _result(case, without.get(case.alike) if case.compared else None, run), run


def _drives(scratch: Path, cases: list[Case], options: argparse.Namespace) -> dict[str, Path]:
    drives = {NEW: scratch / NEW}
    drives[NEW].mkdir()
    _say(f"EMULATED drive of {options.size}: {make_drive(drives[NEW], options.size)}")
    if any(case.drive == USED for case in cases):
        drives[USED] = scratch / USED
        copy_drive(drives[NEW], drives[USED])
        _say(f"another one like it is overwritten, {options.overwrite:g} drive writes")
        use_drive(drives[USED], options.overwrite)
    return drives


_TAIL_S = 2.0
"""Time for which the load continues after the measured period."""


def _run_without(drive: Path, scratch: Path, case: Case, seconds: float) -> Run:
    with host(drive, scratch) as live:
        _carry_out(_load(live, case, seconds + _TAIL_S), time.monotonic())
        live.end_load()
        return live.run


def _run_with(drive: Path, scratch: Path, case: Case) -> Run:
    with host(drive, scratch) as live:
        live.configure(case.weights, case.share_by)
        began_s = time.monotonic() + max(0.0, -case.daemon_at_s)
        load_s = case.until_s + _TAIL_S if case.load_s is None else case.load_s
        steps = [(case.daemon_at_s, live.start_daemon), *_load(live, case, load_s)]
        if case.change_at_s is not None:
            steps.append((case.change_at_s, lambda: live.set_vm("db", "weight=3,min=50")))
        if case.stop_at_s is not None:
            steps.append((case.stop_at_s, live.stop_daemon))
        _carry_out(steps, began_s)
        live.end_load()
        time.sleep(max(0.0, began_s + case.until_s - time.monotonic()))
        return live.run


Steps = list[tuple[float, Callable[[], None]]]


def _load(live: Host, case: Case, seconds: float) -> Steps:
    """Start the clients one after the other; they end together."""
    begins = [(place * case.apart_s, vm) for place, vm in enumerate(case.busy)]
    return [
        (at_s, partial(live.start_load, vm, case.loads.get(vm, RANDOM_WRITES), seconds - at_s))
        for at_s, vm in begins
    ]


def _carry_out(steps: Steps, began_s: float) -> None:
    for at_s, step in sorted(steps, key=lambda each: each[0]):
        time.sleep(max(0.0, began_s + at_s - time.monotonic()))
        step()


def _result(case: Case, without: Run | None, run: Run) -> Result:
    from_s = run.began_s + case.from_s
    if case.change_at_s is not None:
        from_s = run.events["vm set"]
    if run.stopped is not None and case.stop_at_s is not None:
        from_s = run.stopped.at_s
    weights = {vm: case.weights[vm] for vm in case.busy}
    if case.change_at_s is not None:
        weights["db"] = 3.0
    result = result_of(f"case {case.number}: {case.title}", case.seconds, weights, run, from_s)
    if without is not None:
        result.beside(without, without.began_s + from_s - run.began_s, run, from_s)
    if case.shares_kept:
        result.judge_shares()
    if case.stop_at_s is not None:
        result.judge_stop(run)
    return result


def _plain(results: list[Result], options: argparse.Namespace) -> dict[str, Any]:
    return {
        "emulated": True,
        "size": options.size,
        "seconds_scale": options.seconds_scale,
        "cases": [asdict(result) for result in results],
    }


def _say(text: str) -> None:
    print(f"harm: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
