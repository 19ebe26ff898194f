"""The OPS policies, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slo_ctl.decide.policies.algorithm1 import Algorithm1
from slo_ctl.decide.policies.interface import Policy
from slo_ctl.decide.policies.min_waf import MinWaf
from slo_ctl.decide.policies.proportional import Proportional
from slo_ctl.decide.policies.shared import Shared
from slo_ctl.decide.policies.static import Static

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DEFAULT_POLICY", "POLICIES", "Policy", "PolicyEntry", "make_policy"]


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """One row of the table."""

    make: Callable[[], Policy[Any]]
    description: str


POLICIES: dict[str, PolicyEntry] = {
    "shared": PolicyEntry(Shared, "no isolation: one pool for all VMs (the baseline)"),
    "static": PolicyEntry(
        Static, "OPS by ratio of the weights, never adjusted (FAST'15, Algorithm 1, lines 3-4)"
    ),
    "algorithm1": PolicyEntry(
        Algorithm1, "FAST'15, Algorithm 1 to the letter; starves the VM with the highest u"
    ),
    "proportional": PolicyEntry(
        Proportional, "IOPS in proportion to the weights, by OPS and then rate limits"
    ),
    "min_waf": PolicyEntry(
        MinWaf, "fewest GC writes in total, with a device-time scheduler keeping the proportions"
    ),
}
DEFAULT_POLICY = "proportional"


def make_policy(name: str) -> Policy[Any]:
    """The policy of that name; ValueError that lists the names when there is none."""
    if name not in POLICIES:
        raise ValueError(f"no policy {name!r}; there are {', '.join(POLICIES)}")
    return POLICIES[name].make()
