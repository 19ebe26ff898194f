"""The verdict on a VM."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.decide.verdict import Delivered, Judgement, judge, unknown_vm
from slo_ctl.model import Knob, Lever, Outcome, OutcomeState, Setting, Slo, Verdict

REFUSED = Outcome(
    Setting(Knob(Lever.CGROUP_LIMIT, "/slo/web", "read_iops", "8:0"), 100.0, "web", "max_iops"),
    OutcomeState.UNAPPLIED,
    None,
    None,
    "read-only file system",
)
BUSY = Delivered(asked=True, iops=100.0, share=0.1)


@pytest.mark.parametrize(
    ("got", "slo", "target", "verdict", "reason"),
    [
        (Delivered(asked=False), Slo(min_iops=5), 0.1, Verdict.IDLE, "no request"),
        (BUSY, Slo(), 0.1, Verdict.OK, "10.0% of the device's IOPS, target 10.0%"),
        (BUSY, Slo(), 0.109, Verdict.OK, "10.0%"),
        (
            BUSY,
            Slo(),
            0.12,
            Verdict.INSUFFICIENT,
            "10.0% of the device's IOPS, below the 12.0% that it is entitled to",
        ),
        (BUSY, Slo(), None, Verdict.OK, "SLO met"),
        (BUSY, Slo(min_iops=120), 0.1, Verdict.INSUFFICIENT, "100 IOPS, below its minimum of 120"),
        (BUSY, Slo(min_iops=102), 0.1, Verdict.OK, "100 IOPS, minimum 102"),
        (BUSY, Slo(max_iops=102), 0.2, Verdict.CAPPED, "maximum of 102 IOPS"),
        (
            Delivered(asked=True, iops=9.0, share=0.1, wants_more=False),
            Slo(min_iops=50),
            0.3,
            Verdict.OK,
            "demand met",
        ),
        (
            Delivered(asked=True, bandwidth_bytes_s=2**20),
            Slo(max_bandwidth_bytes_s=2**20),
            None,
            Verdict.CAPPED,
            "1.0 MiB/s",
        ),
        (
            Delivered(asked=True, wants_more=False, p99_write_us=12_300.0),
            Slo(p99_latency_us=5000),
            None,
            Verdict.INSUFFICIENT,
            "p99 of writes 12.3 ms, above its 5 ms",
        ),
    ],
)
def test_verdict_and_reason_follow_the_delivered_service(
    got: Delivered, slo: Slo, target: float | None, verdict: Verdict, reason: str
) -> None:
    judgement = judge(got, slo, target)
    assert judgement.verdict is verdict
    assert reason in judgement.reason


@pytest.mark.parametrize(("slo", "target"), [(Slo(), 0.2), (Slo(min_iops=120), 0.1)])
def test_guess_is_labelled_as_a_guess(slo: Slo, target: float) -> None:
    guess = judge(dataclasses.replace(BUSY, guessed=True), slo, target)
    assert guess.verdict is Verdict.INSUFFICIENT
    assert "is a guess" in guess.reason
    assert "guess" not in judge(BUSY, slo, target).reason


@pytest.mark.parametrize(
    ("got", "slack", "verdict"),
    [
        (BUSY, None, Verdict.NO_MECHANISM),
        (BUSY, 0.0, Verdict.NO_MECHANISM),
        (BUSY, 20.0, Verdict.CAPPED),
        (dataclasses.replace(BUSY, iops=118.0), 0.0, Verdict.CAPPED),
        (dataclasses.replace(BUSY, iops=118.0), None, Verdict.NO_MECHANISM),
        (dataclasses.replace(BUSY, iops=95.0), 20.0, Verdict.NO_MECHANISM),
        (dataclasses.replace(BUSY, wants_more=False), 20.0, Verdict.NO_MECHANISM),
        (dataclasses.replace(BUSY, wants_more=False, guessed=True), 20.0, Verdict.CAPPED),
    ],
)
def test_a_vm_at_an_enforced_maximum_is_capped_although_nothing_keeps_its_weight(
    got: Delivered, slack: float | None, verdict: Verdict
) -> None:
    judgement = judge(
        got, Slo(max_iops=120), 0.1, no_mechanism="nothing shares fast by weight", maximum_slack_iops=slack
    )
    assert judgement.verdict is verdict
    assert "nothing shares fast by weight" in judgement.reason


@pytest.mark.parametrize(("iops", "verdict"), [(13.0, Verdict.CAPPED), (12.0, Verdict.OK)])
def test_capped_tolerates_at_most_a_third_below_a_low_maximum(iops: float, verdict: Verdict) -> None:
    got = dataclasses.replace(BUSY, iops=iops)
    assert judge(got, Slo(max_iops=20), None, maximum_slack_iops=20.0).verdict is verdict


def test_unapplied_settings_come_before_other_verdicts() -> None:
    judged = judge(Delivered(asked=False), Slo(), None, unapplied=[REFUSED, REFUSED], no_mechanism="no bfq")
    assert judged.verdict is Verdict.UNAPPLIED
    assert judged.reason == "cgroup limit /slo/web 8:0 read_iops: read-only file system (and 1 more)"
    assert judge(Delivered(asked=False), Slo(), None, no_mechanism="no bfq").reason == "no bfq"
    assert unknown_vm("config a.toml:3").verdict is Verdict.UNKNOWN_VM
    assert "config a.toml:3" in unknown_vm("config a.toml:3").reason


positive = st.none() | st.floats(0.001, 1e6)


@given(
    st.builds(Delivered, st.just(True), st.booleans(), positive, st.none() | st.floats(0, 1)),
    st.builds(Slo, st.just(1.0), positive, positive, positive, positive),
    st.none() | st.floats(0, 1),
    st.floats(1, 100),
)
def test_more_iops_never_give_a_worse_verdict(
    got: Delivered, slo: Slo, target: float | None, times: float
) -> None:
    more = dataclasses.replace(
        got,
        iops=None if got.iops is None else got.iops * times,
        share=None if got.share is None else min(1.0, got.share * times),
    )
    before, after = judge(got, slo, target), judge(more, slo, target)
    assert before.reason
    assert after.reason
    if before.verdict is not Verdict.INSUFFICIENT:
        assert after.verdict is not Verdict.INSUFFICIENT


def test_met_minimum_is_not_overruled_by_a_guess() -> None:
    got = Delivered(asked=True, guessed=True, iops=120, share=0.05)
    remark = "x is limited to 900 IOPS for web"
    judgement = judge(got, Slo(min_iops=100), 0.5, remark=remark)
    assert judgement == Judgement(Verdict.OK, f"120 IOPS, minimum 100; {remark}")
    seen = judge(dataclasses.replace(got, guessed=False), Slo(min_iops=100), 0.5, remark=remark)
    assert seen.verdict is Verdict.INSUFFICIENT
    assert seen.reason.endswith(f"; {remark}")
