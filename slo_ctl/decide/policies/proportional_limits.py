"""The second lever of `proportional`: rate limits, while OPS does not keep the shares."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from slo_ctl.decide.pacing import Paced, longest_lead_windows, new_leads, pace
from slo_ctl.decide.policies.proportional_state import max_iops

if TYPE_CHECKING:
    from slo_ctl.decide.policies.proportional_state import ProportionalState
    from slo_ctl.decide.targets import Feasible
    from slo_ctl.decide.track import VmTrack
    from slo_ctl.model import DeviceSample

_PATIENCE_DEVICE_SHARE = 1.25
"""Drive writes after which shares that still are off are the second lever's business."""
_NO_LEAD_WINDOWS, _ALIKE = 0.3, 1.02
"""Limits are lifted when no lead exceeds this and the split by itself keeps the shares as closely as this."""
_LEAD_MEMORY_WINDOWS, _LEAD_MEMORY_WINDOWS_UNPACED = 200.0, 40.0
_LEAD_MEMORY_WINDOWS_IN_TRANSITION = 1.0
TRANSITION_DEVICE_SHARE = 2.0
"""Drive writes after an event whose leads are forgiven at once: nobody pays for the time OPS took."""
_PACE_FROM_WINDOWS = 0.8
"""The lead of some VM from which on shares are off: 2 % over the memory of a VM not yet paced."""


def limits_for(
    state: ProportionalState, sample: DeviceSample, feasible: Feasible, event: str | None
) -> tuple[ProportionalState, dict[str, float | None], tuple[str, ...]]:
    """Rate limits: the SLOs' maximums always, the others' shares while OPS does not keep them."""
    vms = [
        Paced(
            vm=v.vm,
            weight=v.slo.weight,
            iops=state.tracks[v.vm].recent_iops,
            last_iops=v.iops,
            window_s=v.window_s,
            limit_iops=v.limit_iops,
            saturating=state.tracks[v.vm].saturating,
            min_iops=v.slo.min_iops or 0.0,
            max_iops=max_iops(v.slo),
            unheld_iops=state.tracks[v.vm].unheld_iops,
        )
        for v in sample.vms
        if v.active and v.window_s > 0.0 and state.tracks[v.vm].recent_iops > 0.0
    ]
    maximums: dict[str, float | None] = {v.vm: v.slo.max_iops for v in sample.vms}
    memory_windows = _LEAD_MEMORY_WINDOWS if state.pacing else _LEAD_MEMORY_WINDOWS_UNPACED
    if state.device_share_since_event < TRANSITION_DEVICE_SHARE:
        memory_windows = _LEAD_MEMORY_WINDOWS_IN_TRANSITION
    was_pacing = state.pacing
    ops_has_its_time = state.device_share_since_event < _PATIENCE_DEVICE_SHARE and not was_pacing
    leads = {} if event or ops_has_its_time else new_leads(state.leads, vms, memory_windows)
    still_off = longest_lead_windows(leads, vms) > _PACE_FROM_WINDOWS
    wanted = maximums
    pacing = not event and (was_pacing or not feasible.ops_suffices or still_off)
    if was_pacing and longest_lead_windows(leads, vms) < _NO_LEAD_WINDOWS:
        pacing = not _ops_does_it(state.tracks, sample, feasible)
    if pacing:
        wanted = maximums | pace(vms, leads)
        pacing = wanted != maximums or not feasible.ops_suffices
    state = replace(state, pacing=pacing, leads=leads)
    in_force = {v.vm: v.limit_iops for v in sample.vms}
    limits = {vm: limit for vm, limit in wanted.items() if limit != in_force[vm]}
    reasons: tuple[str, ...] = ()
    if state.pacing and not was_pacing:
        reasons = ("OPS alone does not keep the shares: limiting those above theirs",)
    elif was_pacing and not state.pacing:
        reasons = ("limits lifted",)
    return state, limits, reasons


def _ops_does_it(tracks: dict[str, VmTrack], sample: DeviceSample, feasible: Feasible) -> bool:
    """Whether the present split by itself would keep the shares, by the models."""
    if not feasible.ops_suffices or not all(tracks[v.vm].settled for v in sample.vms if v.active):
        return False
    by_model = [
        tracks[v.vm].model.iops_at(v.ops_blocks) / (feasible.targets[v.vm].iops or math.inf)
        for v in sample.vms
        if v.active
    ]
    return max(by_model) < _ALIKE * min(by_model)
