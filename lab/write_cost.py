"""The cost of a write on a drive that merges: T(n) = T_merge + n S/B, from response times of writes to a
target, to an emulated drive or in a trace."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from slo_ctl.base.errors import UserError
from slo_ctl.base.progress import ProgressSink
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.model.measurement import Order
from traces.batch import Op
from traces.formats.registry import FORMATS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from traces.reader import TraceReader

    Times = NDArray[np.floating[Any]]

# The model.
#
# C. Hyun et al., "A Performance Model and File System Space Allocation Scheme for SSDs", section III: most
# response times of one request size lie in a *band*, the time of a write itself; above it are *spikes*,
# writes that waited for a merge. In the paper n sectors of S bytes are written at bandwidth B with the
# overhead of one merge. Here a fixed cost of every request is added:
#
#     band of requests of x bytes    t_0 + x / B
#     a request that meets a merge   t_0 + x / B + T_merge
#     on average                     t_0 + x / B + (spikes per request) T_merge
#
# The band is the lowest cluster of response times, not the most frequent value: if hardly any two writes
# share a log block, almost all of them meet a merge. A size whose requests all meet one has no visible band:
# `SizeFit.residual_us` of that size is then conspicuous.

_SEED_WIDTH = 0.10
"""Response times that differ by less may belong to one cluster."""
_SEED_SHARE = 0.03
"""Share of the requests of one size: the minimum in the window at which the band begins."""
_BAND_SIGMAS = 4.0
_LEAST_BAND_WIDTH = 0.10
"""Minimum half width of the band, relative to its centre: clocks and queues have jitter."""
_MAD_TO_SIGMA = 1.4826
_MEDIAN_ERROR = math.sqrt(math.pi / 2.0)
"""Standard error of a median over that of a mean, for normal deviations."""
_LEAST_REQUESTS = 8


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with the bounds of its confidence interval; infinite bounds where nothing bounds it."""

    value: float
    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Band:
    """Response times of one request size, divided into band and spikes."""

    centre_us: float
    sigma_us: float
    """Spread, from the lower half of the band, which contains no spikes."""
    limit_us: float
    """Longer times are spikes."""
    requests: int
    spikes: int


@dataclass(frozen=True, slots=True)
class SizeFit:
    """One request size compared with the model."""

    request_bytes: int
    band: Band
    residual_us: float
    """Centre of the band minus the model's value."""
    mean_spike_us: float | None
    """Mean height of the spikes above the centre."""


@dataclass(frozen=True, slots=True)
class WriteCost:
    """The fitted model."""

    merge_us: Estimate | None
    """T_merge, the mean height of the spikes above their band; None without spikes."""
    bandwidth_bytes_s: Estimate
    """B. With a single request size it is that size over its band, as t_0 is then unknown."""
    fixed_us: Estimate
    """t_0."""
    spikes_per_request: float
    confidence: float
    sizes: tuple[SizeFit, ...]
    """Sizes in ascending order."""

    def band_us(self, request_bytes: float) -> float:
        """Response time of a request that meets no merge."""
        return self.fixed_us.value + 1e6 * request_bytes / self.bandwidth_bytes_s.value


def find_band(response_us: Times) -> Band:
    """Divide the response times of requests of one size. ValueError unless there are eight, all positive."""
    times = np.sort(np.asarray(response_us, dtype=np.float64))
    if len(times) < _LEAST_REQUESTS:
        raise ValueError(f"{len(times)} response times; at least {_LEAST_REQUESTS} are needed")
    if not (np.isfinite(times).all() and times[0] > 0.0):
        raise ValueError("response times must be positive and finite")
    centre = _lowest_cluster(times)
    # The upper half may contain low spikes, so mirror the lower one.
    lower = centre - times[times <= centre]
    sigma = _MAD_TO_SIGMA * float(np.median(lower)) if len(lower) else 0.0
    limit = centre + max(_BAND_SIGMAS * sigma, _LEAST_BAND_WIDTH * centre)
    return Band(centre, sigma, limit, len(times), int((times > limit).sum()))


def _lowest_cluster(times: Times) -> float:
    """Median of the lowest cluster of ascending times: from the lowest filled window to the densest one."""
    ends = np.searchsorted(times, times * (1.0 + _SEED_WIDTH), side="right")
    counts = ends - np.arange(len(times))
    enough = max(3, math.ceil(_SEED_SHARE * len(times)))
    start = int(np.argmax(counts >= enough))
    # Move on while the window that begins a little later has more times: to the densest part of this cluster.
    while True:
        ahead = counts[start : ends[start]]
        best = start + int(np.argmax(ahead))
        if counts[best] <= counts[start]:
            return float(np.median(times[start : ends[start]]))
        start = best


