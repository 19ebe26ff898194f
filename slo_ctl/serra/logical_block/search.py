"""Measuring until the logical block is found: pair by pair, kept at once, ended by rule or interruption."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from slo_ctl.quantity import format_bytes_exact
from slo_ctl.serra.logical_block.rule import Pair, next_size
from slo_ctl.serra.measurement import Order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slo_ctl.replay.progress import ProgressSink
    from slo_ctl.serra.logical_block.rule import Rule

_FIRST_WARM_UP = (Order.RANDOM, Order.SEQUENTIAL, Order.RANDOM)
_WARM_UP = (Order.RANDOM,)


class PassWriter(Protocol):
    """Something that writes the whole span."""

    def write_pass(self, order: Order, request_bytes: int, number: int) -> float:
        """Write every request of the span once, in that order; returns the throughput in bytes/s.

        `number` tells passes apart: no two random ones come in the same order.
        """


@dataclass(slots=True)
class Search:
    """What came of it."""

    pairs: list[Pair] = field(default_factory=list)
    """Those of before, and the new ones behind them."""
    passes: int = 0
    """Over the span, those that are not measured included."""
    interrupted: bool = False


def passes_at_most(sizes: int, rule: Rule) -> int:
    """The most passes over the span that a search makes."""
    return len(_FIRST_WARM_UP) + (sizes - 1) * len(_WARM_UP) + 2 * sizes * rule.max_repetitions


def search(
    writer: PassWriter,
    sizes_bytes: Sequence[int],
    rule: Rule,
    before: Sequence[Pair],
    progress: ProgressSink,
    keep: Callable[[Search], None],
) -> Search:
    """Measure pair after pair until nothing is left to find; `keep` gets what there is after each.

    Before the first pair of a size the span is written at random at that size without being measured, and at
    the first size once more both ways: each measured pass then writes over what the other order left. A drive
    mapped by page has the same to collect after both (without that, a first sequential pass looks up to 29 %
    faster), and log blocks that smaller writes had filled are merged. KeyboardInterrupt ends the search with
    what was measured; other exceptions pass.
    """
    found = Search(list(before))
    last: int | None = None
    phase = None
    try:
        while (size := next_size(found.pairs, sizes_bytes, rule)) is not None:
            if size != last:
                if phase is not None:
                    phase.done()
                warm_up = _FIRST_WARM_UP if last is None else _WARM_UP
                phase = progress.phase(
                    f"writes of {format_bytes_exact(size)}",
                    len(warm_up) + 2 * rule.max_repetitions,
                    "passes",
                )
                for order in warm_up:
                    _write(writer, order, size, found)
                    phase.advance(1)
                last = size
            sequential = _write(writer, Order.SEQUENTIAL, size, found)
            random = _write(writer, Order.RANDOM, size, found)
            found.pairs.append(Pair(size, sequential, random))
            keep(found)
            if phase is not None:
                phase.advance(2)
    except KeyboardInterrupt:
        found.interrupted = True
    finally:
        if phase is not None:
            phase.done()
        keep(found)
    return found


def _write(writer: PassWriter, order: Order, size: int, found: Search) -> float:
    found.passes += 1
    return writer.write_pass(order, size, found.passes)
