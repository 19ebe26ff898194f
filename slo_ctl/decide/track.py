"""What a policy remembers of one VM between windows.

After blocks moved, the u of both ends keeps drifting until most of their blocks have been rewritten. So
evidence is thrown away at a move, and gathered again once the VM has written (host and GC pages) a good
part of what it owns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from slo_ctl.decide.evidence import Evidence, saturating, unlimited
from slo_ctl.decide.service import VmModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slo_ctl.model import DeviceSample, VmSample

_SETTLED_POOL_SHARE = 0.7
"""Of the pages a VM owns: written since the last move, its u has settled."""
_SETTLED_DEVICE_SHARE = 0.5
"""Of the device's logical pages:

written by all since the last move, a VM that hardly writes has settled, too.
"""
_STEADY_MEMORY_SAMPLES = 32.0
_RECENT_IOPS_MEMORY_SAMPLES = 4.0
_RECENT_MEMORY_SAMPLES = 12.0
_NOISE_MEMORY_SAMPLES = 16.0
_DEMAND_MEMORY_SAMPLES = 4.0
_DEMAND_HEADROOM = 1.1
"""A VM that asks for less than its share may grow by this much before its target follows."""
_NOISE_PRIOR = 0.02


@dataclass(frozen=True, slots=True)
class VmTrack:
    """One VM's model, and the evidence for it."""

    model: VmModel
    ops_blocks: int
    steady: Evidence = field(default_factory=Evidence)
    """Since u settled after the last move."""
    recent: Evidence = field(default_factory=Evidence)
    """Over the last few windows, whatever moved."""
    unheld: Evidence = field(default_factory=Evidence)
    """Windows in which no limit held it back: they tell how many requests it keeps outstanding."""
    recent_iops: float = 0.0
    """Average over a few windows under about the same limit; 0 before any."""
    limit_iops: float | None = None
    backlog_share: float | None = None
    """Share of the time with requests waiting, averaged over a few windows; None before any."""
    iops_variance: float = _NOISE_PRIOR**2
    """Relative variance of the IOPS from window to window."""
    written_pool_share: float = math.inf
    """Pages written since the last move, relative to the pages owned."""
    written_device_share: float = math.inf
    """Host pages written on the whole device since, relative to its logical pages."""

    @property
    def settled(self) -> bool:
        """Whether u is steady again after the last move."""
        return (
            self.written_pool_share >= _SETTLED_POOL_SHARE
            or self.written_device_share >= _SETTLED_DEVICE_SHARE
        )

    @property
    def relative_error(self) -> float:
        """Standard error of the IOPS in `steady`."""
        return math.sqrt(self.iops_variance / max(1.0, self.steady.samples))

    @property
    def saturating(self) -> bool:
        """Whether it would do more IOPS if it could, over a few windows."""
        return self.backlog_share is None or saturating(self.backlog_share)

    @property
    def demand_iops(self) -> float:
        """The most it may come to ask for; infinite for a VM that saturates.

        A client that waits for its requests spends `backlog_share` of its time on the device. Were that time
        nothing, it would do IOPS / (1 - backlog_share) (the utilization law), so a VM that would be held up
        little by a fast device is known by a small share. Clients that do not wait ask for less than this.
        """
        if self.backlog_share is None or self.saturating:
            return math.inf
        return self.recent_iops * max(_DEMAND_HEADROOM, 1.0 / (1.0 - self.backlog_share))

    @property
    def unheld_iops(self) -> float | None:
        """IOPS of the last few windows, had no limit held them back; None where not measured."""
        if not self.recent.tells_service_time:
            return None
        return 1e6 * self.model.service.outstanding / self.recent.service_us


def new_tracks(sample: DeviceSample) -> dict[str, VmTrack]:
    """Tracks of VMs on a device that nobody has rearranged yet, fitted to what the sample tells.

    Needs a clock.
    """
    return follow({}, sample)


