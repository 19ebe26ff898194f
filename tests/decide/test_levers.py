"""From SLOs to knobs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.decide.device_use import HostState
from slo_ctl.decide.levers import ManagedDevices, Throttle, Wanted, scale_weights, settings_for
from slo_ctl.decide.limit_split import Split, Splits
from slo_ctl.model.host import (
    BFQ,
    IO_COST,
    BlockCapability,
    Capabilities,
    DeviceNumber,
    Disk,
    FoundBy,
    IoCounters,
    Stream,
    Tenant,
    Vm,
    VmState,
)
from slo_ctl.model.setting import Knob, Lever, SettingValue
from slo_ctl.model.slo import Slo

FAST, OTHER = DeviceNumber(7, 0), DeviceNumber(8, 0)
DEVICES = {"fast": FAST}
PLAIN = Capabilities(1, {FAST: BlockCapability(FAST, "loop0", BFQ, True)})
NO_BFQ = Capabilities(1, {FAST: BlockCapability(FAST, "loop0", None, True, "loop0 has the scheduler none")})
NOTHING = Capabilities(None, {FAST: BlockCapability(FAST, "", None, False, "there is no cgroup tree")})


def group(name: str, parent: str = "/slo") -> Vm:
    return Vm(name, FoundBy.OPTION, cgroup=f"{parent}/{name}")


def domain(name: str, *disks: Disk, state: VmState = VmState.RUNNING) -> Vm:
    return Vm(name, FoundBy.LIBVIRT, state, f"uuid-{name}", 1, f"/machine/{name}", disks)


def disk(target: str, device: DeviceNumber | None = FAST, kind: str = "file") -> Disk:
    return Disk(target, kind, "/x", device)


def values(wanted: Wanted) -> dict[tuple[str, str, str], SettingValue]:
    return {(s.knob.place, s.knob.name, s.knob.device): s.value for s in wanted.settings}


def settings_of(
    vms: Sequence[Vm],
    slos: Mapping[str, Slo],
    streams: Sequence[Stream],
    devices: Mapping[str, DeviceNumber],
    capabilities: Capabilities,
    with_slo: Collection[str] | None = None,
    **more: Any,
) -> Wanted:
    """`settings_for`; by default every VM has its own SLO."""
    host = HostState(vms, streams, slos, slos if with_slo is None else with_slo)
    return settings_for(host, ManagedDevices(devices, capabilities, **more))


def test_limits_of_a_group_that_do_not_reach_its_processes_are_not_set() -> None:
    """On v1 they were set, and the VM was `capped`, while groups inside were not limited."""
    web = group("web")
    host = HostState([web], (), {"web": Slo(max_iops=500.0)}, {"web"}, inner_groups={"web": "/slo/web/a"})
    wanted = settings_for(host, ManagedDevices({"fast": FAST}, PLAIN))
    assert not [setting for setting in wanted.settings if setting.knob.lever is Lever.CGROUP_LIMIT]
    assert "/slo/web/a has processes" in wanted.no_mechanism["web", "fast"]
    assert not wanted.limitable


def decide(
    vms: list[Vm], slos: dict[str, Slo], capabilities: Capabilities = PLAIN, streams: tuple[Stream, ...] = ()
) -> Wanted:
    return settings_of(vms, slos, streams, DEVICES, capabilities)


@given(
    st.lists(st.floats(0.05, 20), min_size=1, max_size=30),
    st.sampled_from([(1, 1000), (10, 1000), (1, 10_000)]),
)
def test_proportions_are_kept(weights: list[float], bounds: tuple[int, int]) -> None:
    low, high = bounds
    scaled = scale_weights(weights, low, high)
    assert set(scaled.values) == set(weights)
    assert all(low <= value <= high for value in scaled.values.values())
    if len(set(weights)) > 1:
        top = scaled.values[max(weights)]
        assert high / 2 < top <= high
        for weight, value in scaled.values.items():
            assert value == pytest.approx(
                weight / max(weights) * top, rel=scaled.worst_rounding + 1e-9, abs=1e-9
            )
    # One step in the middle of the range is the coarsest rounding needed, except for clipped values.
    if min(weights) / max(weights) > 0.1 and low == 1:
        assert scaled.worst_rounding <= 0.5 / (high / 2 * min(weights) / max(weights)) + 1e-9


def test_simple_proportions_are_exact_and_near_the_top() -> None:
    scaled = scale_weights([1, 3, 6], 1, 1000)
    assert (scaled.values, scaled.worst_rounding) == ({1: 166, 3: 498, 6: 996}, 0)
    assert scale_weights([5, 5], 1, 1000).values == {5: 100}
    assert scale_weights([1, 10_000], 1, 1000).worst_rounding > 0.5


def test_scaling_needs_no_numpy() -> None:
    """It takes 12 MB of the daemon, a fifth, on hosts where nothing else needs it."""
    scale = "from slo_ctl.decide.levers import scale_weights; scale_weights([1, 20], 1, 1000, 1)"
    check = f"import sys; {scale}; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_the_default_weight_is_the_kernels_where_that_is_exact_enough() -> None:
    assert scale_weights([1, 3, 6], 1, 1000, 1).values == {1: 100, 3: 300, 6: 600}
    assert scale_weights([2, 3], 1, 1000, 2).values == {2: 100, 3: 150}
    # No range left above, or too coarse below.
    assert scale_weights([1, 11], 1, 1000, 1).values == {1: 90, 11: 990}
    assert scale_weights([1, 0.015], 1, 1000, 1).values != {1: 100, 0.015: 2}


@given(st.lists(st.floats(0.05, 20), min_size=2, max_size=10, unique=True), st.floats(0.1, 10))
def test_anchored_proportions_are_kept(weights: list[float], default: float) -> None:
    scaled = scale_weights(weights, 1, 1000, default)
    top = max(weights)
    for weight, value in scaled.values.items():
        exact = weight / top * scaled.values[top]
        assert abs(value - exact) <= max(0.011 * exact, scaled.worst_rounding * exact + 1e-6)


def test_weights_of_cgroups_are_set() -> None:
    wanted = decide(
        [group("a"), group("b"), group("c")], {"a": Slo(1), "b": Slo(3), "c": Slo(6), "gone": Slo(9)}
    )
    assert values(wanted) == {
        ("/slo/a", "weight", ""): 100,
        ("/slo/b", "weight", ""): 300,
        ("/slo/c", "weight", ""): 600,
    }
    assert {s.knob.lever for s in wanted.settings} == {Lever.CGROUP_WEIGHT}
    assert "rounding error of at most 0.00%" in wanted.settings[0].reason
    assert set(wanted.backends.values()) == {"cgroup v1 bfq"}
    assert not wanted.no_mechanism
    assert not wanted.notes


def test_a_vm_without_an_slo_is_left_alone() -> None:
    assert decide([group("a")], {}) == Wanted()


def test_io_cost_uses_its_own_knob() -> None:
    can = Capabilities(2, {FAST: BlockCapability(FAST, "nvme0n1", IO_COST, True)})
    wanted = decide([group("a"), group("b")], {"a": Slo(1), "b": Slo(2)}, can)
    assert values(wanted) == {("/slo/a", "cost_weight", ""): 100, ("/slo/b", "cost_weight", ""): 200}
    assert wanted.backends["a", "fast"] == "cgroup v2 io.cost"


def test_different_parent_cgroups_are_reported() -> None:
    (note,) = decide([group("a"), group("b", "/other")], {"a": Slo(1), "b": Slo(2)}).notes
    assert "/other, /slo" in note


def test_limits_of_a_group_are_on_reads_and_writes_and_add_up() -> None:
    slo = Slo(max_iops=500, max_bandwidth_bytes_s=1 << 20)
    splits = {("a", FAST): Splits(iops=Split(0.8))}
    wanted = settings_of([group("a")], {"a": slo}, (), DEVICES, PLAIN, splits=splits)
    assert values(wanted) == {
        ("/slo/a", "weight", ""): 100,
        ("/slo/a", "read_iops", "7:0"): 400,
        ("/slo/a", "write_iops", "7:0"): 100,
        ("/slo/a", "read_bytes_s", "7:0"): 1 << 19,
        ("/slo/a", "write_bytes_s", "7:0"): 1 << 19,
    }
    assert wanted.settings[1].reason == "max_iops 500, 80% of it for reads, by the measured mix"


def test_libvirt_limits_the_total_of_all_disks_on_the_device() -> None:
    vm = domain("web", disk("vda"), disk("vdb"), disk("vdc", OTHER), disk("vdd", None))
    wanted = decide([vm], {"web": Slo(max_iops=500)})
    assert values(wanted) == {
        ("uuid-web", "weight", ""): 100,
        ("uuid-web", "total_iops", "vda,vdb"): 500,
    }
    assert [s.knob.lever for s in wanted.settings] == [Lever.LIBVIRT_WEIGHT, Lever.LIBVIRT_LIMIT]
    assert wanted.settings[1].reason == "max_iops 500 over vda, vdb together"
    assert wanted.backends["web", "fast"] == "libvirt, cgroup v1 bfq"


def test_libvirt_without_a_known_disk_limits_the_device() -> None:
    stream = Stream("web", None, "/machine/web", FAST)
    wanted = decide([domain("web", disk("vda", None))], {"web": Slo(max_iops=5)}, PLAIN, (stream,))
    assert ("uuid-web", "read_iops", "7:0") in values(wanted)


def test_a_disk_on_a_volume_is_limited_by_qemu_where_one_managed_device_is_below_it() -> None:
    """The VM had limits for reads and for writes, and before any I/O it used no managed device."""
    volume, raid = DeviceNumber(253, 0), DeviceNumber(9, 0)
    both = Capabilities(1, PLAIN.devices | {OTHER: BlockCapability(OTHER, "sda", BFQ, True)})
    web = domain("web", Disk("vda", "block", "/dev/vg/a", volume, below=(FAST,)))
    wanted = settings_of([web], {"web": Slo(max_iops=500)}, (), {"fast": FAST, "other": OTHER}, both)
    assert values(wanted) == {("uuid-web", "weight", ""): 100, ("uuid-web", "total_iops", "vda"): 500}
    # The two managed devices may need different limits, but QEMU has one for the disk.
    web = domain("web", Disk("vda", "block", "/dev/md0", raid, below=(FAST, OTHER)))
    wanted = settings_of([web], {"web": Slo(max_iops=500)}, (), {"fast": FAST, "other": OTHER}, both)
    assert {(name, device) for _, name, device in values(wanted) if device} == {
        (name, device) for name in ("read_iops", "write_iops") for device in ("7:0", "8:0")
    }


def test_a_copy_of_a_disk_is_not_limited_by_the_maximum_of_its_vm() -> None:
    """A storage migration was slowed down to the maximum of the guest, which its disk keeps anyway."""
    copied = Disk("vda", "block", "/x", FAST, "/y", OTHER)
    web = domain("web", copied)
    streams = [
        Stream("web", disk, "/machine/web", device) for disk, device in ((copied, FAST), (None, OTHER))
    ]
    both = Capabilities(1, PLAIN.devices | {OTHER: BlockCapability(OTHER, "sda", BFQ, True)})
    slo = Slo(2, min_iops=1, max_iops=5, max_bandwidth_bytes_s=1e6, p99_latency_us=1e3)
    wanted = settings_of([web], {"web": slo}, streams, {"fast": FAST, "other": OTHER}, both)
    limits = [key for key in values(wanted) if key[1] != "weight"]
    assert limits == [("uuid-web", "total_iops", "vda"), ("uuid-web", "total_bytes_s", "vda")]
    assert ("web", "other") not in wanted.no_mechanism
    throttled = settings_of(
        *([web], {"web": slo}, streams, {"fast": FAST, "other": OTHER}, both),
        throttles={("web", OTHER): Throttle(40.0, ("db",))},
    )
    assert ("uuid-web", "read_iops", "8:0") in values(throttled), "it still makes room for the SLOs of others"


@pytest.mark.parametrize("state", [VmState.SHUT_OFF, VmState.CRASHED])
def test_stopped_vm_has_no_settings(state: VmState) -> None:
    assert decide([domain("web", disk("vda"), state=state)], {"web": Slo(max_iops=5)}) == Wanted()


def test_only_managed_devices_get_settings() -> None:
    assert decide([domain("web", disk("vda", OTHER))], {"web": Slo(3, max_iops=5)}) == Wanted()


STRANGER = Vm(
    "stranger", FoundBy.CGROUP_NAME, uuid="u", libvirt_id=7, cgroup="/machine/qemu-7-x.libvirt-qemu"
)
NAMED = {"web": Slo(3), "stranger": Slo()}


def stream_with(counters: IoCounters | None, device: DeviceNumber = FAST) -> Stream:
    return Stream("stranger", None, STRANGER.cgroup, device, counters)


def beside(stranger: Vm, *streams: Stream, slos: dict[str, Slo] | None = None) -> Wanted:
    return settings_of(
        [group("web"), stranger], slos or NAMED, streams, DEVICES, PLAIN, with_slo=frozenset({"web"})
    )


@pytest.mark.parametrize(
    "streams",
    [
        (),
        (stream_with(None),),
        (stream_with(IoCounters(reads=0, writes=0)),),
        (stream_with(IoCounters(reads=9), OTHER),),
    ],
)
def test_unconfigured_vm_without_io_is_never_touched(streams: tuple[Stream, ...]) -> None:
    wanted = beside(STRANGER, *streams)
    assert {s.vm for s in wanted.settings} == {"web"}
    assert ("stranger", "fast") not in wanted.backends
    greedy = beside(STRANGER, *streams, slos={"web": Slo(), "stranger": Slo(max_iops=5)})
    assert {s.vm for s in greedy.settings} == {"web"}


def test_unconfigured_vm_on_a_managed_device_gets_the_default_weight() -> None:
    wanted = beside(STRANGER, stream_with(IoCounters(reads=1)))
    assert values(wanted) == {("/slo/web", "weight", ""): 300, (STRANGER.cgroup, "weight", ""): 100}
    assert wanted.settings[1].reason.startswith("shares fast with VMs that have an SLO")


def test_no_settings_without_any_slo() -> None:
    stream = stream_with(IoCounters(reads=1))
    wanted = settings_of([STRANGER], NAMED, [stream], DEVICES, PLAIN, with_slo=frozenset())
    assert not wanted.settings
    assert wanted.backends == {("stranger", "fast"): "cgroup v1 bfq"}


def test_idle_disk_without_slo_is_shown_and_not_touched() -> None:
    vm = domain("stranger", disk("vda"))
    wanted = beside(vm)
    assert {s.vm for s in wanted.settings} == {"web"}
    assert wanted.backends["stranger", "fast"] == "libvirt, cgroup v1 bfq"
    named = settings_of([vm], NAMED, (), DEVICES, PLAIN, with_slo=frozenset({"stranger"}))
    assert {s.vm for s in named.settings} == {"stranger"}


def test_no_mechanism_only_for_slo_fields_in_use() -> None:
    stream = Stream("b", None, "/slo/b", FAST, IoCounters(reads=1))
    vms = [group("a"), Vm("b", FoundBy.CGROUP_NAME, cgroup="/slo/b")]
    slos = {"a": Slo(2), "b": Slo()}
    wanted = settings_of(vms, slos, [stream], DEVICES, NO_BFQ, with_slo=frozenset({"a"}))
    assert set(wanted.no_mechanism) == {("a", "fast")}


def test_minimum_is_enforced_by_throttling_others_if_possible() -> None:
    slos = {"a": Slo(min_iops=100), "b": Slo()}
    wanted = decide([group("a"), group("b")], slos)
    assert not wanted.no_mechanism
    assert wanted.limitable == {("a", "fast"): 10.0, ("b", "fast"): 10.0}
    unlimited = Capabilities(1, {FAST: BlockCapability(FAST, "loop0", BFQ, False)})
    reason = "min_iops 100: no other VM on fast can be throttled for it"
    assert decide([group("a"), group("b")], slos, unlimited).no_mechanism == {("a", "fast"): reason}
    others = Vm("b", FoundBy.LIBVIRT, VmState.RUNNING, "uuid-b", 1, "/m/b", (disk("vda", kind="vhostuser"),))
    wanted = decide([group("a"), others], slos)
    assert wanted.no_mechanism == {("a", "fast"): reason}
    assert wanted.limitable == {("a", "fast"): 10.0}


def test_throttled_vm_gets_the_tighter_limit() -> None:
    vms = [group("a"), domain("web", disk("vda"))]
    throttles = {("a", FAST): Throttle(300, ("x", "y")), ("web", FAST): Throttle(400, ("x",))}

    def limits(most: float | None) -> dict[tuple[str, str], SettingValue]:
        slos = {"a": Slo(max_iops=most), "web": Slo(max_iops=most)}
        wanted = settings_of(vms, slos, (), DEVICES, PLAIN, throttles=throttles)
        reasons = [s.reason for s in wanted.settings if "IOPS for x" in s.reason]
        assert len(reasons) == (0 if most == 200 else 3)
        return {(s.knob.place, s.knob.name): s.value for s in wanted.settings if "iops" in s.knob.name}

    throttled = {("/slo/a", "read_iops"): 150, ("/slo/a", "write_iops"): 150, ("uuid-web", "total_iops"): 400}
    assert limits(None) == throttled
    assert limits(1000) == throttled
    assert limits(200) == {
        ("/slo/a", "read_iops"): 100,
        ("/slo/a", "write_iops"): 100,
        ("uuid-web", "total_iops"): 200,
    }


def test_limits_of_the_kernel_act_in_steps_and_those_of_qemu_do_not() -> None:
    vms = [group("a"), domain("web", disk("vda")), group("b")]
    can = Capabilities(1, {FAST: BlockCapability(FAST, "loop0", BFQ, True, limit_step_iops=50.0)})
    writes = {("a", FAST): Splits(iops=Split(0.0)), ("b", FAST): Splits(iops=Split(0.0))}
    throttles = {("a", FAST): Throttle(130, ("b",)).rounded(50.0, 0.0), ("web", FAST): Throttle(130, ("b",))}
    slos = {"a": Slo(max_iops=1000), "web": Slo(), "b": Slo(max_iops=180)}
    wanted = settings_of(vms, slos, (), DEVICES, can, splits=writes, throttles=throttles)
    limits = {(s.vm, s.knob.name): s.value for s in wanted.settings if "iops" in s.knob.name}
    assert limits == {
        ("a", "read_iops"): 2,
        ("a", "write_iops"): 150,
        ("web", "total_iops"): 130,
        ("b", "read_iops"): 25,
        ("b", "write_iops"): 150,
    }
    assert wanted.granted_iops == {
        ("a", FAST): pytest.approx(150, rel=0.02),
        ("web", FAST): 130,
        ("b", FAST): pytest.approx(150, rel=0.02),
    }
    assert wanted.limitable == {("a", "fast"): 50.0, ("web", "fast"): 0.0, ("b", "fast"): 50.0}


def test_a_limit_is_not_rounded_below_the_vms_own_minimum() -> None:
    assert Throttle(123, ("b",)).rounded(10.0, 0.0).iops == 120
    assert Throttle(123, ("b",)).rounded(10.0, 121).iops == 130
    # A third of the limit on the drive has to meet a third of the minimum.
    assert Throttle(41, ("b",), 123).rounded(10.0, 120).iops == 40
    assert Throttle(41, ("b",), 123).rounded(10.0, 121).iops == 50


def test_latency_target_is_left_to_io_latency() -> None:
    slos = {"a": Slo(p99_latency_us=5000)}
    why = (
        "p99 5 ms: on fast latencies are not measured ([cgroup] or [libvirt] latency_histograms), "
        "nor is there io.latency"
    )
    assert decide([group("a")], slos).no_mechanism == {("a", "fast"): why}
    can = Capabilities(2, {FAST: BlockCapability(FAST, "nvme0n1", IO_COST, True, latency=True)})
    wanted = decide([group("a")], slos, can)
    assert not wanted.no_mechanism
    knob = Knob(Lever.CGROUP_LATENCY, "/slo/a", "latency_us", "7:0")
    assert [s.value for s in wanted.settings if s.knob == knob] == [5000]


def test_units_use_systemd_and_groups_inside_them_do_not() -> None:
    can = Capabilities(2, {FAST: BlockCapability(FAST, "nvme0n1", IO_COST, True, latency=True)}, systemd=True)
    slo = Slo(max_iops=100, p99_latency_us=5000)
    inside = Vm("in", FoundBy.OPTION, cgroup="/machine.slice/a.service/vm")
    unit = Vm("unit", FoundBy.OPTION, cgroup="/machine.slice/b.scope")
    libvirts = Vm(
        "lv", FoundBy.LIBVIRT, VmState.RUNNING, "uuid-lv", 1, "/machine.slice/c.scope", (disk("vda"),)
    )
    wanted = decide([inside, unit, libvirts], dict.fromkeys(("in", "unit", "lv"), slo), can)
    levers = {(s.vm, s.knob.name): s.knob.lever for s in wanted.settings}
    assert levers == {
        ("in", "cost_weight"): Lever.CGROUP_WEIGHT,
        ("in", "read_iops"): Lever.CGROUP_LIMIT,
        ("in", "write_iops"): Lever.CGROUP_LIMIT,
        ("in", "latency_us"): Lever.CGROUP_LATENCY,
        ("unit", "cost_weight"): Lever.SYSTEMD_PROPERTY,
        ("unit", "read_iops"): Lever.SYSTEMD_PROPERTY,
        ("unit", "write_iops"): Lever.SYSTEMD_PROPERTY,
        ("unit", "latency_us"): Lever.SYSTEMD_PROPERTY,
        ("lv", "cost_weight"): Lever.LIBVIRT_WEIGHT,
        ("lv", "total_iops"): Lever.LIBVIRT_LIMIT,
        # libvirt has no latency targets; its scopes are systemd's.
        ("lv", "latency_us"): Lever.SYSTEMD_PROPERTY,
    }
    assert wanted.backends["unit", "fast"] == "systemd, cgroup v2 io.cost"


def test_weights_without_bfq_have_no_mechanism() -> None:
    wanted = decide([group("a"), group("b")], {"a": Slo(1), "b": Slo(2)}, NO_BFQ)
    assert wanted.no_mechanism["b", "fast"] == ("nothing shares fast by weight: loop0 has the scheduler none")
    assert wanted.backends["a", "fast"] == "cgroup v1 limits"
    equal = decide([group("a"), group("b")], {"a": Slo(2), "b": Slo(2)}, NO_BFQ)
    assert not equal.no_mechanism


def test_vms_with_an_enforced_maximum_are_known() -> None:
    slos = {"a": Slo(1, max_iops=100), "b": Slo(2), "c": Slo(1, max_iops=100, p99_latency_us=1000)}
    wanted = decide([group(vm) for vm in slos], slos, NO_BFQ)
    assert wanted.maximum_slack == {("a", "fast"): 20.0}, "the p99 of c is not measured"
    assert decide([group("a")], {"a": slos["a"]}, NOTHING).maximum_slack == {}


def test_host_without_levers_has_no_mechanism() -> None:
    wanted = decide([group("a")], {"a": Slo(max_iops=5)}, NOTHING)
    assert not wanted.settings
    assert "there is no cgroup tree" in wanted.no_mechanism["a", "fast"]
    assert wanted.backends["a", "fast"] == "none"


def test_a_vhost_user_disk_cannot_be_limited() -> None:
    wanted = decide([domain("web", disk("vda", kind="vhostuser"))], {"web": Slo(max_iops=5)})
    assert "vda is not served by QEMU" in wanted.no_mechanism["web", "fast"]


def test_emulated_ssd_gets_only_the_bandwidth_limit() -> None:
    slo = Slo(3, max_iops=500, max_bandwidth_bytes_s=1000.0)
    streams = [
        Stream("web", None, None, None, tenant=Tenant("ssd0", "a")),
        Stream("web", None, None, None, tenant=Tenant("ssd0", "b")),
        Stream("web", None, None, None, tenant=Tenant("ssd1", "a")),
    ]
    wanted = decide([group("web")], {"web": slo}, PLAIN, tuple(streams))
    assert values(wanted) == {
        ("ssd0/a", "total_bytes_s", ""): 500,
        ("ssd0/b", "total_bytes_s", ""): 500,
        ("ssd1/a", "total_bytes_s", ""): 1000,
    }
    assert {s.knob.lever for s in wanted.settings} == {Lever.FTL_LIMIT}
    assert not wanted.backends


def test_cautions_are_reported_once() -> None:
    can = Capabilities(1, {FAST: BlockCapability(FAST, "loop0", BFQ, True, cautions=("beware",))})
    assert decide([group("a"), group("b")], {"a": Slo(1), "b": Slo(2)}, can).notes == ("beware",)


def test_no_cautions_about_shares_with_equal_weights() -> None:
    can = Capabilities(1, {FAST: BlockCapability(FAST, "loop0", BFQ, True, cautions=("beware",))})
    assert decide([group("a"), group("b")], {"a": Slo(2), "b": Slo(2)}, can).notes == ()


def test_limits_replace_weights_and_minimums_between_namespaces() -> None:
    one, two = DeviceNumber(259, 1), DeviceNumber(259, 2)
    can = {number: BlockCapability(number, "nvme", None, True, "no bfq") for number in (one, two)}
    vms = [domain("a", disk("vda", one)), domain("b", disk("vda", two))]
    slos = {"a": Slo(3, min_iops=100), "b": Slo(1)}
    devices = {"fast-n1": one, "fast-n2": two}

    able = Capabilities(2, can)
    drives = dict.fromkeys(devices, "nqn")

    def lacking() -> dict[tuple[str, str], str]:
        wanted = settings_of(vms, slos, (), devices, able, drives=drives, by_limits={"nqn"})
        return wanted.no_mechanism

    # Each has its own namespace: all weights are met, and the minimum is met at the expense of the other.
    assert lacking() == {}
    vms = [domain("a", disk("vda", one)), domain("b", disk("vda", two, kind="vhostuser"))]
    assert lacking() == {
        ("a", "fast-n1"): "nothing shares the drive of fast-n1 by weight: no other VM on it can be limited; "
        "min_iops 100: no other VM on fast-n1 can be throttled for it"
    }
