"""Whether bfq waits for the next request of the current queue: only while weights need it. Pure.

Without waiting, VMs that want more than they get have equal shares. With it, a device with requests of other
VMs idles for one that paces itself, or is throttled, between two of its requests. A device reports neither
whether it idles nor what it could deliver. So waiting is left out from time to time, for a status window, and
resumed if a VM then misses its share or minimum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FIRST_TRIAL_S, LATEST_TRIAL_S = 120.0, 1920.0
"""Time with waiting until it is left out again, and what that time doubles to while waiting is needed.

A window of 10 s costs shares at most a twelfth of the time at first, and 0.5 % in the end. Load that needs no
waiting any more is slowed down by it for that time at most.
"""


@dataclass(frozen=True, slots=True)
class IdleWaits:
    """Whether bfq waits on a device. Times are monotonic."""

    on: bool
    since_s: float
    trial_after_s: float
    """Time with waiting until it is left out."""

    def recent_change(self, now_s: float, window_s: float) -> str:
        """The change in the last window, if there was one, which may explain a missed share; else empty."""
        age_s = now_s - self.since_s
        is_begin = self.on and self.trial_after_s < FIRST_TRIAL_S
        if is_begin or age_s >= window_s:
            return ""
        change = "began to wait" if self.on else "stopped waiting"
        return f"bfq {change} for each VM's next request {age_s:.0f} s ago"


def begin(now_s: float, window_s: float) -> IdleWaits:
    """Waiting, as weights need it, until a window has shown what it leads to."""
    return IdleWaits(on=True, since_s=now_s, trial_after_s=window_s)


def step(before: IdleWaits, now_s: float, window_s: float, *, is_behind: bool) -> IdleWaits:
    """Whether bfq waits in the next epoch.

    `is_behind`: a VM missed its share or minimum in the last window, of `window_s`.
    """
    lasted_s = now_s - before.since_s
    if before.on:
        return replace(before, on=False, since_s=now_s) if lasted_s >= before.trial_after_s else before
    # All of the window has to be without waiting.
    if not is_behind or lasted_s < window_s:
        return before
    is_new_need = lasted_s >= max(before.trial_after_s, FIRST_TRIAL_S)
    after_s = FIRST_TRIAL_S if is_new_need else max(2.0 * before.trial_after_s, FIRST_TRIAL_S)
    return IdleWaits(on=True, since_s=now_s, trial_after_s=min(after_s, LATEST_TRIAL_S))
