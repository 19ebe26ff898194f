"""`slo-ctl replay --allocator`: where file systems put their blocks, compared on drives that merge."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slo_ctl.cli.outcome import Outputs, deliver
from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from slo_ctl.allocation.sweep import Sweep
    from slo_ctl.allocation.traced import TraceSource

DEFAULT_WORKLOAD = "cvfs-large"
DEFAULT_DRIVE = "sandisk"
DEFAULT_UTILISATION = "10..90"
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_STEP_PERCENT = 10
_MOST_PERCENT = 95
_MOST_SEEDS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options, as they were written."""

    allocator: str
    workload: str | None
    trace: Path | None
    drive: str | None
    device: list[str]
    utilisation: str | None
    trim: bool
    seeds: int
    jobs: int | None
    seed: str | None
    on_error: str | None

    def command(self) -> str:
        """The command line that repeats the run."""
        words = ["slo-ctl", "replay", "--allocator", self.allocator]
        pairs = {
            "--workload": self.workload,
            "--trace": None if self.trace is None else str(self.trace),
            "--drive": self.drive,
            "--utilisation": self.utilisation,
            "--seed": self.seed,
            "--on-error": self.on_error,
        }
        for option, value in pairs.items():
            if value is not None:
                words += [option, value]
        for each in self.device:
            words += ["--device", each]
        if self.trim:
            words.append("--trim")
        if self.seeds != 1:
            words += ["--seeds", str(self.seeds)]
        return shlex.join(words)


def compare_allocators(asked: Asked, outputs: Outputs) -> None:
    """Run it with progress on stderr, print and write what came out."""
    from slo_ctl.allocation.sweep import compare
    from slo_ctl.show.progress import progress_on_stderr

    outputs.check()
    sweep = sweep_of(asked)
    jobs = asked.jobs or os.cpu_count() or 1
    with progress_on_stderr(quiet=outputs.quiet) as progress:
        result = compare(sweep, asked.command(), progress, jobs)
    from slo_ctl.show.allocation_report import render_allocation
    from slo_ctl.show.allocation_table import print_allocation

    deliver(result, outputs, render_allocation, print_allocation)


def sweep_of(asked: Asked) -> Sweep:
    """What was asked for, checked. Raises UserError, and TraceError for a trace that cannot be read."""
    from slo_ctl.allocation.drives import DRIVES
    from slo_ctl.allocation.postmark import SETTINGS
    from slo_ctl.allocation.registry import ALLOCATORS
    from slo_ctl.allocation.sweep import Sweep, preset
    from slo_ctl.replay.fields import split_pairs

    if asked.trace is not None and asked.workload is not None:
        raise UserError("--trace and --workload are two workloads", "give one of them")
    if not 1 <= asked.seeds <= _MOST_SEEDS:
        raise UserError(f"--seeds: {asked.seeds} is out of range", f"from 1 to {_MOST_SEEDS}")
    changes: dict[str, str] = {}
    for words in asked.device:
        changes |= split_pairs("--device", words)
    workload = asked.workload or DEFAULT_WORKLOAD
    trace = None
    if asked.trace is not None:
        trace = _trace(asked)
        workload = asked.trace.name
    elif workload not in SETTINGS:
        known = ", ".join(SETTINGS)
        raise UserError(f"--workload: {workload} is not known", f"known: {known}; or --trace FILE")
    first = _whole("--seed", "1" if asked.seed is None else asked.seed)
    names = _names("--drive", asked.drive or DEFAULT_DRIVE, DRIVES)
    return Sweep(
        allocators=_names("--allocator", asked.allocator, ALLOCATORS),
        drives={name: preset(name, changes) for name in names},
        workload=workload,
        trace=trace,
        utilisations=_utilisations(DEFAULT_UTILISATION if asked.utilisation is None else asked.utilisation),
        trim=asked.trim,
        seeds=tuple(range(first, first + asked.seeds)),
    )


def _trace(asked: Asked) -> TraceSource:
    """The trace, read through once, so that what is wrong with it is told before anything runs."""
    from slo_ctl.allocation.traced import TraceSource, trace_steps

    if asked.trace is None:
        raise AssertionError("asked for a trace that is not there")
    if asked.on_error not in (None, "raise", "skip"):
        raise UserError(f"--on-error: {asked.on_error} is not known", "known: raise, skip")
    source = TraceSource(asked.trace.resolve(), skip_bad_records=asked.on_error == "skip")
    if not sum(1 for _ in trace_steps(source)):
        raise UserError(f"--trace: {asked.trace} writes nothing", "only writes are given space; take another")
    return source


def _names(option: str, text: str, known: Iterable[str]) -> tuple[str, ...]:
    from slo_ctl.replay.fields import did_you_mean

    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in known:
            raise UserError(f"{option}: {name or 'nothing'} is not known", did_you_mean(name, known))
    return names


def _utilisations(text: str) -> tuple[float, ...]:
    """`10..90` in steps of ten, or per cents with commas."""
    whole = _RANGE.fullmatch(text)
    if whole:
        low, high = int(whole[1]), int(whole[2])
        # The end counts although the steps may pass it by: 5..99 asks for more than there is.
        percents: list[int] = [] if high > _MOST_PERCENT else list(range(low, high + 1, _STEP_PERCENT))
    else:
        percents = [_whole("--utilisation", part.strip().removesuffix("%")) for part in text.split(",")]
    if not percents or any(not 0 <= each <= _MOST_PERCENT for each in percents):
        hint = f"10..90, or per cents from 0 to {_MOST_PERCENT} as 10,50,90"
        raise UserError(f"--utilisation: {text} is out of range", hint)
    return tuple(each / 100 for each in dict.fromkeys(percents))


def _whole(option: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise UserError(f"{option}: {text} is no whole number", "write a whole number such as 10") from None
    if number < 0:
        raise UserError(f"{option}: {text} is negative", "0 or more")
    return number
