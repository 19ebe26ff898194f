"""Measurements of devices as JSON and text: profile, optimal write size, write cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from slo_ctl.base import numbers
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.base.text import printable
from slo_ctl.decide.write_size import Advice, advise
from slo_ctl.model.measurement import Access, Direction, Order
from slo_ctl.profile.store import age_text
from slo_ctl.profile.write_size import Finding, Outcome

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console

    from slo_ctl.decide.profile_fit import Analysis, Ratio, RatioSummary
    from slo_ctl.decide.write_size import Band, Estimate, WriteCost
    from slo_ctl.profile.store import Found, Profile
    from slo_ctl.profile.write_size import FoundWriteSize, SizeVerdict, WriteSizeRecord


FORMAT_VERSION = 1


def profile_json(profile: Profile, analysis: Analysis, found: Found | None = None) -> dict[str, Any]:
    """One JSON object; `measurement` has the raw measurements."""
    plain = profile.model_dump(mode="json")
    plain["format_version"] = FORMAT_VERSION
    plain["fit"] = analysis.fit.value
    plain["validity"] = None if found is None else {"age_s": found.age_s, "stale": found.stale or None}
    plain["curves"] = [
        {
            "access": str(curve.access),
            "interval": str(curve.interval),
            "low_bytes": curve.interval.low_bytes,
            "high_bytes": curve.interval.high_bytes,
            "slope_s_per_byte": curve.line.slope_s_per_byte,
            "intercept_s": curve.line.intercept_s,
            "points": curve.points,
            "measurements": curve.measurements,
            "misfit": None
            if curve.misfit is None
            else {"size_bytes": curve.misfit.size_bytes, "error": curve.misfit.error},
        }
        for curve in analysis.curves
    ]
    plain["ratios"] = {str(summary.direction): _summary_json(summary) for summary in analysis.summaries}
    return plain


def print_profile(
    console: Console,
    profile: Profile,
    analysis: Analysis,
    found: Found | None = None,
    every_size: bool = False,
) -> None:
    """Device, validity, ratios, and notes about the quality of the fit."""
    console.print(Text(printable(_profile_title(profile)), style="bold"))
    for line in _profile_circumstances(profile, found):
        console.print(Text(printable(line)))
    if not analysis.summaries:
        console.print(Text("not enough measurements: an interval needs two sizes", "yellow"))
        return
    console.print()
    console.print(_ratio_table(profile, analysis, every_size))
    console.print()
    for summary in analysis.summaries:
        console.print(Text(_summary_line(summary)))
    for note in _profile_notes(profile, analysis):
        console.print(Text(f"note: {printable(note)}", "yellow"))


def _ratio_table(profile: Profile, analysis: Analysis, every_size: bool) -> Table:
    """Access times and ratios: at the measured sizes, or at every one."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("SIZE", justify="right")
    for summary in analysis.summaries:
        name = summary.direction.value.upper()
        for heading in (f"SEQ {name}", f"RANDOM {name}", "RATIO", "90 %"):
            table.add_column(heading, justify="right")
    table.add_column("REPEATED", justify="right")
    measured = {row.size_bytes for row in profile.measurement}
    sizes = sorted({ratio.size_bytes for summary in analysis.summaries for ratio in summary.ratios})
    for size in sizes if every_size else [size for size in sizes if size in measured]:
        cells, repeated = [format_bytes_exact(size)], 0
        for summary in analysis.summaries:
            ratio = next((ratio for ratio in summary.ratios if ratio.size_bytes == size), None)
            cells += _ratio_cells(analysis, summary.direction, size, ratio)
            repeated = max(repeated, ratio.repetitions if ratio is not None else 0)
        table.add_row(*cells, str(repeated) if repeated else "estimated")
    return table


def _ratio_cells(analysis: Analysis, direction: Direction, size: int, ratio: Ratio | None) -> list[str]:
    times = [analysis.time_s(Access(order, direction), size) for order in (Order.SEQUENTIAL, Order.RANDOM)]
    if ratio is None:
        return [numbers.UNKNOWN] * 4
    between = (
        numbers.UNKNOWN if ratio.low is None or ratio.high is None else f"{ratio.low:.2f}-{ratio.high:.2f}"
    )
    return [
        *(numbers.latency(None if time is None else time * 1e6) for time in times),
        numbers.decimal(ratio.value),
        between,
    ]


def _profile_title(profile: Profile) -> str:
    identity = profile.identity
    firmware = f", firmware {identity.firmware}" if identity.firmware else ""
    return f"{identity.model}{firmware}, {identity.place}: sequential over random throughput"


