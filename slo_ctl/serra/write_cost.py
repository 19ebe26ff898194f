"""Response times of writes to a target or an emulated drive: what the paper's figure 1 is drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from slo_ctl.decide.write_cost import WriteCost, fit_write_cost
from slo_ctl.errors import UserError
from slo_ctl.quantity import format_bytes_exact
from slo_ctl.serra.measurement import Order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from slo_ctl.replay.progress import ProgressSink

    Times = NDArray[np.float64]


LEAST_REQUESTS = 16
MOST_REQUESTS = 1 << 18
"""In a pass: each is timed, kept in memory and drawn."""


class TimedWriter(Protocol):
    """Something that writes the whole span and times each request."""

    def response_times_us(self, order: Order, request_bytes: int, number: int) -> Times:
        """Write every request of the span once, in that order; response times in that order."""


@dataclass(frozen=True, slots=True)
class TimedPass:
    """One pass over the span."""

    order: Order
    request_bytes: int
    response_us: Times


def measure(writer: TimedWriter, sizes_bytes: Sequence[int], progress: ProgressSink) -> list[TimedPass]:
    """A sequential and a random pass at each size, after a random one that is not kept."""
    phase = progress.phase("timing writes", 3 * len(sizes_bytes), "passes")
    passes = []
    for index, size in enumerate(sizes_bytes):
        orders = (Order.RANDOM, Order.SEQUENTIAL, Order.RANDOM)
        for number, order in enumerate(orders, 1 + len(orders) * index):
            times = writer.response_times_us(order, size, number)
            phase.advance(1)
            if number > 1 + len(orders) * index:
                passes.append(TimedPass(order, size, times))
    phase.done()
    return passes


def fit_passes(passes: Sequence[TimedPass]) -> WriteCost:
    """The model through both orders together: where each random write meets a merge, sequential ones still
    show the band. Raises UserError when nothing can be fitted."""
    sizes = sorted({each.request_bytes for each in passes})
    times = {
        size: np.concatenate([each.response_us for each in passes if each.request_bytes == size])
        for size in sizes
    }
    return fit_or_refuse(times)


def fit_or_refuse(times_us: dict[int, Times]) -> WriteCost:
    """Fit response times by request size. Raises UserError when they say nothing."""
    try:
        return fit_write_cost(times_us)
    except ValueError as error:
        sizes = ", ".join(format_bytes_exact(size) for size in times_us) or "none"
        raise UserError(
            f"no write cost can be fitted: {error}", f"sizes: {sizes}; choose others with --size"
        ) from None
