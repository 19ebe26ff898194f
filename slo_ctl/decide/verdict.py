"""Verdict on one VM and device: one word for whether the SLO was met, and the reason.

The daemon applies it to its status window, a replay to what it measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slo_ctl.base import numbers
from slo_ctl.base.text import and_list
from slo_ctl.model.host import IoCounters
from slo_ctl.model.sample import VmSample
from slo_ctl.model.setting import Outcome
from slo_ctl.model.slo import Slo
from slo_ctl.model.status import Verdict

SHARE_TOLERANCE = 0.10
"""Relative error of a share that counts as met in a window of a few seconds."""
AT_BOUND = 0.03
"""Relative distance from a maximum, minimum or p99 that still counts as equal to it."""


_MOST_SLACK = 1 / 3
"""Upper bound of `maximum_slack_iops`, relative to the maximum."""
_CLEARLY_ABOVE, _INEXACT_IOPS = 1.5, 20.0
"""A VM above its maximum by this factor and number of IOPS is not limited: the kernel's limits are less
inexact."""
_LATE_READING = 1.25
"""QEMU's counters are read up to a second earlier than the kernel's, at both ends of the window."""
_NOTHING = VmSample("", 0.0)


class Delivered(NamedTuple):
    """What one VM got from one device, and what its verdict depends on besides its SLO."""

    window: VmSample = _NOTHING
    """Sum of the VM's streams on the device; empty without measurements."""
    asked: bool = False
    """Whether the VM had any requests."""
    wants_more: bool = True
    """Whether the VM wanted more than it got; otherwise it does not miss its share."""
    busy: bool | None = None
    """Whether the VM had requests outstanding nearly all the time; otherwise it does not miss its minimum.
    None: as `wants_more`."""
    guessed: bool = False
    """Whether `wants_more` is only an estimate from how busy the device was."""
    drive_iops: float | None = None
    """Rate on all namespaces of the drive, which a minimum applies to; None: the VM uses one device only."""
    share: float | None = None
    """Fraction of what the device, or its drive, delivered; None: not known."""
    unit: str = "IOPS"
    """Unit of shares."""
    of_drive: bool = False
    """Whether `share` is a share of the drive."""
    target_share: float | None = None
    """Share that the VM is entitled to; None: not known."""
    target_iops: float | None = None
    """The same in IOPS; None: not known."""
    share_tolerance: float = SHARE_TOLERANCE
    """Relative error of the share that counts as met."""
    settling: str = ""
    """Change in the window that may explain a miss; empty without one."""
    no_mechanism: str = ""
    """Why no mechanism of the device can keep the SLO; empty if one can."""
    maximum_slack_iops: float | None = None
    """How far below its maximum the mechanism may keep the VM; None: no mechanism for maximums is known."""
    limited_iops: float | None = None
    """Rate as the limit for the maximum counts requests; None: as in the window."""
    highest_maximum_iops: float | None = None
    """The highest maximum that was wanted in the window; None: none for a part of it, no mechanism, or one
    that counts requests in another way than the window."""
    held: str = ""
    """Limits that slo-ctl has not set, and that may be why the VM did not get more; empty: none."""
    remark: str = ""
    """Further measures for the VM, such as limits on other VMs; added to the reasons of ok, insufficient."""
    disks: tuple[str, ...] = ()
    """Names in the guest of the VM's disks on the device."""
    copied: tuple[str, ...] = ()
    """Names of disks that are copied to the device, on which the VM has none."""

    @property
    def first_reading(self) -> bool:
        """Whether the counters of the VM were read only once yet, so that they have no rates."""
        return self.window.window_s <= 0 and self.window.totals != IoCounters()

    @property
    def minimum_iops_basis(self) -> float | None:
        """Rate that a minimum is compared with; None: not measured."""
        return self.window.iops if self.drive_iops is None else self.drive_iops

    @property
    def maximum_iops_basis(self) -> float | None:
        """Rate that a maximum is compared with; None: not measured."""
        iops, limited = self.window.iops, self.limited_iops
        return iops if iops is None or limited is None else min(iops, limited * _LATE_READING)

    @property
    def share_text(self) -> str:
        """`share` as text, such as `20.0% of the drive's IOPS`; empty if it is not known."""
        whole = "drive" if self.of_drive else "device"
        return "" if self.share is None else f"{_percent(self.share)} of the {whole}'s {self.unit}"


