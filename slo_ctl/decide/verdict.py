"""One word per VM and device, and why: did it get what its SLO means?

The one place for that rule: the daemon judges its status window by it, a replay what it measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slo_ctl.model import Outcome, Slo, StreamWindow, Verdict

SHARE_TOLERANCE = 0.10
"""Of its target share: what a VM may miss in a window of a few seconds."""
_AT_BOUND = 0.03
"""Relative distance from a maximum, minimum or p99 that still counts as on it."""


_MOST_SLACK = 1 / 3
"""Of a maximum, that what enforces it may keep a VM below it."""
_NOTHING = StreamWindow("", 0.0)


@dataclass(frozen=True, slots=True)
class Delivered:
    """What one VM got from one device, and what its verdict depends on besides its SLO."""

    window: StreamWindow = _NOTHING
    """All of its streams there together; empty where nothing is known at the moment."""
    asked: bool = False
    """It had requests at all."""
    wants_more: bool = True
    """It would have taken more; a VM that asks for less than its share misses nothing."""
    busy: bool | None = None
    """It had requests outstanding nearly all the time, so that a missed minimum is not of its own pace; None:
    as `wants_more`."""
    guessed: bool = False
    """`wants_more` is a guess, by how busy the device was."""
    drive_iops: float | None = None
    """On all namespaces of its drive, of a VM that uses several; a minimum is of these."""
    share: float | None = None
    """Of what the device delivers, or its drive."""
    unit: str = "IOPS"
    """That shares are of."""
    of_drive: bool = False
    """`share` is of the drive's."""
    target_share: float | None = None
    target_iops: float | None = None
    share_tolerance: float = SHARE_TOLERANCE
    """Part of `target_share` that may be missed."""
    settling: str = ""
    """Why a miss may be due to a change in the window; empty when it is not."""
    no_mechanism: str = ""
    """Why nothing there can keep its SLO."""
    maximum_slack_iops: float | None = None
    """How far below its maximum what enforces that may keep it; None: nothing is known to enforce one."""
    remark: str = ""
    """Further measures for it, such as throttling others: added to ok and insufficient."""
    disks: tuple[str, ...] = ()
    """The guest's names of its disks there."""

    @property
    def all_iops(self) -> float | None:
        """Rate that a minimum is compared with."""
        return self.window.iops if self.drive_iops is None else self.drive_iops

    @property
    def share_text(self) -> str:
        """`share` for people; empty where it is not known."""
        whole = "drive" if self.of_drive else "device"
        return "" if self.share is None else f"{_percent(self.share)} of the {whole}'s {self.unit}"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict, and one sentence why."""

    verdict: Verdict
    reason: str


def unknown_vm(source: str) -> Judgement:
    """On a VM that `source` names and the host does not have."""
    return Judgement(Verdict.UNKNOWN_VM, f"named by {source}, but not on this host")


def judge(
    got: Delivered,
    slo: Slo,
    *,
    unapplied: Sequence[Outcome] = (),
    at_bound: float = _AT_BOUND,
    maximum: str = "maximum of",
) -> Judgement:
    """The verdict on one VM that is there.

    `unapplied` are its settings that could not be applied; `at_bound` is relative to a minimum, maximum or
    p99; `maximum` is what its maximum is called. More than the target is ok: who pays for it is found
    insufficient. So is a VM that a policy's own rate limit holds at its share: only the maximum that was
    asked for makes it capped.
    """
    if unapplied:
        more = f" (and {len(unapplied) - 1} more)" if len(unapplied) > 1 else ""
        return Judgement(Verdict.UNAPPLIED, f"{unapplied[0].setting.knob}: {unapplied[0].reason}{more}")
    at_maximum = _at_maximum(got, slo, at_bound, maximum)
    if got.no_mechanism and not (at_maximum and got.maximum_slack_iops is not None):
        return Judgement(Verdict.NO_MECHANISM, got.no_mechanism)
    if not got.asked:
        return Judgement(Verdict.IDLE, "no request in the window")
    if at_maximum:
        # It would get no more by a weight or minimum that nothing keeps.
        return Judgement(Verdict.CAPPED, _with(at_maximum, got.no_mechanism))
    if reason := _missed(got, slo, at_bound):
        if got.settling:
            return Judgement(Verdict.SETTLING, _with(f"{got.settling}; {reason}", got.remark))
        return Judgement(Verdict.INSUFFICIENT, _with(reason, got.remark))
    return Judgement(Verdict.OK, _with(_kept(got, slo), got.remark))


def _with(reason: str, remark: str) -> str:
    return f"{reason}; {remark}" if remark else reason


def _at_maximum(got: Delivered, slo: Slo, at_bound: float, maximum: str) -> str:
    most, iops = slo.max_iops, got.window.iops
    if most is not None and iops is not None:
        if iops >= most * (1 - at_bound):
            return f"at its {maximum} {most:,.0f} IOPS"
        slack_iops = min(got.maximum_slack_iops or 0.0, most * _MOST_SLACK)
        if (got.wants_more or got.guessed) and iops >= most * (1 - at_bound) - slack_iops > 0:
            return f"{iops:,.0f} IOPS, just below its {maximum} {most:,.0f}, as kernel limits are inexact"
    bandwidth, limit = got.window.bandwidth_bytes_s, slo.max_bandwidth_bytes_s
    if limit is not None and bandwidth is not None and bandwidth >= limit * (1 - at_bound):
        return f"at its {maximum} {limit / 2**20:,.1f} MiB/s"
    return ""


def _missed(got: Delivered, slo: Slo, at_bound: float) -> str:
    iops, target_share = got.all_iops, got.target_share
    asks = got.wants_more if got.busy is None else got.busy
    minimum = slo.min_iops
    if asks and minimum is not None and iops is not None and iops < minimum * (1 - at_bound):
        return f"{iops:,.0f} IOPS, below its minimum of {minimum:,.0f}{_guess(got)}"
    if got.wants_more:
        # Who has its minimum is not said to miss a share on a mere guess.
        judged = target_share and not (got.guessed and slo.min_iops is not None)
        tolerated = -got.share_tolerance
        if judged and target_share and got.share is not None and got.share / target_share - 1 < tolerated:
            text = f"{got.share_text}, below the {_percent(target_share)} that it is entitled to"
            return text + _guess(got)
    worst_us, target_us = got.window.p99_us, slo.p99_latency_us
    if target_us is not None and worst_us is not None and worst_us > target_us * (1 + at_bound):
        kind = "writes" if worst_us == got.window.p99_write_us else "reads"
        return f"p99 of {kind} {worst_us / 1000:,.3g} ms, above its {target_us / 1000:,.3g} ms"
    return ""


def _guess(got: Delivered) -> str:
    return "; that it wants more is a guess, as the device is busy" if got.guessed else ""


def _kept(got: Delivered, slo: Slo) -> str:
    minimum, iops = slo.min_iops, got.all_iops
    if minimum is not None and iops is not None and iops >= minimum * (1 - _AT_BOUND):
        return f"{iops:,.0f} IOPS, minimum {minimum:,.0f}"
    if slo.p99_latency_us is not None and (worst := got.window.p99_us) is not None:
        return f"p99 {worst / 1000:,.3g} ms, target {slo.p99_latency_us / 1000:,.3g} ms"
    if not got.wants_more:
        return "demand met" + (", as the device is not busy" if got.guessed else "")
    if got.target_share and got.share is not None:
        return f"{got.share_text}, target {_percent(got.target_share)}"
    return "SLO met"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
