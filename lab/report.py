"""Optimal write size and write cost as JSON and text; access times as a file of AGIOS."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lab.write_size import Finding, Outcome
from lab.write_size_advice import Advice, advise
from slo_ctl.base import numbers
from slo_ctl.base.errors import UserError
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.base.text import printable
from slo_ctl.model.measurement import ACCESSES
from slo_ctl.show.terminal import print_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console

    from lab.write_cost import Band, Estimate, WriteCost
    from lab.write_size import FoundWriteSize, SizeVerdict, WriteSizeRecord
    from slo_ctl.decide.profile_fit import Analysis
    from slo_ctl.decide.request_sizes import Interval


def _advice(finding: Finding) -> tuple[Advice, ...]:
    """Recommended settings when the result is confident; otherwise none, as they are hard to undo."""
    return advise(finding.block_bytes) if finding.block_bytes is not None and finding.sure else ()


def write_size_json(
    record: WriteSizeRecord, emulated: bool, found: FoundWriteSize | None = None
) -> dict[str, Any]:
    """One JSON object; `pair` has the raw measurements."""
    finding = record.finding()
    plain = record.model_dump(mode="json")
    plain["emulated_in_virtual_time"] = emulated
    plain["validity"] = None if found is None else found.plain()
    plain["outcome"] = finding.outcome.value
    plain["optimal_write_bytes"] = finding.block_bytes
    plain["sure"] = finding.sure
    plain["sizes"] = [_write_size_size_json(size) for size in finding.sizes]
    plain["advice"] = [asdict(each) for each in _advice(finding)]
    return plain


def print_write_size(
    console: Console, record: WriteSizeRecord, emulated: bool, found: FoundWriteSize | None = None
) -> None:
    """The drive, the sizes, the result and recommended settings."""
    finding = record.finding()
    identity = record.identity
    title = identity.place if emulated else f"{identity.model}, {identity.place}"
    console.print(
        Text(printable(f"{'EMULATED, virtual time: ' if emulated else ''}{title}"), style="bold"),
        soft_wrap=True,
    )
    for line in _write_size_circumstances(record, found):
        console.print(Text(printable(line)))
    if finding.sizes:
        console.print()
        _print_sizes(console, finding)
        console.print()
    for line in finding_lines(record, finding):
        console.print(Text(line))
    for each in _advice(finding):
        console.print(Text(f"{each.what}: {each.why}"))
        for command in each.commands:
            # Never wrapped, so that it can be pasted.
            console.print(Text(f"  {command}", style="bold"), soft_wrap=True)


def finding_lines(record: WriteSizeRecord, finding: Finding) -> list[str]:
    """The result in words."""
    confidence = (
        f"with {100 * record.confidence:.4g} % confidence at each size"
        if finding.sure
        else "LOW confidence, so no recommendation: measure again with --fresh while the device is idle"
    )
    within = f"random writes at most {numbers.percent(record.tolerance, 0)} slower"
    largest = format_bytes_exact(record.high_bytes)
    match finding.outcome:
        case Outcome.FOUND:
            worst = max(finding.sizes, key=lambda size: size.ratio)
            at = format_bytes_exact(worst.size_bytes)
            block = format_bytes_exact(finding.block_bytes or 0)
            return [
                f"optimal write size: {block} ({within}, {confidence})",
                f"smaller random writes are up to {worst.ratio:.3g} times slower than sequential (at {at})",
            ]
        case Outcome.NONE_NEEDED:
            smallest = format_bytes_exact(record.low_bytes)
            return [
                f"optimal write size: none needed ({within} from {smallest} on, {confidence}): nothing to set"
            ]
        case Outcome.NOT_REACHED:
            return [
                f"optimal write size: not reached; random writes of {largest} are still slower ({confidence})"
            ]
        case Outcome.UNFINISHED:
            return ["optimal write size: not known yet; run the command again to resume"]


def _write_size_circumstances(record: WriteSizeRecord, found: FoundWriteSize | None) -> list[str]:
    lines = [
        (
            f"target {record.target}, {numbers.size(record.span_bytes)} written by each pass, queue depth "
            f"{record.queue_depth}, {numbers.size(record.written_bytes)} in all"
        )
    ]
    if record.identity.kernel:
        lines.append(f"kernel {record.identity.kernel}, scheduler {record.identity.scheduler or 'n/a'}")
    if found is not None:
        lines.append(f"measured {found}")
    return lines


def _print_sizes(console: Console, finding: Finding) -> None:
    headings = ("SIZE", "SEQUENTIAL", "RANDOM", "RATIO", "BETWEEN", "REPEATED", "RANDOM IS")
    rows = []
    for size in finding.sizes:
        high = f"{size.high:.2f}" if math.isfinite(size.high) and size.high < 1e4 else "?"
        rows.append(
            (
                format_bytes_exact(size.size_bytes),
                numbers.bandwidth(size.sequential_bytes_s),
                numbers.bandwidth(size.random_bytes_s),
                numbers.decimal(size.ratio),
                f"{size.low:.2f}-{high}",
                str(size.repetitions),
                size.closeness.value,
            )
        )
    print_rows(console, headings, rows, left=("RANDOM IS",))


def _write_size_size_json(size: SizeVerdict) -> dict[str, Any]:
    plain = asdict(size)
    plain["closeness"] = size.closeness.value
    plain["high"] = size.high if math.isfinite(size.high) else None
    return plain


@dataclass(frozen=True, slots=True)
class Panel:
    """Requests of one size."""

    title: str
    response_us: NDArray[np.floating[Any]]
    """Response times in the order of the requests."""
    band: Band


def cost_lines(cost: WriteCost) -> list[str]:
    """T(n) = T_merge + n S/B, its parameters with bounds, and a row for every request size."""
    confidence = f"{100 * cost.confidence:.4g} % confidence"
    lines = [f"T(n) = T_merge + n S/B, {confidence}:"]
    if cost.merge_us is None:
        lines.append("  T_merge    none: no write exceeded the band")
    else:
        lines.append(f"  T_merge    {bounds(cost.merge_us, numbers.latency)}")
    lines.append(f"  B          {bounds(cost.bandwidth_bytes_s, numbers.bandwidth)}")
    lines.append(f"  fixed      {bounds(cost.fixed_us, numbers.latency)}, per request")
    lines.append(f"  spikes     {numbers.percent(cost.spikes_per_request, 2)} of the requests")
    lines.append(f"{'SIZE':>10} {'REQUESTS':>10} {'BAND':>10} {'SPIKES':>8} {'MEAN SPIKE':>11} {'OFF':>8}")
    for size in cost.sizes:
        off = size.residual_us / size.band.centre_us
        lines.append(
            f"{format_bytes_exact(size.request_bytes):>10} {size.band.requests:>10,} "
            f"{numbers.latency(size.band.centre_us):>10} {size.band.spikes:>8,} "
            f"{numbers.latency(size.mean_spike_us):>11} {numbers.signed_percent(off):>8}"
        )
    return lines


def cost_json(cost: WriteCost) -> dict[str, Any]:
    """One JSON object; an unknown bound is null."""
    return {
        "confidence": cost.confidence,
        "merge_us": None if cost.merge_us is None else _plain(cost.merge_us),
        "bandwidth_bytes_s": _plain(cost.bandwidth_bytes_s),
        "fixed_us": _plain(cost.fixed_us),
        "spikes_per_request": cost.spikes_per_request,
        "sizes": [
            {
                "request_bytes": size.request_bytes,
                "requests": size.band.requests,
                "spikes": size.band.spikes,
                "band_centre_us": size.band.centre_us,
                "band_sigma_us": size.band.sigma_us,
                "band_limit_us": size.band.limit_us,
                "residual_us": size.residual_us,
                "mean_spike_us": size.mean_spike_us,
            }
            for size in cost.sizes
        ],
    }


def _plain(estimate: Estimate) -> dict[str, float | None]:
    return {
        name: value if math.isfinite(value) else None
        for name, value in (("value", estimate.value), ("low", estimate.low), ("high", estimate.high))
    }


def bounds(estimate: Estimate, text: Callable[[float], str]) -> str:
    """A value with its bounds, each as `text` writes it."""
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return f"{text(estimate.value)} (bounds unknown)"
    return f"{text(estimate.value)} ({text(estimate.low)} to {text(estimate.high)})"


# `access_times.func` of the AGIOS scheduling library.
#
# Line 1 is the number of intervals. Each interval has a line `minKB<TAB>maxKB` and four lines `a<TAB>b`
# (sequential write, random write, sequential read, random read) with time in nanoseconds = a x size in KB +
# b. Larger sizes use the last interval.


_KB_BYTES = 1024
_NS_PER_S = 1e9


def to_agios(analysis: Analysis, intervals: Sequence[Interval]) -> str:
    """The text of the file. Raises UserError when a test is missing, because the file has a line for each."""
    rows = [str(len(intervals))]
    for interval in intervals:
        if interval.low_bytes % _KB_BYTES or interval.high_bytes % _KB_BYTES:
            raise UserError(f"--agios: {interval} is not in whole KiB", "AGIOS counts in 1024 bytes")
        rows.append(f"{interval.low_bytes // _KB_BYTES}\t{interval.high_bytes // _KB_BYTES}")
        for access in ACCESSES:
            curve = next((c for c in analysis.curves if (c.access, c.interval) == (access, interval)), None)
            if curve is None:
                raise UserError(
                    f"--agios: no times of {access} in {interval}",
                    "AGIOS needs all four tests of every interval: profile with --allow-write",
                )
            line = curve.line
            rows.append(
                f"{line.slope_s_per_byte * _KB_BYTES * _NS_PER_S:.9g}\t{line.intercept_s * _NS_PER_S:.9g}"
            )
    return "\n".join(rows) + "\n"