def _profile_circumstances(profile: Profile, found: Found | None) -> list[str]:
    identity = profile.identity
    lines = [
        (
            f"target {profile.target}, {numbers.size(profile.span_bytes)} of it, "
            f"queue depth {profile.queue_depth}, {len(profile.measurement)} tests"
        ),
        f"kernel {identity.kernel}, scheduler {identity.scheduler or 'n/a'}",
    ]
    if found is not None:
        lines.append(f"measured {age_text(found.age_s)} ago: {found.stale or 'valid'}")
    if profile.stopped and not profile.complete:
        lines.append(f"PARTIAL: {profile.stopped}; run the command again to resume")
    return lines


def _summary_line(summary: RatioSummary) -> str:
    width = ""
    if summary.half_width is not None:
        # With two or three repetitions, Student's t can give thousands of percent.
        width = f" ± {summary.half_width:.1%}" if summary.half_width <= 1 else " (uncertain)"
    return (
        f"{summary.direction.value}: average {numbers.decimal(summary.average)}{width}, "
        f"minimum {numbers.decimal(summary.minimum)}, maximum {numbers.decimal(summary.maximum)} "
        f"over {len(summary.ratios)} sizes"
    )


def _profile_notes(profile: Profile, analysis: Analysis) -> list[str]:
    notes = [
        f"{curve.access}, {curve.interval}: poor linear fit; at "
        f"{format_bytes_exact(curve.misfit.size_bytes)} the error is "
        f"{numbers.signed_percent(curve.misfit.error)}: split the interval there"
        for curve in analysis.misfits
        if curve.misfit is not None
    ]
    notes += [
        f"{summary.direction.value}: {unknown} sizes have no positive estimate"
        for summary in analysis.summaries
        if (unknown := sum(ratio.value is None for ratio in summary.ratios))
    ]
    if not any(curve.checked for curve in analysis.curves):
        notes.append("two sizes per interval always fit: use --points 3 to check the fit")
    written = analysis.summary(Direction.WRITE) is not None
    if written and profile.identity.rotational is False and not profile.conditioning.steady:
        notes.append(
            "SSD writes get slower as the drive fills: use --precondition to measure the steady state"
        )
    return notes


def _summary_json(summary: RatioSummary) -> dict[str, Any]:
    return {
        "average": summary.average,
        "minimum": summary.minimum,
        "maximum": summary.maximum,
        "relative_half_width": summary.half_width,
        "sizes": [
            {
                "size_bytes": ratio.size_bytes,
                "ratio": ratio.value,
                "low": ratio.low,
                "high": ratio.high,
                "repetitions": ratio.repetitions,
            }
            for ratio in summary.ratios
        ],
    }


def _advice(finding: Finding) -> tuple[Advice, ...]:
    """Recommended settings when the result is confident; otherwise none, as they are hard to undo."""
    return advise(finding.block_bytes) if finding.block_bytes is not None and finding.sure else ()


def write_size_json(
    record: WriteSizeRecord, emulated: bool, found: FoundWriteSize | None = None
) -> dict[str, Any]:
    """One JSON object; `pair` has the raw measurements."""
    finding = record.finding()
    plain = record.model_dump(mode="json")
    plain["format_version"] = FORMAT_VERSION
    plain["emulated_in_virtual_time"] = emulated
    plain["validity"] = None if found is None else {"age_s": found.age_s, "stale": found.stale or None}
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
        console.print(_write_size_table(finding))
        console.print()
    for line in finding_lines(record, finding):
        console.print(Text(line))
    for each in _advice(finding):
        console.print(Text(f"{each.what}: {each.why}"))
        for command in each.commands:
            # Never wrapped: it is to be pasted.
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
        lines.append(f"measured {age_text(found.age_s)} ago: {found.stale or 'valid'}")
    return lines


def _write_size_table(finding: Finding) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("SIZE", "SEQUENTIAL", "RANDOM", "RATIO", "BETWEEN", "REPEATED"):
        table.add_column(heading, justify="right")
    table.add_column("RANDOM IS")
    for size in finding.sizes:
        high = f"{size.high:.2f}" if math.isfinite(size.high) and size.high < 1e4 else "?"
        table.add_row(
            format_bytes_exact(size.size_bytes),
            numbers.bandwidth(size.sequential_bytes_s),
            numbers.bandwidth(size.random_bytes_s),
            numbers.decimal(size.ratio),
            f"{size.low:.2f}-{high}",
            str(size.repetitions),
            size.closeness.value,
        )
    return table


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
