"""The OPS policies, by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from slo_ctl.decide.policies.fast15 import Algorithm1, Shared, Static
from slo_ctl.decide.policies.interface import Policy
from slo_ctl.decide.policies.proportional import Proportional
from slo_ctl.decide.policies.proportional_strict import ProportionalStrict
from slo_ctl.model.slo import Slo

__all__ = [
    "DEFAULT_POLICY",
    "POLICIES",
    "STRICT_POLICY",
    "Policy",
    "PolicyEntry",
    "make_policy",
    "policy_entry",
    "without_lever",
]


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """One OPS policy of the table."""

    make: Callable[[], Policy[Any]]
    description: str
    scheduler: str = "fifo"
    """Tenant scheduler that the policy works with, unless another one is configured."""
    splits_at_start: bool = False
    """Whether the policy begins with its own split of OPS also when it replaces another policy."""
    keeps_minimums: bool = False
    keeps_p99: bool = False
    exact: bool = False
    """Whether limits keep exact proportions, so that a VM that they throttle wants more."""


POLICIES: dict[str, PolicyEntry] = {
    "shared": PolicyEntry(Shared, "no isolation: one pool for all VMs (the baseline)"),
    "static": PolicyEntry(
        Static,
        "OPS by ratio of the weights, never adjusted (FAST'15, Algorithm 1, lines 3-4)",
        splits_at_start=True,
    ),
    "algorithm1": PolicyEntry(
        Algorithm1,
        "FAST'15, Algorithm 1 exactly as printed; starves the VM with the highest u",
        splits_at_start=True,
    ),
    "proportional": PolicyEntry(
        Proportional,
        "shares by weight, work-conserving: unused shares go to the other VMs",
        "wfq",
        keeps_minimums=True,
        keeps_p99=True,
    ),
    "proportional-strict": PolicyEntry(
        ProportionalStrict,
        "IOPS exactly in proportion to the weights, whatever that costs in throughput",
        "wfq",
        keeps_minimums=True,
        exact=True,
    ),
    "min_waf": PolicyEntry(
        lambda: Proportional("min_waf", keeps_own_ops=False),
        "as proportional, with OPS wherever it saves most GC",
        "wfq",
        keeps_minimums=True,
        keeps_p99=True,
    ),
}
_IOPS = re.compile(r"\d{1,9}(\.\d{1,3})?")
DEFAULT_POLICY = "proportional"
STRICT_POLICY = "proportional-strict"


_WITH_IOPS = "algorithm1"
"""Policy whose name may have an argument, `algorithm1:IOPS`: the IOPS specification of the SSD."""


def policy_entry(name: str) -> PolicyEntry:
    """The entry of a policy. Raises ValueError, which lists the names, for an unknown one.

    `algorithm1:900` is Algorithm 1 for an SSD that is specified with 900 IOPS.
    """
    base, colon, iops = name.partition(":")
    if not colon and name in POLICIES:
        return POLICIES[name]
    if base == _WITH_IOPS and _IOPS.fullmatch(iops) and float(iops) > 0:
        entry = POLICIES[base]
        return replace(entry, make=lambda: Algorithm1(float(iops), name))
    if base == _WITH_IOPS and colon:
        raise ValueError(f"{name}: IOPS must be a number above 0")
    raise ValueError(f"no policy {name!r}; there are {', '.join(POLICIES)}")


def make_policy(name: str) -> Policy[Any]:
    """The policy with a name that `policy_entry` accepts. Raises ValueError for an unknown one."""
    return policy_entry(name).make()


def without_lever(name: str, slo: Slo) -> str:
    """A sentence on the bounds of an SLO that the policy cannot keep; empty without any.

    Maximums are kept under every policy.
    """
    try:
        policy = policy_entry(name)
    except ValueError:
        return ""
    missing = ["minimum"] if slo.min_iops is not None and not policy.keeps_minimums else []
    missing += ["p99"] if slo.p99_latency_us is not None and not policy.keeps_p99 else []
    return f"policy {name} has no lever for a {' or a '.join(missing)}" if missing else ""