class Judgement(NamedTuple):
    """A verdict, and one sentence with the reason."""

    verdict: Verdict
    reason: str


def unknown_vm(source: str) -> Judgement:
    """The verdict on a VM that `source` names, but that does not exist on the host."""
    return Judgement(Verdict.UNKNOWN_VM, f"named by {source}, but not on this host")


def judge(
    delivered: Delivered,
    slo: Slo,
    *,
    unapplied: Sequence[Outcome] = (),
    at_bound: float = AT_BOUND,
    maximum: str = "maximum of",
) -> Judgement:
    """The verdict on one VM of the host.

    `unapplied`: its settings that could not be applied. `at_bound`: relative distance from a minimum, maximum
    or p99 that still counts as equal to it. `maximum`: words for its maximum in the reason. A VM above its
    share is ok, as is a VM that a policy's own rate limit keeps at its share: only the maximum of the SLO
    makes it capped.
    """
    if unapplied:
        more = f" (and {len(unapplied) - 1} more)" if len(unapplied) > 1 else ""
        return Judgement(Verdict.UNAPPLIED, f"{unapplied[0].setting.knob}: {unapplied[0].reason}{more}")
    if delivered.copied:
        return Judgement(Verdict.OK, f"a block job copies {and_list(delivered.copied)} to it")
    at_maximum = _at_maximum(delivered, slo, at_bound, maximum)
    if delivered.no_mechanism and not (at_maximum and delivered.maximum_slack_iops is not None):
        return Judgement(Verdict.NO_MECHANISM, delivered.no_mechanism)
    if not delivered.asked:
        if delivered.first_reading:
            return Judgement(Verdict.IDLE, "its first rates are measured in the next epoch")
        nothing = "nothing was measured" if delivered.window.iops is None else "no request"
        return Judgement(Verdict.IDLE, f"{nothing} in the window")
    if at_maximum and (above := _above_maximum(delivered, maximum)):
        return Judgement(Verdict.UNAPPLIED, above)
    if at_maximum:
        # The VM has its maximum: that no mechanism keeps its weight or minimum makes no difference to it.
        if p99 := _missed_p99(delivered, slo, at_bound):
            at_maximum = f"{at_maximum}, for which requests wait: {p99}"
        return Judgement(Verdict.CAPPED, _with(at_maximum, delivered.no_mechanism))
    if reason := _missed_rate(delivered, slo, at_bound) or _missed_p99(delivered, slo, at_bound):
        if delivered.settling:
            return Judgement(Verdict.SETTLING, _with(f"{delivered.settling}; {reason}", delivered.remark))
        return Judgement(Verdict.INSUFFICIENT, _with(_with(reason, delivered.held), delivered.remark))
    if delivered.held:
        return Judgement(Verdict.CAPPED, f"at a limit that slo-ctl has not set: {delivered.held}")
    return Judgement(Verdict.OK, _with(_kept(delivered, slo), delivered.remark))


def is_behind(delivered: Delivered, slo: Slo) -> bool:
    """Whether the VM missed its share or minimum, also in a window with a change that may explain it.

    Otherwise a VM that is active now and then would keep others from what depends on this.
    """
    counts = delivered.asked and not _at_maximum(delivered, slo, AT_BOUND, "")
    return counts and bool(_missed_rate(delivered, slo, AT_BOUND))


def _with(reason: str, remark: str) -> str:
    return f"{reason}; {remark}" if remark else reason


