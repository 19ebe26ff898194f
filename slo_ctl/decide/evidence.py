"""What was measured of one VM, as exponentially forgotten sums.

Sums, not averages of ratios: a window with ten collected victims then weighs ten times less than one with a
hundred.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slo_ctl.model import VmSample

_BINDING_FROM = 0.96
"""A VM that reaches this share of its limit is held back by it (rate limiters are not exact)."""
_FREE_BELOW = 0.7
"""A VM that stays below this share of its limit hardly ever waits for it."""
_SATURATING_FROM = 0.9
"""A VM with requests waiting for this share of the time would take more IOPS if it could."""


def held_back(sample: VmSample) -> bool:
    """Whether the VM's rate limit, and not the device, sets its IOPS."""
    return sample.limit_iops is not None and sample.iops >= _BINDING_FROM * sample.limit_iops


def unlimited(sample: VmSample) -> bool:
    """Whether the VM hardly ever waited for its rate limit; neither this nor `held_back` in between."""
    return sample.limit_iops is None or sample.iops < _FREE_BELOW * sample.limit_iops


def saturating(backlog_share: float) -> bool:
    """Whether a VM would do more IOPS if it could, rather than running out of requests."""
    return backlog_share >= _SATURATING_FROM


@dataclass(frozen=True, slots=True)
class Evidence:
    """Sums over recent windows of one VM; pages, seconds and requests."""

    samples: float = 0.0
    victim_pages: float = 0.0
    victim_valid_pages: float = 0.0
    requests: float = 0.0
    """Requests of those windows whose time on the device is known."""
    host_page_writes: float = 0.0
    """Host page writes of the same windows."""
    host_page_reads: float = 0.0
    service_s: float = 0.0
    """Time those requests spent on the device, summed over requests."""
    free_s: float = 0.0
    """Time with requests outstanding and no limit holding them back."""
    free_service_s: float = 0.0
    """Of `service_s`, what fell into `free_s`."""

    def add(self, sample: VmSample, memory_samples: float) -> Evidence:
        """The evidence with one more window, older ones fading over `memory_samples` windows (at least 1)."""
        keep = 1.0 - 1.0 / memory_samples
        limited = held_back(sample)
        free = unlimited(sample)
        time_known = sample.outstanding is not None or not limited
        busy_s = sample.window_s * sample.backlog_share
        service_s = busy_s if sample.outstanding is None else sample.window_s * sample.outstanding
        return Evidence(
            samples=keep * self.samples + 1.0,
            victim_pages=keep * self.victim_pages + sample.victim_pages,
            victim_valid_pages=keep * self.victim_valid_pages + sample.victim_valid_pages,
            requests=keep * self.requests + (sample.requests if time_known else 0),
            host_page_writes=keep * self.host_page_writes + (sample.host_page_writes if time_known else 0),
            host_page_reads=keep * self.host_page_reads + (sample.host_page_reads if time_known else 0),
            service_s=keep * self.service_s + (service_s if time_known else 0.0),
            free_s=keep * self.free_s + (busy_s if free else 0.0),
            free_service_s=keep * self.free_service_s + (service_s if free else 0.0),
        )

    @property
    def u(self) -> float | None:
        """Utilization of the victim blocks; None when GC collected none."""
        return self.victim_valid_pages / self.victim_pages if self.victim_pages > 0 else None

    @property
    def tells_service_time(self) -> bool:
        """Whether the time per request is known."""
        return self.requests > 0 and self.service_s > 0

    @property
    def service_us(self) -> float:
        """Mean time of a request on the device, in microseconds."""
        return 1e6 * self.service_s / self.requests

    @property
    def outstanding(self) -> float | None:
        """Mean number of requests on the device while nothing held them back; None when that never was so."""
        return self.free_service_s / self.free_s if self.free_s > 0 and self.free_service_s > 0 else None
