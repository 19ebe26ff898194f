"""Limits that another policy left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slo_ctl.model import DeviceSample


def without_pacing(sample: DeviceSample) -> dict[str, float | None]:
    """The changes after which nothing but the SLOs' maximums is limited."""
    return {v.vm: v.slo.max_iops for v in sample.vms if v.limit_iops not in (None, v.slo.max_iops)}
