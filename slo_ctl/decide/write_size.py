"""Advice from a drive's optimal write size for volumes, images and file systems: lines to paste. Pure.

Writes of the optimal size, a "logical block" in the paper, cost no merge (C. Hyun et al., section III):
data should be allocated in units of it, aligned to its multiples, and freed whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times = NDArray[np.floating[Any]]

KIB = 1 << 10
MIB = 1 << 20
_FS_BLOCK_BYTES = 4 * KIB
LEAST_CHUNK_BYTES = 64 * KIB
QCOW2_MAX_CLUSTER_BYTES = 2 * MIB
QCOW2_DEFAULT_CLUSTER_BYTES = 64 * KIB
_XFS_MAX_LOG_UNIT_BYTES = 256 * KIB
_MOST_ZEROED_CHUNK_BYTES = 512 * KIB


@dataclass(frozen=True, slots=True)
class Advice:
    """A setting to paste."""

    what: str
    """Where it is set: `LVM`, `LVM-thin`, `qcow2`, `ext4`, `XFS`, `discard`."""
    commands: tuple[str, ...]
    """Lines to paste; words in capitals are yours."""
    why: str
    source: str
    """Where the setting and its bounds are documented."""


def advise(block_bytes: int) -> tuple[Advice, ...]:
    """Settings for a drive with this optimal write size. ValueError unless it is a power of two of at
    least 8 KiB."""
    if block_bytes < 2 * _FS_BLOCK_BYTES or block_bytes & (block_bytes - 1):
        raise ValueError(
            f"{block_bytes} bytes are not a valid optimal write size: a power of two from 8 KiB on"
        )
    return (
        _alignment(block_bytes),
        _thin(block_bytes),
        _qcow2(block_bytes),
        _ext4(block_bytes),
        _xfs(block_bytes),
        _discard(block_bytes),
    )


def _alignment(block_bytes: int) -> Advice:
    return Advice(
        "LVM",
        (f"pvcreate --dataalignment {block_bytes // KIB}k /dev/DEVICE",),
        "volumes begin at a multiple of the optimal write size; so must partitions",
        "pvcreate(8)",
    )


def _thin(block_bytes: int) -> Advice:
    chunk = max(block_bytes, LEAST_CHUNK_BYTES)
    zero = "" if chunk <= _MOST_ZEROED_CHUNK_BYTES else " --zero n"
    why = "a chunk of the pool is one optimal write"
    if chunk > block_bytes:
        why = f"the smallest chunk there is; it holds {chunk // block_bytes} optimal writes"
    if zero:
        why += (
            "; --zero n, as whole chunks would be zeroed at the first write. A VM can then read what another "
            "one left: leave it out if VMs do not trust each other"
        )
    return Advice(
        "LVM-thin",
        (f"lvcreate --type thin-pool --chunksize {chunk // KIB}k{zero} --size SIZE --name POOL VG",),
        why,
        "lvmthin(7): chunks of 64 KiB to 1 GiB, multiples of 64 KiB",
    )


def _qcow2(block_bytes: int) -> Advice:
    cluster = min(max(block_bytes, QCOW2_DEFAULT_CLUSTER_BYTES), QCOW2_MAX_CLUSTER_BYTES)
    if block_bytes > QCOW2_MAX_CLUSTER_BYTES:
        why = (
            f"2 MiB is qcow2's maximum: {block_bytes // cluster} clusters make a write of "
            f"{block_bytes // MIB} MiB, so a raw image on LVM-thin suits this drive better"
        )
    elif block_bytes < QCOW2_DEFAULT_CLUSTER_BYTES:
        why = "qcow2's default holds whole optimal writes"
    else:
        why = "a cluster is one optimal write"
    return Advice(
        "qcow2",
        (f"qemu-img create -f qcow2 -o cluster_size={cluster // KIB}k IMAGE.qcow2 SIZE",),
        why,
        "qemu-img(1): cluster_size is a power of two from 512 bytes to 2 MiB",
    )


def _ext4(block_bytes: int) -> Advice:
    stripe = block_bytes // _FS_BLOCK_BYTES
    return Advice(
        "ext4",
        (f"mkfs.ext4 -b {_FS_BLOCK_BYTES} -E stride={stripe},stripe_width={stripe} /dev/VOLUME",),
        "large allocations begin at multiples of it and fill it; counted in file-system blocks",
        "mke2fs(8)",
    )


def _xfs(block_bytes: int) -> Advice:
    unit = block_bytes // KIB
    log = " -l su=32k" if block_bytes > _XFS_MAX_LOG_UNIT_BYTES else ""
    why = "allocations are aligned to the optimal write size, files in DIR grow by it"
    if log:
        why += "; the log's own unit is at most 256 KiB"
    return Advice(
        "XFS",
        (
            f"mkfs.xfs -d su={unit}k,sw=1{log} /dev/VOLUME",
            f"xfs_io -c 'extsize {unit}k' DIR",
        ),
        why,
        "mkfs.xfs(8), xfs_io(8)",
    )


def _discard(block_bytes: int) -> Advice:
    return Advice(
        "discard",
        (
            f"fstrim --minimum {block_bytes // KIB}k MOUNTPOINT",
            f"-device scsi-hd,discard_granularity={block_bytes},...",
        ),
        "as much is freed at once, or the rest is copied by the next merge; the first line on the "
        "host, the second for a VM's disk (QEMU)",
        "fstrim(8), qemu-system-x86_64 -device scsi-hd,help",
    )


# What a write costs on a drive that merges: T(n) = T_merge + n S/B, from measured response times.
#
# C. Hyun et al., "A Performance Model and File System Space Allocation Scheme for SSDs", section III: most
# response times of one request size lie in a *band*, what a write takes by itself; above it are *spikes*,
# writes that waited for a merge. In the paper n sectors of S bytes are written at bandwidth B with the
# overhead of one merge. Here the same with what every request costs whatever its size counted apart:
#
#     band of requests of x bytes    t_0 + x / B
#     a request that meets a merge   t_0 + x / B + T_merge
#     on average                     t_0 + x / B + (spikes per request) T_merge
#
# The band is the lowest cluster of response times, not the most frequent value: where hardly any two writes
# share a log block, almost all of them meet a merge. A size whose every request meets one has no band of its
# own to be seen: `SizeFit.residual_us` of that size then stands out.

_SEED_WIDTH = 0.10
"""Response times that differ by less may be one cluster."""
_SEED_SHARE = 0.03
"""Of the requests of one size: the fewest in the window with which the band begins."""
_BAND_SIGMAS = 4.0
_LEAST_BAND_WIDTH = 0.10
"""Half the width of the band at least, relative to its centre: clocks and queues jitter."""
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
    """Response times of one request size, parted."""

    centre_us: float
    sigma_us: float
    """Spread, from the lower half of the band: spikes do not reach it."""
    limit_us: float
    """Longer times are a spike."""
    requests: int
    spikes: int


@dataclass(frozen=True, slots=True)
class SizeFit:
    """One request size beside the model."""

    request_bytes: int
    band: Band
    residual_us: float
    """Centre of the band less what the model says."""
    mean_spike_us: float | None
    """Mean height of the spikes above the centre."""


@dataclass(frozen=True, slots=True)
class WriteCost:
    """The fitted model."""

    merge_us: Estimate | None
    """T_merge, the mean height of the spikes above their band; None without spikes."""
    bandwidth_bytes_s: Estimate
    """B. From one request size it is that size over its band, t_0 being unknown then."""
    fixed_us: Estimate
    """t_0."""
    spikes_per_request: float
    confidence: float
    sizes: tuple[SizeFit, ...]
    """Sizes in ascending order."""

    def band_us(self, request_bytes: float) -> float:
        """Response time of a request that meets no merge."""
        return self.fixed_us.value + 1e6 * request_bytes / self.bandwidth_bytes_s.value

    def mean_us(self, request_bytes: float) -> float:
        """Mean response time, with spikes as frequent as over all that was measured."""
        merge_us = self.merge_us.value if self.merge_us else 0.0
        return self.band_us(request_bytes) + self.spikes_per_request * merge_us


def find_band(response_us: Times) -> Band:
    """Part the response times of requests of one size. ValueError unless there are eight, all positive."""
    times = np.sort(np.asarray(response_us, dtype=np.float64))
    if len(times) < _LEAST_REQUESTS:
        raise ValueError(f"{len(times)} response times; at least {_LEAST_REQUESTS} are needed")
    if not (np.isfinite(times).all() and times[0] > 0.0):
        raise ValueError("response times must be positive and finite")
    centre = _lowest_cluster(times)
    # The upper half may hold low spikes. Mirror the lower one.
    lower = centre - times[times <= centre]
    sigma = _MAD_TO_SIGMA * float(np.median(lower)) if len(lower) else 0.0
    limit = centre + max(_BAND_SIGMAS * sigma, _LEAST_BAND_WIDTH * centre)
    return Band(centre, sigma, limit, len(times), int((times > limit).sum()))


def _lowest_cluster(times: Times) -> float:
    """Median of the lowest cluster of ascending times: from the lowest window that is filled, uphill."""
    ends = np.searchsorted(times, times * (1.0 + _SEED_WIDTH), side="right")
    counts = ends - np.arange(len(times))
    enough = max(3, math.ceil(_SEED_SHARE * len(times)))
    start = int(np.argmax(counts >= enough))
    # Climb while the window that begins a little later holds more: to the densest part of this cluster.
    while True:
        ahead = counts[start : ends[start]]
        best = start + int(np.argmax(ahead))
        if counts[best] <= counts[start]:
            return float(np.median(times[start : ends[start]]))
        start = best


def fit_write_cost(response_us: Mapping[int, Times], confidence: float = 0.95) -> WriteCost:
    """Fit the model to response times in microseconds by request size in bytes.

    ValueError for no sizes, for a size with fewer than eight requests, and where larger requests are not
    slower, so that there is no bandwidth.
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

    Each centre weighs by its standard error, which is not taken to be less than a thousandth of it: no drive
    is so exactly linear. Errors grow with the misfit, if that is more than the centres' own errors explain.
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
