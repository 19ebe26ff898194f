"""`access_times.func`, which the AGIOS scheduling library reads.

Line 1 the number of intervals; then for each `minKB<TAB>maxKB` and four lines `a<TAB>b` (sequential write,
random write, sequential read, random read) with time in nanoseconds = a x size in KB + b. Sizes beyond the
last interval use the last one.
"""

from __future__ import annotations

from collections.abc import Sequence

from slo_ctl.base.errors import UserError
from slo_ctl.decide.profile_fit import Analysis, Interval
from slo_ctl.model.measurement import ACCESSES

_KB_BYTES = 1024
_NS = 1e9
_HINT = "see docs/profiling.md for the format"


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
