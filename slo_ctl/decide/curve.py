"""u as a function of OPS, for one VM: one parameter, refitted whenever there is evidence.

Whatever the VM's workload, near its present OPS it behaves like uniform random writes over some effective
number of live blocks L: u = u_at_alpha((logical + OPS) / L). Unwritten or trimmed space lowers L; skew and
blocks that GC holds free raise it. The fit is exact where it was taken; further away it is a prediction
that the next fit corrects.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from slo_ctl.decide import waf

_MAX_U = 0.9999
"""Beyond, GC hardly makes progress and the formula's slope tells nothing."""


@dataclass(frozen=True, slots=True)
class GcCurve:
    """Victim utilization of a VM with `logical_blocks` + OPS blocks, of which `live_blocks` act as live."""

    logical_blocks: int
    live_blocks: float
    pages_per_block: int

    @classmethod
    def prior(cls, logical_blocks: int, pages_per_block: int) -> GcCurve:
        """The curve of uniform random writes over the whole logical size: to start from, and pessimistic."""
        return cls(logical_blocks, float(logical_blocks), pages_per_block)

    def fit(self, ops_blocks: float, u: float | None) -> GcCurve:
        """The curve through the measured point; unchanged when nothing was measured (u is None)."""
        if u is None:
            return self
        alpha = waf.alpha_at_u(min(max(u, 0.0), _MAX_U), self.pages_per_block)
        return replace(self, live_blocks=(self.logical_blocks + ops_blocks) / alpha)

    def u_at(self, ops_blocks: float) -> float:
        """Victim utilization expected with this many OPS blocks."""
        alpha = (self.logical_blocks + ops_blocks) / self.live_blocks
        return min(waf.u_at_alpha(alpha, self.pages_per_block), _MAX_U) if alpha > 1.0 else _MAX_U

    def ops_at(self, u: float) -> float:
        """OPS blocks with which victims come down to u; negative when the logical size has room."""
        return self.live_blocks * waf.alpha_at_u(min(u, _MAX_U), self.pages_per_block) - self.logical_blocks

    def gc_writes_saved(self, u: float) -> float:
        """GC page writes per host page write that one more block saves, at utilization u.

        -d(gc_write_ratio)/d(OPS), by differentiating alpha(u): 1 / (L (1 - u) (1 / (u + eps) - alpha)).
        """
        u = min(u, _MAX_U)
        reciprocal_gap = 1.0 / (u + 0.5 / self.pages_per_block) - waf.alpha_at_u(u, self.pages_per_block)
        if reciprocal_gap <= 0.0:
            return math.inf
        return 1.0 / (self.live_blocks * (1.0 - u) * reciprocal_gap)
