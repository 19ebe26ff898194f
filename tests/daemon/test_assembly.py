"""Assembly of the status."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slo_ctl.daemon.device import DeviceView
from slo_ctl.daemon.slos import EpochSlos
from slo_ctl.daemon.status import StatusRows, status_of
from slo_ctl.decide.slo_sources import DEFAULT
from slo_ctl.decide.verdict import Delivered
from slo_ctl.model.host import DeviceNumber, Disk, FoundBy, IoCounters, Vm, VmState
from slo_ctl.model.sample import VmSample
from slo_ctl.model.setting import Knob, Lever, Outcome, OutcomeState, Setting
from slo_ctl.model.slo import ResolvedSlo, Slo, SloGroup
from slo_ctl.model.status import HostStatus, Verdict, VmStatus
from slo_ctl.model.status_json import from_json, to_json
from slo_ctl.observe.block import merge_windows

HOST = HostStatus(1e9, 10.0, 1.0, 42, 9e8, "", notes=("x", "x"))
WEB = Vm("web", FoundBy.LIBVIRT, VmState.RUNNING, disks=(Disk("vda", "network"),))
WINDOW = VmSample(
    "web",
    10.0,
    iops=100.0,
    bandwidth_bytes_s=4e5,
    p99_write_us=9.0,
    host_page_writes=10,
    gc_page_writes=10,
    victim_pages=20,
    victim_valid_pages=10,
    size_bytes=1000,
    ops_blocks=5,
    block_bytes=40,
)
GOT = Delivered(WINDOW, asked=True, disks=("vda",), share=0.5, target_share=0.5, target_iops=100.0)
NUMBERS = {"sda": DeviceNumber(8, 0), "sdb": DeviceNumber(8, 16)}
SSD = DeviceView("ssd0", "emulated", "isolated OPS", "proportional", 10.0, 200.0, vms={"web": GOT})


def resolved(source: str = "vm set", **fields: float) -> ResolvedSlo:
    return ResolvedSlo(Slo(**fields), source, (), {})


def build(
    device: DeviceView | None = SSD,
    vm: Vm | None = WEB,
    slo: ResolvedSlo | None = None,
    outcomes: tuple[Outcome, ...] = (),
    sources: dict[str, str] | None = None,
    group: SloGroup | None = None,
    in_groups: dict[str, Slo] | None = None,
    made: StatusRows | None = None,
) -> tuple[HostStatus, VmStatus]:
    sources = sources or {}
    slos = {name: slo or resolved() for name in ("web", *sources)}
    status = status_of(
        *(HOST, [device] if device else [], [vm] if vm else []),
        *(EpochSlos(slos, sources, in_groups or {}), outcomes, {}),
        {group.name: group} if group else {},
        *(NUMBERS, made or StatusRows()),
    )
    assert from_json(to_json(status)) == status
    return status, status.vms[0]


def test_vm_is_assembled_with_its_device() -> None:
    status, row = build()
    assert (row.verdict, row.share, row.iops, row.ops_share, row.waf) == (Verdict.OK, 0.5, 100.0, 0.2, 2.0)
    assert (row.disks, row.state, row.backend) == (("vda",), "running", "isolated OPS")
    assert status.notes == ("x",)


def test_streams_of_one_vm_are_one_row() -> None:
    other = WINDOW._replace(iops=60.0, p99_write_us=20.0, host_page_writes=30, victim_pages=40)
    _, row = build(replace(SSD, vms={"web": GOT._replace(window=merge_windows([WINDOW, other]))}))
    assert (row.iops, row.ops_blocks, row.ops_bytes, row.ops_share) == (160.0, 10, 400, 0.2)
    assert (row.p99_write_us, row.waf) == (20.0, 1.5)
    assert row.u == pytest.approx(20 / 60)


def test_only_a_vm_that_may_do_io_has_a_first_reading() -> None:
    first = replace(SSD, vms={"web": Delivered(VmSample("web", 0.0, IoCounters(reads=7)))})
    _, row = build(first)
    assert (row.verdict, row.first_reading) == (Verdict.IDLE, True)
    _, row = build(first, replace(WEB, state=VmState.PAUSED))
    assert (row.verdict, row.first_reading) == (Verdict.IDLE, False)
    _, row = build(replace(SSD, vms={"web": Delivered(VmSample("web", 0.0))}))
    assert (row.verdict, row.first_reading) == (Verdict.IDLE, False)


def test_device_problem_and_stopped_vm_are_shown() -> None:
    _, row = build(replace(SSD, problem="ssd0: not there", vms={"web": Delivered()}))
    assert (row.verdict, row.reason, row.iops) == (Verdict.NO_MECHANISM, "ssd0: not there", None)
    idle = replace(SSD, vms={"web": Delivered(WINDOW._replace(iops=0.0), wants_more=False)})
    _, row = build(idle, replace(WEB, state=VmState.SHUT_OFF))
    assert (row.verdict, row.reason) == (Verdict.IDLE, "it is shut off")


@pytest.mark.parametrize("state", [VmState.PAUSED, VmState.SHUT_OFF])
def test_a_vm_that_was_just_stopped_does_not_miss_its_slo(state: VmState) -> None:
    """It was insufficient, with a call of the hooks, until no request was left in the window."""
    missed = replace(SSD, vms={"web": GOT._replace(share=0.1)})
    assert build(missed)[1].verdict is Verdict.INSUFFICIENT
    _, row = build(missed, replace(WEB, state=state))
    assert (row.verdict, row.reason, row.iops) == (Verdict.IDLE, f"it is {state}", 100.0)


@pytest.mark.parametrize(
    ("state", "source", "verdict"),
    [
        (VmState.RUNNING, DEFAULT, Verdict.OK),
        (VmState.RUNNING, "vm set", Verdict.NO_MECHANISM),
        (VmState.SHUT_OFF, "vm set", Verdict.IDLE),
    ],
)
def test_vm_without_managed_device_has_no_backend(state: VmState, source: str, verdict: Verdict) -> None:
    _, row = build(None, replace(WEB, state=state), resolved(source))
    assert (row.verdict, row.device, row.backend, row.disks) == (verdict, "", "none", ("vda",))
    if verdict is Verdict.NO_MECHANISM:
        assert row.reason.startswith(
            "none of its disks is on a managed device (name its device under [[device]]"
        )
        _, row = build(None, replace(WEB, disks=()), resolved(source))
        assert row.reason.startswith("none of its disks is known")
        _, row = build(
            replace(SSD, problem="/dev/x: No such file or directory", vms={}), WEB, resolved(source)
        )
        assert row.reason.endswith(" (device ssd0: /dev/x: No such file or directory)")


@pytest.mark.parametrize(
    ("bounds", "verdict", "reason"),
    [
        ({"max_iops": 200.0}, Verdict.OK, "SLO met"),
        ({"max_iops": 100.0}, Verdict.CAPPED, "at its maximum of 100 IOPS"),
        ({"min_iops": 90.0}, Verdict.OK, "100 IOPS, minimum 90"),
        ({"min_iops": 190.0}, Verdict.INSUFFICIENT, "100 IOPS, below its minimum of 190"),
    ],
)
def test_group_is_judged_by_the_sum_of_its_vms(
    bounds: dict[str, float], verdict: Verdict, reason: str
) -> None:
    member = replace(resolved(), group_name="shop")
    part = {"web": Slo(**bounds)}
    status, row = build(slo=member, group=SloGroup("shop", bounds), in_groups=part)
    (group,) = status.groups
    assert (group.vms, group.iops, group.verdict, group.reason) == (("web",), 100.0, verdict, reason)
    assert (row.group, row.slo, row.slo_source) == ("shop", Slo(**bounds), "vm set, group shop")
    if verdict is Verdict.CAPPED:
        assert row.reason == "at its part of the maximum of group shop, 100 IOPS"
    else:
        assert row.verdict is Verdict.OK, "the minimum is that of all VMs together"


def test_group_whose_maximum_limits_a_vm_is_capped_though_others_leave_some_of_it() -> None:
    member, group = replace(resolved(), group_name="shop"), SloGroup("shop", {"max_iops": 110.0})
    status, row = build(slo=member, group=group, in_groups={"web": Slo(max_iops=101.0)})
    assert row.verdict is Verdict.CAPPED
    reason = "its maximum limits web; the others keep a little more than they use"
    assert (status.groups[0].verdict, status.groups[0].reason) == (Verdict.CAPPED, reason)


@pytest.mark.parametrize(
    ("max_iops", "verdict"), [(10.0, Verdict.NO_MECHANISM), (95.0, Verdict.CAPPED), (200.0, Verdict.OK)]
)
def test_a_group_that_nothing_limits_is_not_capped(max_iops: float, verdict: Verdict) -> None:
    """A group with 101 MiB/s of at most 3 was `capped: at its maximum of 3.0 MiB/s`."""
    free = replace(SSD, vms={"web": GOT._replace(no_mechanism="it is served without latency")})
    member, group = replace(resolved(), group_name="shop"), SloGroup("shop", {"max_iops": max_iops})
    status, row = build(free, slo=member, group=group, in_groups={"web": Slo(max_iops=max_iops)})
    assert row.verdict is Verdict.NO_MECHANISM
    assert status.groups[0].verdict is verdict
    if verdict is Verdict.NO_MECHANISM:
        assert status.groups[0].reason == "above its maximum, web: it is served without latency"


def test_vm_of_a_group_at_its_own_maximum_says_so() -> None:
    member, group = (
        replace(resolved(max_iops=100.0), group_name="shop"),
        SloGroup("shop", {"max_iops": 5e3}),
    )
    _, row = build(slo=member, group=group, in_groups={"web": Slo(max_iops=100.0)})
    assert (row.verdict, row.reason) == (Verdict.CAPPED, "at its maximum of 100 IOPS")


@pytest.mark.parametrize(
    ("iops", "highest_iops", "verdict"),
    [
        (5000.0, 1000.0, Verdict.UNAPPLIED),
        (5000.0, 4000.0, Verdict.CAPPED),
        (5000.0, None, Verdict.CAPPED),
        (1100.0, 1000.0, Verdict.CAPPED),
    ],
)
@pytest.mark.parametrize("group", [None, SloGroup("shop", {"max_iops": 3000.0})])
def test_a_limit_without_effect_is_not_taken_for_one_that_is_kept(
    iops: float, highest_iops: float | None, verdict: Verdict, group: SloGroup | None
) -> None:
    """A VM at 31,519 IOPS was `capped: at its maximum of 1,000 IOPS`."""
    window = WINDOW._replace(iops=iops)
    got = GOT._replace(window=window, maximum_slack_iops=20.0, highest_maximum_iops=highest_iops)
    device = replace(SSD, kind="block", vms={"web": got})
    if group is None:
        _, row = build(device, slo=resolved(max_iops=1000.0))
    else:
        part = {"web": Slo(max_iops=1000.0)}
        _, row = build(device, slo=replace(resolved(), group_name="shop"), group=group, in_groups=part)
    assert row.verdict is verdict
    if verdict is Verdict.UNAPPLIED:
        of = "maximum of" if group is None else "part of the maximum of group shop,"
        assert row.reason == f"5,000 IOPS, above its {of} 1,000: the limit is set, but has no effect"


def test_a_group_without_vms_is_idle() -> None:
    (group,) = build(group=SloGroup("shop", {"min_iops": 5.0}))[0].groups
    assert (group.vms, group.verdict, group.reason) == (
        (),
        Verdict.IDLE,
        "no VM of the group is on this host",
    )


def test_configured_but_missing_vm_is_unknown() -> None:
    status, _ = build(sources={"gone": "config a.toml:3", "web": "`vm set`"})
    assert [(row.vm, row.verdict) for row in status.vms] == [
        ("gone", Verdict.UNKNOWN_VM),
        ("web", Verdict.OK),
    ]
    assert "config a.toml:3" in status.vms[0].reason


def test_unapplied_settings_are_shown_on_their_device() -> None:
    setting = Setting(Knob(Lever.FTL_LIMIT, "ssd0/n1", "total_iops"), 5.0, "web", "its maximum")
    outcome = Outcome(setting, OutcomeState.UNAPPLIED, None, None, "refused")
    _, row = build(outcomes=(outcome, replace(outcome, state=OutcomeState.APPLIED)))
    assert (row.verdict, row.unapplied) == (Verdict.UNAPPLIED, (outcome,))
    elsewhere = replace(outcome, setting=replace(setting, knob=replace(setting.knob, place="ssd1/n1")))
    assert build(outcomes=(elsewhere,))[1].verdict is Verdict.OK


@pytest.mark.parametrize(
    ("lever", "name", "device", "shown_on"),
    [
        (Lever.CGROUP_LIMIT, "read_iops", "8:16", ["sdb"]),
        (Lever.SYSTEMD_PROPERTY, "latency_us", "8:0", ["sda"]),
        (Lever.LIBVIRT_LIMIT, "total_iops", "vdb,vdc", ["sdb"]),
        (Lever.LIBVIRT_LIMIT, "read_iops", "8:0", ["sda"]),
        (Lever.LATENCY_HISTOGRAM, "histogram", "vda", ["sda"]),
        (Lever.CGROUP_WEIGHT, "bfq_weight", "", ["sda", "sdb"]),
        (Lever.LIBVIRT_LIMIT, "total_iops", "vdz", ["sda", "sdb"]),
    ],
)
def test_unapplied_settings_are_shown_on_their_block_device(
    lever: Lever, name: str, device: str, shown_on: list[str]
) -> None:
    """A limit that could not be applied was shown on all block devices of the VM."""
    setting = Setting(Knob(lever, "place", name, device), 5.0, "web", "its maximum")
    outcome = Outcome(setting, OutcomeState.UNAPPLIED, None, None, "refused")
    views = [
        DeviceView(name, "block", "", "", 10.0, vms={"web": GOT._replace(disks=disks)})
        for name, disks in (("sda", ("vda",)), ("sdb", ("vdb", "vdc")))
    ]
    slos = EpochSlos({"web": resolved()}, {}, {})
    status = status_of(HOST, views, [WEB], slos, (outcome,), {}, {}, NUMBERS, StatusRows())
    assert [row.device for row in status.vms if row.verdict is Verdict.UNAPPLIED] == shown_on


def test_row_is_made_again_only_after_a_change_of_what_it_shows() -> None:
    made, slo = StatusRows(), resolved()
    _, first = build(slo=slo, made=made)
    assert build(slo=slo, made=made)[1] is first
    setting = Setting(Knob(Lever.FTL_LIMIT, "ssd0/n1", "total_iops"), 5.0, "web", "its maximum")
    outcome = Outcome(setting, OutcomeState.UNAPPLIED, None, None, "refused")
    changes: list[dict[str, Any]] = [
        {"vm": replace(WEB, state=VmState.PAUSED)},
        {"slo": resolved(weight=2.0)},
        {"slo": resolved("metadata")},
        {"outcomes": (outcome,)},
        {"in_groups": {"web": Slo(max_iops=7.0)}},
        {"device": replace(SSD, problem="not served")},
        {"device": replace(SSD, backend="shared OPS")},
        {"device": replace(SSD, vms={"web": GOT._replace(share=0.25)})},
        {"device": replace(SSD, vms={"web": GOT._replace(window=WINDOW._replace(iops=50.0))})},
        {"device": replace(SSD, name="ssd1")},
    ]
    for change in changes:
        _, row = build(**{"slo": slo, "made": made, **change})
        assert row == build(**{"slo": slo, **change})[1] != first
        _, back = build(slo=slo, made=made)
        assert back == first


def test_minimums_above_the_capacity_are_reported() -> None:
    crowded = replace(SSD, capacity_iops=150.0, sum_min_iops=200.0)
    assert build(crowded)[0].devices[0].overcommitted
    assert not build(replace(crowded, capacity_iops=None))[0].devices[0].overcommitted


def test_vm_on_a_shared_drive_has_rates_of_its_namespace_and_share_of_the_drive() -> None:
    """The row has the VM's rates on that namespace; share and minimum refer to the drive."""
    on_two = GOT._replace(
        share=0.4, target_share=0.4, drive_iops=200.0, of_drive=True, remark="limited to 200 IOPS"
    )
    device = DeviceView("fast-n1", "block", "", "", 10.0, 150.0, vms={"web": on_two})
    _, row = build(device, slo=resolved(weight=4.0, min_iops=190.0))
    assert (row.verdict, row.iops, row.share) == (Verdict.OK, 100.0, 0.4)
    assert row.reason == "200 IOPS, minimum 190; limited to 200 IOPS"
    _, row = build(device, slo=resolved(weight=4.0))
    assert row.reason == "40.0% of the drive's IOPS, target 40.0%; limited to 200 IOPS"
    alone = replace(device, vms={"web": on_two._replace(drive_iops=None, share=0.2)})
    _, row = build(alone, slo=resolved(weight=4.0))
    assert (row.verdict, row.share) == (Verdict.INSUFFICIENT, 0.2)
    assert "20.0% of the drive's IOPS, below the 40.0% that it is entitled to" in row.reason
