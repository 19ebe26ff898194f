"""What a device can be counted on to deliver at the moment, as measured, and less when its WAF rises: pure.

A minimum can only be kept out of what there really is. The most that was ever measured is too much once the
work has changed; what is measured while somebody is held back is too little. So the figure is the mean of
times when VMs wanted more and nobody was held back. What the device does for some VMs may be more than what
it does once others have their minimum: while that is missed with nobody above what is due, it gives way.

Every page that GC writes takes the place of one of the host's, so the time of a host page write grows in
proportion to WAF = (host + GC) / host (design: device time per host page write, with `paper` timing). With a
share s of writes a device that did C at WAF w does C / (1 - s + s w' / w) at w'.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_FOLLOWS_IN_S = 10.0
"""Time constant of the way to what is measured."""
_GIVES_WAY_IN_S = 12.0
"""Time constant of the way down while a minimum is missed all the same."""
_LEAST = 0.5
"""Of what was measured with nobody held back: how far it gives way."""
_LEAST_BY_WEIGHT = 0.01
"""The same where shares are kept: somebody is held back all the time then, so that what was measured without
is old, and limits that leave the device idle are noticed by that (`decide.protection`)."""


@dataclass(frozen=True, slots=True)
class Deliverable:
    """As of some moment."""

    iops: float | None = None
    """At the WAF `waf`; None before VMs wanted more than they got."""
    free_iops: float | None = None
    """The same as of the last time when nobody was held back."""
    waf: float | None = None
    """Of the device when it was measured; None: not known."""
    firm_iops: float | None = None
    """Before it began to give way; None: it does not."""

    def at(self, waf: float | None, write_share: float) -> float | None:
        """What can be promised at another WAF; `write_share` of the requests are writes."""
        if self.iops is None or waf is None or self.waf is None:
            return self.iops
        return self.iops / _slower(self.waf, waf, write_share)

    def after(
        self,
        total_iops: float,
        length_s: float,
        *,
        wanted_more: bool,
        held: bool,
        short: bool,
        waf: float | None = None,
        write_share: float = 1.0,
        by_weight: bool = False,
        trying: bool = False,
        in_vain: bool = False,
    ) -> Deliverable:
        """After `length_s` in which the device did `total_iops`.

        `wanted_more`: some VM would have taken more. `held`: some VM is held back for another's sake.
        `short`: and still somebody misses a minimum, with nobody left above what is due. `by_weight`: shares
        are kept, not only minimums. `trying`: whether giving way helps is not known yet. `in_vain`: it
        did not, as the VM could not use what others gave up.
        """
        known = self._moved_to(waf, write_share)
        if known.iops is None:
            return Deliverable(total_iops, total_iops, waf) if wanted_more else self
        if short:
            way = known.iops * math.exp(-length_s / _GIVES_WAY_IN_S)
            before = known.firm_iops or known.iops
            least = _LEAST_BY_WEIGHT if by_weight else _LEAST
            way = max(way, least * (known.free_iops or known.iops))
            return replace(known, iops=way, firm_iops=before)
        if in_vain and known.firm_iops is not None:
            return replace(known, iops=known.firm_iops, firm_iops=None)
        firm = known.firm_iops if trying else None
        follows = total_iops > known.iops or (wanted_more and not held)
        if not follows:
            return replace(known, firm_iops=firm)
        moved = total_iops + (known.iops - total_iops) * math.exp(-length_s / _FOLLOWS_IN_S)
        return Deliverable(moved, known.free_iops if held else moved, known.waf, firm)

    def _moved_to(self, waf: float | None, write_share: float) -> Deliverable:
        if waf is None or self.iops is None:
            return self
        if self.waf is None:
            return replace(self, waf=waf)
        slower = _slower(self.waf, waf, write_share)
        free = None if self.free_iops is None else self.free_iops / slower
        firm = None if self.firm_iops is None else self.firm_iops / slower
        return Deliverable(self.iops / slower, free, waf, firm)


def _slower(before: float, now: float, write_share: float) -> float:
    """How many times longer a mean request takes the device."""
    share = min(1.0, max(0.0, write_share))
    return 1.0 - share + share * max(1.0, now) / max(1.0, before)
