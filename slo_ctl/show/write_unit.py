"""The optimal write size of a drive as JSON and as text."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from slo_ctl.base import numbers
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.base.text import printable
from slo_ctl.decide.write_unit import Advice, advise
from slo_ctl.profile.store import age_text
from slo_ctl.profile.write_unit import FORMAT_VERSION, Finding, Outcome

if TYPE_CHECKING:
    from rich.console import Console

    from slo_ctl.profile.write_unit import FoundLogicalBlock, LogicalBlockRecord, SizeVerdict


def advice_for(finding: Finding) -> tuple[Advice, ...]:
    """Recommended settings when the result is confident; otherwise none, as they are hard to undo."""
    return advise(finding.block_bytes) if finding.block_bytes is not None and finding.sure else ()


def report_json(
    record: LogicalBlockRecord, emulated: bool, found: FoundLogicalBlock | None = None
) -> dict[str, Any]:
    """One JSON object; `pair` has the raw measurements."""
    finding = record.finding()
    plain = record.model_dump(mode="json")
    plain["format_version"] = FORMAT_VERSION
    plain["emulated_in_virtual_time"] = emulated
    plain["validity"] = None if found is None else {"age_s": found.age_s, "stale": found.stale or None}
    plain["outcome"] = finding.outcome.value
    plain["logical_block_bytes"] = finding.block_bytes
    plain["sure"] = finding.sure
    plain["sizes"] = [_size_json(size) for size in finding.sizes]
    plain["advice"] = [asdict(each) for each in advice_for(finding)]
    return plain


def print_report(
    console: Console, record: LogicalBlockRecord, emulated: bool, found: FoundLogicalBlock | None = None
) -> None:
    """The drive, the sizes, the result and recommended settings."""
    finding = record.finding()
    identity = record.identity
    title = identity.place if emulated else f"{identity.model}, {identity.place}"
    console.print(
        Text(printable(f"{'EMULATED, virtual time: ' if emulated else ''}{title}"), style="bold"),
        soft_wrap=True,
    )
    for line in _circumstances(record, found):
        console.print(Text(printable(line)))
    if finding.sizes:
        console.print()
        console.print(_table(finding))
        console.print()
    for line in finding_lines(record, finding):
        console.print(Text(line))
    for each in advice_for(finding):
        console.print(Text(f"{each.what}: {each.why}"))
        for command in each.commands:
            # Never wrapped: it is to be pasted.
            console.print(Text(f"  {command}", style="bold"), soft_wrap=True)


def finding_lines(record: LogicalBlockRecord, finding: Finding) -> list[str]:
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


def _circumstances(record: LogicalBlockRecord, found: FoundLogicalBlock | None) -> list[str]:
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


def _table(finding: Finding) -> Table:
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


def _size_json(size: SizeVerdict) -> dict[str, Any]:
    plain = asdict(size)
    plain["closeness"] = size.closeness.value
    plain["high"] = size.high if math.isfinite(size.high) else None
    return plain