def follow(tracks: Mapping[str, VmTrack], sample: DeviceSample) -> dict[str, VmTrack]:
    """The tracks one window later:

    VMs may have come, gone, slept, and gained or lost blocks. Needs a clock.
    """
    written = sum(v.host_page_writes for v in sample.vms)
    device_pages = sample.timing.pages_per_block * sum(v.logical_blocks for v in sample.vms)
    result = {}
    for vm in sample.vms:
        track = tracks.get(vm.vm) or VmTrack(VmModel.prior(vm, sample.timing), vm.ops_blocks)
        result[vm.vm] = _observe(track, vm, sample.timing.pages_per_block, written / max(1, device_pages))
    return result


def _observe(track: VmTrack, vm: VmSample, pages_per_block: int, written_device_share: float) -> VmTrack:
    if track.model.curve.logical_blocks != vm.logical_blocks:  # resized: what was known no longer holds
        return VmTrack(VmModel.prior(vm, track.model.service.timing), vm.ops_blocks, written_pool_share=0.0)
    if track.ops_blocks != vm.ops_blocks:
        track = replace(
            track,
            ops_blocks=vm.ops_blocks,
            steady=Evidence(),
            written_pool_share=0.0,
            written_device_share=0.0,
        )
    owned_pages = pages_per_block * (vm.logical_blocks + vm.ops_blocks)
    was_settled = track.settled
    track = replace(
        track,
        written_pool_share=track.written_pool_share + (vm.host_page_writes + vm.gc_page_writes) / owned_pages,
        written_device_share=track.written_device_share + written_device_share,
    )
    if not vm.active or vm.requests == 0:
        return track
    track = _observe_demand(_observe_recent(track, vm), vm)
    if vm.outstanding is not None:
        track = _observe_service(track, vm)
    if not was_settled:
        return track
    steady = track.steady.add(vm, _STEADY_MEMORY_SAMPLES)
    return replace(track, steady=steady, model=track.model.fit(steady, vm.ops_blocks))


def _observe_service(track: VmTrack, vm: VmSample) -> VmTrack:
    track = replace(track, recent=track.recent.add(vm, _RECENT_MEMORY_SAMPLES))
    if not unlimited(vm):
        return _guess_outstanding(track, vm)
    unheld = track.unheld.add(vm, _STEADY_MEMORY_SAMPLES)
    service = track.model.service
    service = replace(service, outstanding=unheld.outstanding or service.outstanding)
    return replace(track, unheld=unheld, model=replace(track.model, service=service))


def _guess_outstanding(track: VmTrack, vm: VmSample) -> VmTrack:
    """Of a VM never seen without a limit: what the limit holds back would be on the device, too."""
    if track.unheld.samples or not vm.outstanding or vm.held_back is None:
        return track
    service = replace(track.model.service, outstanding=vm.outstanding + vm.held_back)
    return replace(track, model=replace(track.model, service=service))


def _observe_demand(track: VmTrack, vm: VmSample) -> VmTrack:
    share = vm.backlog_share
    if track.backlog_share is not None:
        share = track.backlog_share + (share - track.backlog_share) / _DEMAND_MEMORY_SAMPLES
    return replace(track, backlog_share=share)


def _observe_recent(track: VmTrack, vm: VmSample) -> VmTrack:
    recent_iops = vm.iops
    variance = track.iops_variance
    if track.recent_iops > 0.0 and not _limit_jumped(track.limit_iops, vm.limit_iops):
        recent_iops = track.recent_iops + (vm.iops - track.recent_iops) / _RECENT_IOPS_MEMORY_SAMPLES
        if track.settled:
            deviation = math.log(vm.iops / track.recent_iops)
            variance += (deviation**2 - variance) / _NOISE_MEMORY_SAMPLES
    return replace(track, recent_iops=recent_iops, iops_variance=variance, limit_iops=vm.limit_iops)


def _limit_jumped(before: float | None, now: float | None) -> bool:
    if before is None or now is None:
        return before is not now
    return not math.isclose(before, now, rel_tol=0.05)
