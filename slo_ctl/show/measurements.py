"""The profile of a device as JSON and text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from slo_ctl.base import numbers
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.base.text import printable
from slo_ctl.model.measurement import Direction, accesses_of
from slo_ctl.show.terminal import empty_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from slo_ctl.decide.profile_fit import Analysis, Ratio, RatioSummary
    from slo_ctl.profile.store import Found, Profile


def profile_json(profile: Profile, analysis: Analysis, found: Found | None) -> dict[str, Any]:
    """One JSON object; `measurement` has the raw measurements."""
    plain = profile.model_dump(mode="json")
    plain["fit"] = analysis.fit.value
    plain["validity"] = None if found is None else found.plain()
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
    found: Found | None,
    every_size: bool,
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
    """Access times and ratios of the measured sizes, or of every size."""
    table = empty_table()
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
    times = [analysis.time_s(access, size) for access in accesses_of((direction,))]
    if ratio is None:
        return [numbers.UNKNOWN] * 4
    interval = (
        numbers.UNKNOWN if ratio.low is None or ratio.high is None else f"{ratio.low:.2f}-{ratio.high:.2f}"
    )
    return [
        *(numbers.latency(None if time is None else time * 1e6) for time in times),
        numbers.decimal(ratio.value),
        interval,
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
        lines.append(f"measured {found}")
    if profile.partial:
        lines.append(f"PARTIAL: {profile.partial}; run the command again to resume")
    return lines


def _summary_line(summary: RatioSummary) -> str:
    width = ""
    if summary.half_width is not None:
        # With two or three repetitions, Student's t distribution can give thousands of percent.
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
