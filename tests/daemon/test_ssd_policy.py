"""What the policy of an emulated device sets before and after its first decision."""

from __future__ import annotations

import pytest

from slo_ctl.daemon.occupants import Occupant
from slo_ctl.daemon.ssd_policy import PolicyInForce
from slo_ctl.model.sample import DeviceSample, FlashTiming, VmSample
from slo_ctl.model.slo import Slo

SLO = Slo(weight=2.0, max_iops=1000.0)
WEB = Occupant("web", "web", SLO)
SAMPLE = DeviceSample(
    FlashTiming(64, 60.0, 800.0, 1500.0, 50.0),
    (VmSample("web", 1.0, slo=SLO, limit_iops=300.0, scheduler_weight=5.0, ops_blocks=8),),
)


def set_by(policy: PolicyInForce) -> list[tuple[float | None, str]]:
    return [policy.weight(WEB, SAMPLE), policy.limit(WEB, SAMPLE, "paced")]


def test_a_policy_that_keeps_the_split_leaves_what_is_in_force_until_it_decides() -> None:
    policy = PolicyInForce("shared", keeps_split=True)
    assert set_by(policy) == [(5.0, "as it was"), (300.0, "paced")]
    assert policy.decide(SAMPLE).limits_iops == {"web": 1000.0}
    assert set_by(policy) == [(2.0, "its weight"), (1000.0, "its maximum")]


def test_any_other_policy_sets_what_the_slo_says() -> None:
    policy = PolicyInForce("shared", keeps_split=False)
    assert set_by(policy) == [
        (2.0, "its weight"),
        (1000.0, "its maximum"),
    ]


@pytest.mark.parametrize(("maximum", "limit"), [(None, 300.0), (1000.0, 300.0), (200.0, 200.0)])
def test_the_lower_of_limit_and_maximum_is_set(maximum: float | None, limit: float) -> None:
    web = Occupant("web", "web", Slo(max_iops=maximum))
    assert PolicyInForce("shared", keeps_split=True).limit(web, SAMPLE, "paced")[0] == limit
