"""The verdict on a VM."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.decide.verdict import Delivered, Judgement, is_behind, judge, unknown_vm
from slo_ctl.model.host import IoCounters
from slo_ctl.model.sample import VmSample
from slo_ctl.model.setting import Knob, Lever, Outcome, OutcomeState, Setting
from slo_ctl.model.slo import Slo
from slo_ctl.model.status import Verdict

REFUSED = Outcome(
    Setting(Knob(Lever.CGROUP_LIMIT, "/slo/web", "read_iops", "8:0"), 100.0, "web", "max_iops"),
    OutcomeState.UNAPPLIED,
    None,
    None,
    "read-only file system",
)


def delivered(iops: float | None, **facts: Any) -> Delivered:
    return Delivered(VmSample("web", 10.0, iops=iops), asked=True, **facts)


BUSY = delivered(100.0, share=0.1)


@pytest.mark.parametrize(
    ("got", "slo", "target", "verdict", "reason"),
    [
        (Delivered(VmSample("web", 10.0, iops=0.0)), Slo(min_iops=5), 0.1, Verdict.IDLE, "no request"),
        # In the first epoch nothing is known about the requests of a VM, which may be busy.
        (
            Delivered(VmSample("web", 0.0, IoCounters(reads=7))),
            Slo(min_iops=5),
            0.1,
            Verdict.IDLE,
            "its first rates are measured in the next epoch",
        ),
        (Delivered(), Slo(min_iops=5), 0.1, Verdict.IDLE, "nothing was measured in the window"),
        (BUSY, Slo(), 0.1, Verdict.OK, "10.0% of the device's IOPS, target 10.0%"),
        (BUSY, Slo(), 0.109, Verdict.OK, "10.0%"),
        (
            BUSY,
            Slo(),
            0.12,
            Verdict.INSUFFICIENT,
            "10.0% of the device's IOPS, below the 12.0% that it is entitled to",
        ),
        (
            BUSY._replace(held="disk vda has total_iops_sec=100"),
            Slo(),
            0.12,
            Verdict.CAPPED,
            "at a limit that slo-ctl has not set: disk vda has total_iops_sec=100",
        ),
        (
            BUSY._replace(held="disk vda has total_iops_sec=100"),
            Slo(min_iops=120),
            0.12,
            Verdict.INSUFFICIENT,
            "100 IOPS, below its minimum of 120; disk vda has total_iops_sec=100",
        ),
        (BUSY, Slo(), None, Verdict.OK, "SLO met"),
        (BUSY, Slo(min_iops=120), 0.1, Verdict.INSUFFICIENT, "100 IOPS, below its minimum of 120"),
        (BUSY, Slo(min_iops=102), 0.1, Verdict.OK, "100 IOPS, minimum 102"),
        (BUSY, Slo(max_iops=102), 0.2, Verdict.CAPPED, "maximum of 102 IOPS"),
        (
            delivered(9.0, share=0.1, wants_more=False),
            Slo(min_iops=50),
            0.3,
            Verdict.OK,
            "demand met",
        ),
        (
            Delivered(VmSample("web", 10.0, bandwidth_bytes_s=2**20), asked=True),
            Slo(max_bandwidth_bytes_s=2**20),
            None,
            Verdict.CAPPED,
            "1.0 MiB/s",
        ),
        (
            Delivered(VmSample("web", 10.0, p99_write_us=12_300.0), asked=True, wants_more=False),
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
    judgement = judge(got._replace(target_share=target), slo)
    assert judgement.verdict is verdict
    assert reason in judgement.reason


@pytest.mark.parametrize(("slo", "target"), [(Slo(), 0.2), (Slo(min_iops=120), 0.1)])
def test_guess_is_labelled_as_a_guess(slo: Slo, target: float) -> None:
    judged = BUSY._replace(target_share=target)
    guess = judge(judged._replace(guessed=True), slo)
    assert guess.verdict is Verdict.INSUFFICIENT
    assert "assuming that it wants more" in guess.reason
    assert "guess" not in judge(judged, slo).reason


@pytest.mark.parametrize(
    ("got", "slack", "verdict"),
    [
        (BUSY, None, Verdict.NO_MECHANISM),
        (BUSY, 0.0, Verdict.NO_MECHANISM),
        (BUSY, 20.0, Verdict.CAPPED),
        (delivered(118.0, share=0.1), 0.0, Verdict.CAPPED),
        (delivered(118.0, share=0.1), None, Verdict.NO_MECHANISM),
        (delivered(95.0, share=0.1), 20.0, Verdict.NO_MECHANISM),
        (BUSY._replace(wants_more=False), 20.0, Verdict.NO_MECHANISM),
        (BUSY._replace(wants_more=False, guessed=True), 20.0, Verdict.CAPPED),
    ],
)
def test_a_vm_at_an_enforced_maximum_is_capped_although_nothing_keeps_its_weight(
    got: Delivered, slack: float | None, verdict: Verdict
) -> None:
    unkept = got._replace(
        target_share=0.1, no_mechanism="nothing shares fast by weight", maximum_slack_iops=slack
    )
    judgement = judge(unkept, Slo(max_iops=120))
    assert judgement.verdict is verdict
    assert "nothing shares fast by weight" in judgement.reason


@pytest.mark.parametrize(("iops", "verdict"), [(13.0, Verdict.CAPPED), (12.0, Verdict.OK)])
def test_capped_tolerates_at_most_a_third_below_a_low_maximum(iops: float, verdict: Verdict) -> None:
    got = delivered(iops, share=0.1, maximum_slack_iops=20.0)
    assert judge(got, Slo(max_iops=20)).verdict is verdict


def test_capped_says_that_the_p99_is_due_to_the_maximum() -> None:
    got = Delivered(VmSample("web", 10.0, iops=500.0, p99_write_us=32e3), asked=True)
    judged = judge(got, Slo(max_iops=500, p99_latency_us=10e3))
    assert judged.verdict is Verdict.CAPPED
    assert judged.reason == (
        "at its maximum of 500 IOPS, for which requests wait: p99 of writes 32 ms, above its 10 ms"
    )
    assert judge(got, Slo(max_iops=500, p99_latency_us=40e3)).reason == "at its maximum of 500 IOPS"


def test_unapplied_settings_come_before_other_verdicts() -> None:
    got = Delivered(no_mechanism="no bfq")
    judged = judge(got, Slo(), unapplied=[REFUSED, REFUSED])
    assert judged.verdict is Verdict.UNAPPLIED
    assert judged.reason == "cgroup limit /slo/web 8:0 read_iops: read-only file system (and 1 more)"
    assert judge(got, Slo()).reason == "no bfq"
    assert unknown_vm("config a.toml:3").verdict is Verdict.UNKNOWN_VM
    assert "config a.toml:3" in unknown_vm("config a.toml:3").reason


positive = st.none() | st.floats(0.001, 1e6)
share = st.none() | st.floats(0, 1)


@given(
    st.builds(delivered, positive, wants_more=st.booleans(), share=share, target_share=share),
    st.builds(Slo, st.just(1.0), positive, positive, positive, positive),
    st.floats(1, 100),
)
def test_more_iops_never_give_a_worse_verdict(got: Delivered, slo: Slo, times: float) -> None:
    iops = got.window.iops
    more = got._replace(
        window=got.window._replace(iops=None if iops is None else iops * times),
        share=None if got.share is None else min(1.0, got.share * times),
    )
    before, after = judge(got, slo), judge(more, slo)
    assert before.reason
    assert after.reason
    if before.verdict is not Verdict.INSUFFICIENT:
        assert after.verdict is not Verdict.INSUFFICIENT


def test_met_minimum_is_not_overruled_by_a_guess() -> None:
    remark = "x is limited to 900 IOPS for web"
    got = delivered(120, guessed=True, share=0.05, target_share=0.5, remark=remark)
    judgement = judge(got, Slo(min_iops=100))
    assert judgement == Judgement(Verdict.OK, f"120 IOPS, minimum 100; {remark}")
    judged = judge(got._replace(guessed=False), Slo(min_iops=100))
    assert judged.verdict is Verdict.INSUFFICIENT
    assert judged.reason.endswith(f"; {remark}")


def test_a_vm_is_behind_its_share_or_minimum_whoever_has_just_become_active() -> None:
    due = BUSY._replace(target_share=0.3)
    assert is_behind(due, Slo())
    assert is_behind(due._replace(settling="cron became active 2 s ago"), Slo())
    assert is_behind(BUSY, Slo(min_iops=120))
    for kept in (
        due._replace(asked=False),
        due._replace(wants_more=False),
        due._replace(target_share=0.1),
    ):
        assert not is_behind(kept, Slo())
    assert not is_behind(due, Slo(max_iops=102)), "it has its maximum"


def test_requests_that_the_limit_does_not_count_are_not_above_the_maximum() -> None:
    """Block jobs of QEMU, and large requests split by the kernel, were taken for a limit without effect."""
    slo, facts = Slo(max_iops=100), {"maximum_slack_iops": 0.0, "highest_maximum_iops": 100.0}
    assert judge(delivered(190.0, **facts), slo).verdict is Verdict.UNAPPLIED
    judged = judge(delivered(190.0, limited_iops=100.0, **facts), slo)
    assert judged == Judgement(Verdict.CAPPED, "at its maximum of 100 IOPS, which are 190 on the device"), (
        "as with an overlay in qcow2, for which QEMU makes more requests"
    )
    assert judge(delivered(190.0, limited_iops=60.0, **facts), slo).verdict is Verdict.OK
    # Counts of QEMU that are a second older than those of the kernel change no verdict.
    assert judge(delivered(100.0, limited_iops=90.0, **facts), slo).verdict is Verdict.CAPPED
    assert judge(delivered(190.0, limited_iops=180.0, **facts), slo).verdict is Verdict.UNAPPLIED


def test_a_copy_of_a_disk_has_no_slo() -> None:
    judged = judge(delivered(900.0, share=0.1, target_share=0.5, copied=("vda", "vdb")), Slo())
    assert judged == Judgement(Verdict.OK, "a block job copies vda and vdb to it")
