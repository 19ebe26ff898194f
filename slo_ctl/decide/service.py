"""Request service time of one VM, and with the GC curve the VM's IOPS as a function of its OPS.

Equation 1 of FAST'15 knows single-page writes only. A real request may read, may write many pages, and may
wait for other VMs; its mean service time s = outstanding / IOPS is measured instead, and split into a part
that OPS can change and one that it cannot:

    s = base + gc_scale x writes_per_request x t_gc(u)

gc_scale is 1 unless the dies work on a VM's GC in parallel, so that not all of t_gc is waited for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slo_ctl.decide import iops as eq1
from slo_ctl.decide.curve import GcCurve

if TYPE_CHECKING:
    from slo_ctl.decide.evidence import Evidence
    from slo_ctl.model import FlashTiming, VmSample

_US_PER_S = 1e6


@dataclass(frozen=True, slots=True)
class ServiceModel:
    """Service time per request, in microseconds, as a function of u."""

    timing: FlashTiming
    base_us: float
    writes_per_request: float = 1.0
    outstanding: float = 1.0
    gc_scale: float = 1.0
    reads_per_request: float = 0.0

    @classmethod
    def prior(cls, timing: FlashTiming) -> ServiceModel:
        """One outstanding single-page write: equation 1 itself. Needs a clock (not `TimingModel.NONE`)."""
        return cls(timing, timing.transfer_us + timing.program_us)

    def fit(self, evidence: Evidence, u: float) -> ServiceModel:
        """The model that reproduces the measured service time at the measured utilization `u`."""
        writes_per_request = evidence.host_page_writes / evidence.requests
        service_us = evidence.service_us
        gc_us = writes_per_request * eq1.gc_time_us(self.timing, u)
        # A request that writes cannot be faster than one program; more GC than the rest of s ran in parallel.
        program_us = min(1.0, writes_per_request) * (self.timing.transfer_us + self.timing.program_us)
        base_us = max(service_us - gc_us, min(program_us, 0.5 * service_us))
        gc_scale = (service_us - base_us) / gc_us if gc_us > 0.0 else 1.0
        outstanding = evidence.outstanding or self.outstanding
        reads_per_request = evidence.host_page_reads / evidence.requests
        return ServiceModel(
            self.timing, base_us, writes_per_request, outstanding, gc_scale, reads_per_request
        )

    def iops_at(self, u: float) -> float:
        """Requests per second at utilization u."""
        gc_us = self._gc_share * eq1.gc_time_us(self.timing, u)
        return self.outstanding * _US_PER_S / (self.base_us + gc_us)

    def u_at(self, iops: float) -> float | None:
        """Utilization that `iops` requests per second need; None when no utilization gives as many."""
        if iops > self.iops_at(0.0):
            return None
        if self._gc_share == 0.0 or iops <= 0.0:
            return 1.0
        spare_us = self.outstanding * _US_PER_S / iops - self.base_us
        return eq1.u_at_gc_time(self.timing, spare_us / self._gc_share)

    @property
    def lone_base_us(self) -> float:
        """What `base_us` would be on an idle device, all pages of a request being served in parallel."""
        write_us = min(1.0, self.writes_per_request) * (self.timing.transfer_us + self.timing.program_us)
        read_us = min(1.0, self.reads_per_request) * (self.timing.transfer_us + self.timing.read_us)
        return write_us + read_us

    def device_time_us(self, u: float) -> float:
        """What one request costs the device."""
        read_us = self.timing.transfer_us + self.timing.read_us
        write_us = eq1.write_time_us(self.timing, u)
        return self.reads_per_request * read_us + self.writes_per_request * write_us

    @property
    def _gc_share(self) -> float:
        return self.gc_scale * self.writes_per_request


@dataclass(frozen=True, slots=True)
class VmModel:
    """IOPS of one VM as a function of its OPS blocks."""

    curve: GcCurve
    service: ServiceModel

    @classmethod
    def prior(cls, sample: VmSample, timing: FlashTiming) -> VmModel:
        """Uniform single-page writes over the whole logical size."""
        return cls(GcCurve.prior(sample.logical_blocks, timing.pages_per_block), ServiceModel.prior(timing))

    def fit(self, evidence: Evidence, ops_blocks: int) -> VmModel:
        """Both halves refitted to steady evidence taken with `ops_blocks` OPS blocks.

        While a limit holds the VM back its service time is unknown (unless `outstanding` was measured), so
        that half then stays as it was.
        """
        curve = self.curve.fit(ops_blocks, evidence.u)
        if not evidence.tells_service_time:
            return replace(self, curve=curve)
        return VmModel(curve, self.service.fit(evidence, curve.u_at(ops_blocks)))

    def iops_at(self, ops_blocks: float) -> float:
        """Requests per second expected with this many OPS blocks."""
        return self.service.iops_at(self.curve.u_at(ops_blocks))

    def ops_at(self, iops: float) -> float:
        """OPS blocks that `iops` requests per second need; infinite when beyond reach, negative when none."""
        u = self.service.u_at(iops)
        return math.inf if u is None else self.curve.ops_at(u)

    @property
    def ceiling_iops(self) -> float:
        """Requests per second without any GC copies: what no amount of OPS exceeds."""
        return self.service.iops_at(0.0)