def _at_maximum(delivered: Delivered, slo: Slo, at_bound: float, maximum: str) -> str:
    """The reason of `capped`; empty if the VM is below its maximums."""
    most, iops = slo.max_iops, delivered.maximum_iops_basis
    if most is not None and iops is not None:
        if iops >= most * (1 - at_bound):
            on_device = delivered.window.iops or iops
            more = f", which are {on_device:,.0f} on the device" if on_device > iops else ""
            return f"at its {maximum} {most:,.0f} IOPS{more}"
        slack_iops = min(delivered.maximum_slack_iops or 0.0, most * _MOST_SLACK)
        if (delivered.wants_more or delivered.guessed) and iops >= most * (1 - at_bound) - slack_iops > 0:
            return (
                f"{iops:,.0f} IOPS, just below its {maximum} {most:,.0f}, because limits of the kernel are "
                "inexact"
            )
    bandwidth, limit = delivered.window.bandwidth_bytes_s, slo.max_bandwidth_bytes_s
    if limit is not None and bandwidth is not None and bandwidth >= limit * (1 - at_bound):
        return f"at its {maximum} {limit / 2**20:,.1f} MiB/s"
    return ""


def _above_maximum(delivered: Delivered, maximum: str) -> str:
    """That the limit for the maximum has no effect; empty if it has, or it is too early to say."""
    most, iops = delivered.highest_maximum_iops, delivered.maximum_iops_basis
    if most is None or iops is None or delivered.settling or iops <= _CLEARLY_ABOVE * most + _INEXACT_IOPS:
        return ""
    return f"{iops:,.0f} IOPS, above its {maximum} {most:,.0f}: the limit is set, but has no effect"


def _missed_rate(delivered: Delivered, slo: Slo, at_bound: float) -> str:
    """A minimum or share above what the VM got, in words; empty if there is none."""
    iops, target_share = delivered.minimum_iops_basis, delivered.target_share
    needs_minimum = delivered.wants_more if delivered.busy is None else delivered.busy
    minimum = slo.min_iops
    if needs_minimum and minimum is not None and iops is not None and iops < minimum * (1 - at_bound):
        return f"{iops:,.0f} IOPS, below its minimum of {minimum:,.0f}{_guess(delivered)}"
    if delivered.held or not delivered.wants_more or not target_share or delivered.share is None:
        return ""
    # An estimated demand is not enough to say that a VM that has its minimum misses its share.
    is_uncertain = delivered.guessed and minimum is not None
    if is_uncertain or delivered.share / target_share - 1 >= -delivered.share_tolerance:
        return ""
    text = f"{delivered.share_text}, below the {_percent(target_share)} that it is entitled to"
    return text + _guess(delivered)


def _missed_p99(delivered: Delivered, slo: Slo, at_bound: float) -> str:
    """A p99 above its target, in words; empty if there is none."""
    worst_us, target_us = delivered.window.p99_us, slo.p99_latency_us
    if target_us is not None and worst_us is not None and worst_us > target_us * (1 + at_bound):
        kind = "writes" if worst_us == delivered.window.p99_write_us else "reads"
        return f"p99 of {kind} {numbers.latency(worst_us)}, above its {numbers.latency(target_us)}"
    return ""


def _guess(delivered: Delivered) -> str:
    return "; assuming that it wants more, because the device is busy" if delivered.guessed else ""


def _kept(delivered: Delivered, slo: Slo) -> str:
    """The reason of `ok`."""
    minimum, iops = slo.min_iops, delivered.minimum_iops_basis
    if minimum is not None and iops is not None and iops >= minimum * (1 - AT_BOUND):
        return f"{iops:,.0f} IOPS, minimum {minimum:,.0f}"
    if slo.p99_latency_us is not None and (worst := delivered.window.p99_us) is not None:
        return f"p99 {numbers.latency(worst)}, target {numbers.latency(slo.p99_latency_us)}"
    if not delivered.wants_more:
        return "demand met" + (", because the device is not busy" if delivered.guessed else "")
    if delivered.target_share and delivered.share is not None:
        return f"{delivered.share_text}, target {_percent(delivered.target_share)}"
    return "SLO met"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
