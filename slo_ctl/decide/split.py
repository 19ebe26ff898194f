"""The OPS split with the fewest GC writes for given write rates.

The total is convex in the split, so at the optimum one more block saves the same number of GC writes per
second everywhere, except at tenants that already stand at their minimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slo_ctl.decide.curve import GcCurve


@dataclass(frozen=True, slots=True)
class Writer:
    """One tenant: how its u depends on OPS, and host page writes in any unit common to all tenants."""

    curve: GcCurve
    write_rate: float
    min_ops_blocks: float = 0.0


def best_split(writers: Sequence[Writer], total_ops_blocks: float) -> list[float]:
    """Fractional OPS blocks per tenant, adding up to the total, with the least write_rate x gc_write_ratio.

    Raises ValueError when the minimums exceed the total.
    """
    missing = sum(w.min_ops_blocks for w in writers) - total_ops_blocks
    if missing > 0:
        raise ValueError(f"the minimums exceed the {total_ops_blocks} OPS blocks by {missing:g}")

    def split(price: float) -> list[float]:
        return [max(w.min_ops_blocks, w.curve.ops_at(_u_at_price(w, price))) for w in writers]

    # The price (GC writes saved per block) sums the demand to the total; it spans decades, so bisect its log.
    low, high = -100.0, 100.0
    for _ in range(45):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if sum(split(2.0**middle)) > total_ops_blocks else (low, middle)
    blocks = split(2.0**high)
    # Left over only where nobody has anything left to save: then in proportion.
    rest = total_ops_blocks - sum(blocks)
    weight = sum(w.curve.live_blocks for w in writers)
    return [b + rest * w.curve.live_blocks / weight for b, w in zip(blocks, writers, strict=True)]


def _u_at_price(writer: Writer, price: float) -> float:
    """The u at which one more block saves `price` GC writes; savings grow with u, so bisect."""
    low, high = 0.0, 1.0 - 1e-9
    for _ in range(32):
        middle = 0.5 * (low + high)
        saved = writer.write_rate * writer.curve.gc_writes_saved(middle)
        low, high = (low, middle) if saved > price else (middle, high)
    return high
