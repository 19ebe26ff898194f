"""The fitted write cost as lines and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slo_ctl.base import numbers
from slo_ctl.base.quantity import format_bytes_exact

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from slo_ctl.decide.write_unit import Band, Estimate, WriteCost


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