def fit_write_cost(response_us: Mapping[int, Times], confidence: float = 0.95) -> WriteCost:
    """Fit the model to response times in microseconds by request size in bytes.

    ValueError for no sizes, for a size with fewer than eight requests, and if larger requests are not slower,
    so that there is no bandwidth.
    """
    if not response_us or any(size <= 0 for size in response_us):
        raise ValueError("request sizes must be positive, and there must be one")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"a confidence lies between 0 and 1, not {confidence}")
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    sizes = sorted(response_us)
    bands = [find_band(response_us[size]) for size in sizes]
    fixed_us, us_per_byte = _fit_bands(sizes, bands, z)
    heights = [_spike_heights(response_us[s], band) for s, band in zip(sizes, bands, strict=True)]
    fits = tuple(
        SizeFit(
            request_bytes=size,
            band=band,
            residual_us=band.centre_us - fixed_us.value - us_per_byte.value * size,
            mean_spike_us=float(height.mean()) if len(height) else None,
        )
        for size, band, height in zip(sizes, bands, heights, strict=True)
    )
    spikes, requests = sum(b.spikes for b in bands), sum(b.requests for b in bands)
    return WriteCost(
        merge_us=_mean(np.concatenate(heights), z) if spikes else None,
        bandwidth_bytes_s=Estimate(
            1e6 / us_per_byte.value,
            1e6 / us_per_byte.high,
            1e6 / us_per_byte.low if us_per_byte.low > 0.0 else math.inf,
        ),
        fixed_us=fixed_us,
        spikes_per_request=spikes / requests,
        confidence=confidence,
        sizes=fits,
    )


def _spike_heights(response_us: Times, band: Band) -> Times:
    times = np.asarray(response_us, dtype=np.float64)
    return times[times > band.limit_us] - band.centre_us


def _mean(values: Times, z: float) -> Estimate:
    mean = float(values.mean())
    if len(values) < 2:
        return Estimate(mean, -math.inf, math.inf)
    margin = z * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Estimate(mean, mean - margin, mean + margin)


def _fit_bands(sizes: list[int], bands: list[Band], z: float) -> tuple[Estimate, Estimate]:
    """t_0 and microseconds per byte: weighted least squares through the centres of the bands.

    Each centre is weighted by its standard error, of at least a thousandth of it: no drive is more linear
    than that. Errors grow with the misfit, if that exceeds what the centres' own errors explain.
    """
    x = np.array(sizes, dtype=np.float64)
    y = np.array([band.centre_us for band in bands])
    if len(sizes) == 1:
        slope = float(y[0] / x[0])
        margin = z * _centre_error_us(bands[0]) / float(x[0])
        return Estimate(0.0, 0.0, float(y[0])), Estimate(slope, slope - margin, slope + margin)
    errors = np.array([max(_centre_error_us(band), 1e-3 * band.centre_us) for band in bands])
    weight = errors**-2.0
    mean_x, mean_y = np.average(x, weights=weight), np.average(y, weights=weight)
    spread = float((weight * (x - mean_x) ** 2).sum())
    slope = float((weight * (x - mean_x) * (y - mean_y)).sum()) / spread
    if slope <= 0.0:
        raise ValueError("larger requests are not slower: no bandwidth can be determined")
    intercept = float(mean_y - slope * mean_x)
    degrees = len(sizes) - 2
    chi2 = float((weight * (y - intercept - slope * x) ** 2).sum())
    scale = math.sqrt(max(1.0, chi2 / degrees)) if degrees else 1.0
    slope_margin = z * scale / math.sqrt(spread)
    intercept_margin = z * scale * math.sqrt(1.0 / float(weight.sum()) + float(mean_x) ** 2 / spread)
    return (
        Estimate(intercept, intercept - intercept_margin, intercept + intercept_margin),
        Estimate(slope, slope - slope_margin, slope + slope_margin),
    )


def _centre_error_us(band: Band) -> float:
    return _MEDIAN_ERROR * band.sigma_us / math.sqrt(max(1, band.requests - band.spikes))


# Response times of writes from a trace, by request size.

