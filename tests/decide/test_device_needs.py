"""VMs whose SLOs count for a device, and the time until a change counts."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.decide.scheduler import SETTLE_S, Needs, SettledNeeds, needs_on, settle, tenants_on, vms_on
from slo_ctl.model.host import DeviceNumber, Disk, FoundBy, IoCounters, Stream, Tenant, Vm, VmState
from slo_ctl.model.slo import Slo

HERE, THERE, UNMANAGED = DeviceNumber(8, 0), DeviceNumber(8, 16), DeviceNumber(8, 32)


def vm(name: str, *disks: DeviceNumber, state: VmState = VmState.RUNNING) -> Vm:
    found = tuple(Disk(f"vd{i}", "file", None, number) for i, number in enumerate(disks))
    return Vm(name, FoundBy.OPTION, state, disks=found)


def io(name: str, device: DeviceNumber | None, reads: int = 1, tenant: Tenant | None = None) -> Stream:
    return Stream(name, None, f"/{name}", device, IoCounters(reads=reads), tenant)


def test_vms_that_count_for_a_device() -> None:
    vms = [
        vm("disk", HERE),
        vm("off", HERE, state=VmState.SHUT_OFF),
        vm("elsewhere", THERE),
        vm("io"),
        vm("idle"),
        vm("nowhere"),
        vm("flash"),
        vm("logs"),
        vm("other"),
    ]
    streams = [
        io("io", HERE),
        # The counters of a cgroup list a device with zeros after a limit has been set there.
        io("idle", HERE, reads=0),
        # Of a disk that is not managed, such as a disk for logs.
        io("logs", UNMANAGED),
        io("other", THERE),
        io("flash", None, tenant=Tenant("ssd0", "a")),
    ]
    with_slo = {"idle", "nowhere", "flash", "elsewhere", "logs", "other"}
    managed = (HERE, THERE)
    assert vms_on(HERE, vms, streams, with_slo, managed) == ("disk", "idle", "io", "logs", "nowhere")
    assert vms_on(HERE, vms, streams, (), managed) == ("disk", "io")
    assert tenants_on("ssd0", streams) == ("flash",)
    assert tenants_on("ssd1", streams) == ()


def test_needs_come_from_vms_that_count() -> None:
    slos = {"a": Slo(1.0), "b": Slo(3.0, p99_latency_us=5000.0), "c": Slo(9.0, p99_latency_us=10.0)}
    assert needs_on(("a", "b", "gone"), slos) == Needs(weights=True, p99_target_us=5000.0)
    assert needs_on(("a",), slos) == Needs()


NEEDS = st.builds(Needs, st.booleans(), st.one_of(st.none(), st.sampled_from([1000.0, 5000.0, 20_000.0])))


def asks_at_least(one: Needs, other: Needs) -> bool:
    tight = other.p99_target_us is None or (
        one.p99_target_us is not None and one.p99_target_us <= other.p99_target_us
    )
    return tight and (one.weights or not other.weights)


@given(st.lists(st.tuples(NEEDS, st.floats(0.1, 30.0)), min_size=1, max_size=30))
def test_needs_rise_at_once_and_never_fall_early(steps: list[tuple[Needs, float]]) -> None:
    settled: SettledNeeds | None = None
    now_s, changes = 0.0, []
    for needs, pause_s in steps:
        now_s += pause_s
        before, settled = settled, settle(settled, needs, now_s)
        assert asks_at_least(settled.needs, needs)
        if before is not None and not asks_at_least(settled.needs, before.needs):
            changes.append(now_s)
    # However SLOs change: needs decrease at most once in SETTLE_S.
    assert all(later - earlier >= SETTLE_S for earlier, later in itertools.pairwise(changes))


def test_lower_need_takes_effect_after_a_delay() -> None:
    settled = settle(None, Needs(weights=True), 0.0)
    for now_s in (10.0, 30.0, 69.0):
        settled = settle(settled, Needs(), now_s)
        assert settled.needs.weights
    assert settle(settled, Needs(), 70.0) == SettledNeeds(Needs())
    again = settle(settled, Needs(weights=True), 69.5)
    assert settle(again, Needs(), 75.0).needs.weights
