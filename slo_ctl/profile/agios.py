"""`access_times.func`, which the AGIOS scheduling library reads.

Line 1 the number of intervals; then for each `minKB<TAB>maxKB` and four lines `a<TAB>b` (sequential write,
random write, sequential read, random read) with time in nanoseconds = a x size in KB + b. Sizes beyond the
last interval use the last one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slo_ctl.base.errors import UserError
from slo_ctl.decide.profile_fit import Analysis, Interval, Line
from slo_ctl.model.measurement import ACCESSES, Access

_KB_BYTES = 1024
_NS = 1e9
_HINT = "see docs/profiling.md for the format"


@dataclass(frozen=True, slots=True)
class AgiosInterval:
    """One interval of the file."""

    low_kb: int
    high_kb: int
    lines: Mapping[Access, Line]

    def implausible(self) -> list[Access]:
        """Tests with a time that is not positive somewhere in the interval: such files exist, so it is
        told."""
        return [
            access
            for access, line in self.lines.items()
            if min(line.at_s(self.low_kb * _KB_BYTES), line.at_s(self.high_kb * _KB_BYTES)) <= 0
        ]


def to_agios(analysis: Analysis, intervals: Sequence[Interval]) -> str:
    """The text of the file. Raises UserError when a test was not measured: the file has a line for each."""
    rows = [str(len(intervals))]
    for interval in intervals:
        if interval.low_bytes % _KB_BYTES or interval.high_bytes % _KB_BYTES:
            raise UserError(f"--agios: {interval} is in no whole KB", "AGIOS counts in 1024 bytes")
        rows.append(f"{interval.low_bytes // _KB_BYTES}\t{interval.high_bytes // _KB_BYTES}")
        for access in ACCESSES:
            curve = next((c for c in analysis.curves if (c.access, c.interval) == (access, interval)), None)
            if curve is None:
                raise UserError(
                    f"--agios: there are no times of {access} in {interval}",
                    "AGIOS needs all four tests: profile with writing allowed, and every interval to its end",
                )
            line = curve.line
            rows.append(f"{line.slope_s_per_byte * _KB_BYTES * _NS:.9g}\t{line.intercept_s * _NS:.9g}")
    return "\n".join(rows) + "\n"


def from_agios(text: str, where: str = "access_times.func") -> list[AgiosInterval]:
    """Read the file back. Raises UserError naming the line."""
    lines = iter(enumerate(text.splitlines(), 1))
    count = _numbers(lines, 1, where)[0]
    if count != int(count) or count < 1:
        raise UserError(f"{where}:1: {count:g} is not a valid number of intervals", _HINT)
    found = []
    for _ in range(int(count)):
        low, high = _numbers(lines, 2, where)
        tests = {}
        for access in ACCESSES:
            slope, intercept = _numbers(lines, 2, where)
            tests[access] = Line(slope / _KB_BYTES / _NS, intercept / _NS)
        found.append(AgiosInterval(int(low), int(high), tests))
    return found


def _numbers(lines: Iterator[tuple[int, str]], count: int, where: str) -> list[float]:
    number, text = next(lines, (0, ""))
    if not number:
        raise UserError(f"{where}: ends too early", _HINT)
    try:
        values = [float(word) for word in text.split()]
    except ValueError:
        raise UserError(f"{where}:{number}: {text.strip()!r} are not numbers", _HINT) from None
    if len(values) != count or not all(map(math.isfinite, values)):
        raise UserError(f"{where}:{number}: {count} finite numbers belong here", _HINT)
    return values