LEAST_REQUESTS = 100
"""Minimum of requests of a size: with fewer, neither band nor spikes can be determined."""
MOST_SIZES = 6
_SHOWN_VOLUMES = 20
MOST_REQUESTS = 1 << 20
"""Maximum kept of each size: the first ones."""


def require_responses(reader: TraceReader) -> None:
    """Raise UserError for a format without response times."""
    if not reader.has_responses:
        having = ", ".join(name for name, row in FORMATS.items() if row.has_responses)
        raise UserError(
            f"{reader.path}: {reader.format} traces have no response times",
            f"formats that do: {having}",
        )


def collect(reader: TraceReader, wanted: str | None, sizes_bytes: Sequence[int]) -> dict[int, Times]:
    """Response times in us, in trace order, of writes of these sizes (default: the most frequent ones).

    `wanted` selects one volume. Raises UserError if too few writes have a response time.
    """
    kept: dict[int, list[Times]] = defaultdict(list)
    counts: dict[int, int] = defaultdict(int)
    noted = False
    for batch in reader:
        if batch.response_ns is None:
            continue
        noted = True
        chosen = (batch.op == Op.WRITE) & (batch.response_ns > 0)
        if wanted is not None:
            index = reader.volumes.index(wanted) if wanted in reader.volumes else -1
            chosen &= batch.volume == index
        lengths, times = batch.length_bytes[chosen], batch.response_ns[chosen] / 1e3
        for size in np.unique(lengths).tolist():
            if sizes_bytes and size not in sizes_bytes:
                continue
            own = times[lengths == size][: MOST_REQUESTS - min(counts[size], MOST_REQUESTS)]
            if len(own):
                kept[size].append(own)
                counts[size] += len(own)
    if not noted:
        raise UserError(
            f"{reader.path}: this {reader.format} trace has no response times",
            "vscsi traces do from version 2 on",
        )
    if wanted is not None and wanted not in reader.volumes:
        there = ", ".join(reader.volumes[:_SHOWN_VOLUMES])
        raise UserError(f"--volume: volume '{wanted}' not found", f"the trace has {there}")
    return _chosen(kept, counts, sizes_bytes)


def _chosen(
    kept: dict[int, list[Times]], counts: dict[int, int], sizes_bytes: Sequence[int]
) -> dict[int, Times]:
    frequent = sorted((size for size in counts if counts[size] >= LEAST_REQUESTS), key=lambda s: -counts[s])
    few = [size for size in sizes_bytes if size not in frequent]
    if few or not frequent:
        what = f"writes of {few[0]} bytes" if few else "writes of any one size"
        raise UserError(
            f"fewer than {LEAST_REQUESTS} {what} with a response time are in the trace",
            "`slo-ctl trace info` says what is in it",
        )
    sizes = sorted(frequent if sizes_bytes else frequent[:MOST_SIZES])
    return {size: np.concatenate(kept[size]) for size in sizes}


MIN_SIZE_REQUESTS = 16
MAX_SIZE_REQUESTS = 1 << 18
"""Maximum requests in a pass: each is timed, kept in memory and plotted."""


class TimedWriter(Protocol):
    """Writes the whole span and times each request."""

    def response_times_us(self, order: Order, request_bytes: int, number: int) -> Times:
        """Write every request of the span once, in that order; returns response times in that order."""


@dataclass(frozen=True, slots=True)
class TimedPass:
    """One pass over the span."""

    order: Order
    request_bytes: int
    response_us: Times


def measure(writer: TimedWriter, sizes_bytes: Sequence[int], progress: ProgressSink) -> list[TimedPass]:
    """Measure a sequential and a random pass at each size, after a random one that is discarded."""
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
    """Fit the model to both orders together: if each random write meets a merge, sequential ones still show
    the band. Raises UserError if nothing can be fitted."""
    sizes = sorted({each.request_bytes for each in passes})
    times = {
        size: np.concatenate([each.response_us for each in passes if each.request_bytes == size])
        for size in sizes
    }
    return fit_or_refuse(times)


def fit_or_refuse(times_us: dict[int, Times]) -> WriteCost:
    """Fit response times by request size. Raises UserError if they cannot be fitted."""
    try:
        return fit_write_cost(times_us)
    except ValueError as error:
        sizes = ", ".join(format_bytes_exact(size) for size in times_us) or "none"
        raise UserError(
            f"no write cost can be fitted: {error}", f"sizes: {sizes}; choose others with --size"
        ) from None
