"""What a search found, as one JSON value and as text."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from slo_ctl.decide.logical_block_advice import Advice, advise
from slo_ctl.quantity import format_bytes_exact
from slo_ctl.serra.logical_block.record import FORMAT_VERSION
from slo_ctl.serra.logical_block.rule import Finding, Outcome
from slo_ctl.serra.stored import age_text
from slo_ctl.show import numbers
from slo_ctl.show.text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from slo_ctl.serra.logical_block.record import FoundLogicalBlock, LogicalBlockRecord
    from slo_ctl.serra.logical_block.rule import SizeVerdict


def advice_for(finding: Finding) -> tuple[Advice, ...]:
    """Settings where a logical block was found with confidence; none elsewhere: they are hard to undo."""
    return advise(finding.block_bytes) if finding.block_bytes is not None and finding.sure else ()


def report_json(
    record: LogicalBlockRecord, emulated: bool, found: FoundLogicalBlock | None = None
) -> dict[str, Any]:
    """What a search says, for programs; `pair` has what it was worked out from."""
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
    """The drive, the sizes, what was found, and what to set."""
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
    for line in told(record, finding):
        console.print(Text(line))
    for each in advice_for(finding):
        console.print(Text(f"{each.what}: {each.why}"))
        for command in each.commands:
            # Never wrapped: it is to be pasted.
            console.print(Text(f"  {command}", style="bold"), soft_wrap=True)


def told(record: LogicalBlockRecord, finding: Finding) -> list[str]:
    """What was found, in words."""
    sure = (
        f"with {100 * record.confidence:.4g} % confidence at each size"
        if finding.sure
        else "NOT with confidence, so no advice: measure again with --fresh when nobody else uses the device"
    )
    within = f"random writes are slower by no more than {numbers.percent(record.tolerance, 0)}"
    largest = format_bytes_exact(record.high_bytes)
    match finding.outcome:
        case Outcome.FOUND:
            worst = max(finding.sizes, key=lambda size: size.ratio)
            at = format_bytes_exact(worst.size_bytes)
            return [
                f"logical block: {format_bytes_exact(finding.block_bytes or 0)} ({within}, {sure})",
                f"smaller random writes are up to {worst.ratio:.3g} times slower than in sequence (at {at})",
            ]
        case Outcome.NONE_NEEDED:
            smallest = format_bytes_exact(record.low_bytes)
            return [f"logical block: none needed ({within} from {smallest} on, {sure}): nothing to set"]
        case Outcome.NOT_REACHED:
            return [f"logical block: not reached; random writes of {largest} still are slower ({sure})"]
        case Outcome.UNFINISHED:
            return ["logical block: not known yet; the same command again goes on"]


def _circumstances(record: LogicalBlockRecord, found: FoundLogicalBlock | None) -> list[str]:
    lines = [
        (
            f"target {record.target}, {numbers.size(record.span_bytes)} written by each pass, queue depth "
            f"{record.queue_depth}, {numbers.size(record.written_bytes)} in all"
        )
    ]
    if record.identity.kernel:
        lines.append(
            f"kernel {record.identity.kernel}, scheduler {record.identity.scheduler or 'none there'}"
        )
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
