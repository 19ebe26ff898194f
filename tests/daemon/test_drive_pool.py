"""VMs on namespaces of one drive, with the daemon's own modules: counters in, limits out. Simulated."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import cast

import pytest

from slo_ctl.daemon.block import ManagedBlock, Pool
from slo_ctl.model.host import DeviceNumber, DiskLatency, IoCounters, LatencyCounts, Stream
from slo_ctl.model.sample import VmSample
from slo_ctl.model.slo import Slo
from slo_ctl.observe.block import BlockDevice

_DRIVE_IOPS = 1000.0
_BOUNDS_S = tuple(0.001 * 1.25**step for step in range(40))


@dataclass
class Namespace:
    """The part of ManagedBlock that a pool uses."""

    device: BlockDevice
    idle: bool = False

    @property
    def name(self) -> str:
        return f"fast-n{self.device.number.minor}"

    @property
    def number(self) -> DeviceNumber:
        return self.device.number

    @property
    def windows(self) -> dict[str, VmSample]:
        return self.device.windows

    @property
    def active(self) -> set[str]:
        return {vm for vm, window in self.windows.items() if window.iops}

    @property
    def has_demand(self) -> bool:
        return not self.idle

    def wants_more(self, vm: str) -> bool | None:
        del vm
        return None

    def is_busy_for(self, vm: str, *, protected: bool) -> bool:
        del vm, protected
        return not self.idle


@dataclass
class Host:
    """VMs that share a drive in proportion to their outstanding requests on each namespace; 1 s steps."""

    queues: dict[tuple[str, int], float]
    """Outstanding requests by VM and namespace."""
    slos: dict[str, Slo]
    weighted: set[str]
    now_s: float = 0.0
    done: dict[tuple[str, int], float] = field(default_factory=dict)
    rates: dict[tuple[str, int], float] = field(default_factory=dict)
    unlimitable: set[str] = field(default_factory=set)
    epochs_to_apply: int = 1
    second: int = 0
    in_force: dict[tuple[str, int], float] = field(default_factory=dict)
    latencies: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    """Latency histogram, if latencies of VMs are measured."""

    def __post_init__(self) -> None:
        self.pool = Pool(lambda: self.now_s)
        self.devices = {
            minor: Namespace(BlockDevice(DeviceNumber(259, minor), clock=self._clock))
            for minor in {minor for _, minor in self.queues}
        }
        self.pool.devices = cast("tuple[ManagedBlock, ...]", tuple(self.devices.values()))

    def _clock(self) -> float:
        return self.now_s

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self._serve()
            self.now_s += 1.0
            streams = [
                Stream(vm, None, f"/{vm}", DeviceNumber(259, minor), IoCounters(reads=0, writes=round(done)))
                for (vm, minor), done in self.done.items()
            ]
            for minor, device in self.devices.items():
                device.device.update(streams, self._latencies_on(minor))
            numbers = {stream.device for stream in streams}
            by_device = {number: [each for each in streams if each.device == number] for number in numbers}
            self.pool.observe(by_device, {})
            self.second += 1
            self.decide()

    def decide(self) -> None:
        limitable = {(vm, device.name) for vm in self.slos for device in self.devices.values()} - {
            (vm, device.name) for vm in self.unlimitable for device in self.devices.values()
        }
        self.pool.protect(self.slos, limitable, self.weighted, self._unapplied())

    def _latencies_on(self, minor: int) -> dict[str, list[DiskLatency]]:
        """Each request takes the mean time, from Little's law."""
        found = {}
        for (vm, on), counts in self.latencies.items():
            if on == minor:
                latency_s = self.queues[vm, on] / self.rates[vm, on]
                counts[bisect_right(_BOUNDS_S, latency_s)] += round(self.rates[vm, on])
                nothing = LatencyCounts(_BOUNDS_S, (0,) * len(counts), 0.0)
                found[vm] = [DiskLatency(nothing, LatencyCounts(_BOUNDS_S, tuple(counts), 0.0))]
        return found

    def measure_latencies(self, vm: str, minor: int) -> None:
        self.latencies[vm, minor] = [0] * (len(_BOUNDS_S) + 1)

    def _unapplied(self) -> set[str]:
        """Limits are in force after this many epochs."""
        wanted = {
            (vm, number.minor): held.iops for (vm, number), held in self.pool.throttler.throttles.items()
        }
        if self.second % self.epochs_to_apply == 0:
            self.in_force = wanted
        differ = {vm for vm, minor in wanted if wanted[vm, minor] != self.in_force.get((vm, minor))}
        return differ if self.epochs_to_apply > 1 else set()

    def _serve(self) -> None:
        limits = {
            (vm, number.minor): held.iops for (vm, number), held in self.pool.throttler.throttles.items()
        }
        if self.epochs_to_apply > 1:
            limits = self.in_force
        left, rest = _DRIVE_IOPS, {key: queue for key, queue in self.queues.items() if queue}
        self.rates = dict.fromkeys(self.queues, 0.0)
        while rest:
            whole = sum(rest.values())
            full = [key for key in rest if limits.get(key, 1e9) <= left * rest[key] / whole]
            if not full:
                self.rates |= {key: left * queue / whole for key, queue in rest.items()}
                break
            for key in full:
                self.rates[key] = limits[key]
                left -= limits[key]
                del rest[key]
        for key, rate in self.rates.items():
            self.done[key] = self.done.get(key, 0.0) + rate

    def iops(self, vm: str) -> float:
        return sum(rate for (name, _), rate in self.rates.items() if name == vm)


def three(**slos: Slo) -> Host:
    return Host({(vm, minor + 1): 16.0 for minor, vm in enumerate(slos)}, slos, set(slos))


def test_dry_run_reports_that_limits_are_found_by_trying() -> None:
    host = three(a=Slo(1), b=Slo(3, min_iops=200))
    host.run(3)
    assert host.pool.unplanned_limits(host.slos, {"a"}) == (
        "to keep a minimum for b and shares by weight between namespaces of the drive, others would be "
        "throttled; a dry run cannot determine by how much"
    )
    assert host.pool.unplanned_limits(host.slos, ()).startswith("to keep a minimum for b, others")
    assert host.pool.unplanned_limits({"a": Slo(1), "b": Slo(3)}, ()) == ""


def test_p99_is_kept_by_limits_where_latencies_are_measured() -> None:
    slos = {"a": Slo(p99_latency_us=12e3), "b": Slo(), "c": Slo()}
    host = Host({("a", 1): 4.0, ("b", 1): 32.0, ("c", 2): 32.0}, slos, set())
    host.run(30)
    assert not host.pool.throttler.throttles
    assert host.iops("a") < 100
    host.measure_latencies("a", 1)
    host.run(5)
    assert host.pool.unplanned_limits(slos, ()).startswith("to keep the p99 of a, others would be throttled")
    host.run(200)
    p99_us = host.pool.p99s_us["a"]
    assert p99_us <= 1.03 * 12e3
    # 4 requests outstanding at 12 ms are 333 IOPS; the others get most of the rest.
    assert host.iops("b") + host.iops("c") >= 0.75 * (_DRIVE_IOPS - 333)
    assert host.pool.throttler.remark("b").startswith("limited to")
    assert "for a" in host.pool.throttler.remark("b")


def test_limits_for_a_p99_are_lifted_when_vm_set_starts_epochs_at_once() -> None:
    slos = {"a": Slo(p99_latency_us=12e3), "b": Slo(), "c": Slo()}
    host = Host({("a", 1): 4.0, ("b", 1): 32.0, ("c", 2): 32.0}, slos, set())
    host.measure_latencies("a", 1)
    host.run(100)
    assert host.pool.throttler.throttles
    slos["a"] = Slo(p99_latency_us=100e6)
    for _ in range(15):
        host.now_s += 0.005
        host.decide()
        host.run(2)
    # Without these epochs it takes 64 s.
    host.run(60)
    assert not host.pool.throttler.throttles


def test_weights_between_namespaces_are_enforced_by_limits_and_reported() -> None:
    host = three(a=Slo(1), b=Slo(3), c=Slo(6))
    host.run(40)
    assert [host.iops(vm) for vm in "abc"] == [pytest.approx(each, rel=0.05) for each in (100, 300, 600)]
    assert {vm for vm, _ in host.pool.throttler.throttles} == {"a", "b"}
    assert host.pool.throttler.remark("a") == "limited to 100 IOPS for c"
    assert host.pool.throttler.reasons({"a"}) == ("a is limited to 100 IOPS for c",)
    assert host.pool.throttler.reasons({"c"}) == ()
    host.pool.slos = host.slos
    total = host.pool.share_total(host.pool.devices[0])
    assert total.of_drive
    assert total.iops == pytest.approx(1000, rel=0.01)
    assert total.shares["c"] == pytest.approx(0.6)
    assert host.pool.capacity.iops == pytest.approx(1000, rel=0.01)


def test_no_limits_without_configured_weights() -> None:
    host = three(a=Slo(), b=Slo(), c=Slo())
    host.weighted = set()
    host.queues["a", 1] = 200.0
    host.run(30)
    assert not host.pool.throttler.by_weight
    assert host.pool.throttler.throttles == {}
    host.pool.slos = host.slos
    assert host.pool.share_total(host.pool.devices[0]).shares == {"a": 1.0}
    # Equal weights that the operator set are enforced like any others.
    host.weighted = {"b"}
    host.run(40)
    assert host.iops("b") == pytest.approx(333, rel=0.06)


def test_weights_on_one_namespace_are_left_to_the_kernel() -> None:
    host = Host(
        {("a", 1): 16.0, ("b", 1): 16.0, ("c", 2): 0.0}, {"a": Slo(1), "b": Slo(3), "c": Slo(9)}, {"b"}
    )
    host.run(30)
    assert not host.pool.throttler.by_weight
    assert host.pool.throttler.throttles == {}
    host.queues["c", 2] = 16.0
    host.run(40)
    assert host.iops("c") == pytest.approx(9 / 13 * 1000, rel=0.06)
    # Absent for a whole status window: all settings are restored.
    host.queues["c", 2] = 0.0
    host.run(13)
    assert not host.pool.throttler.by_weight
    assert host.pool.throttler.throttles == {}


def test_slow_limits_are_waited_for() -> None:
    """On a slow host systemd answers after the epoch: until in force, limits must not count as useless."""
    host = three(a=Slo(1), b=Slo(3))
    host.epochs_to_apply = 5
    host.run(150)
    assert [host.iops(vm) for vm in "ab"] == [pytest.approx(each, rel=0.1) for each in (250, 750)]


def test_wait_for_a_limit_never_in_force_ends() -> None:
    host = three(a=Slo(1), b=Slo(3))
    host.epochs_to_apply = 10**6
    host.run(10)
    (first,) = host.pool.throttler.throttles.values()
    assert first.iops > 250
    host.run(20)
    # Decisions continue: it is limited further, but not below its entitlement.
    (held,) = host.pool.throttler.throttles.values()
    assert held.iops == pytest.approx(250)


def test_a_minimum_is_kept_against_vms_on_other_namespaces() -> None:
    host = three(web=Slo(min_iops=450), x=Slo(), y=Slo())
    host.weighted = set()
    host.run(40)
    assert host.iops("web") >= 450
    assert not host.pool.throttler.by_weight
    assert {throttle.protected_vms for throttle in host.pool.throttler.throttles.values()} == {("web",)}


def test_a_vm_on_two_namespaces_counts_once_and_its_limit_is_divided() -> None:
    host = Host(
        {("a", 1): 30.0, ("a", 2): 10.0, ("b", 3): 10.0}, {"a": Slo(1), "b": Slo(4, min_iops=10)}, {"b"}
    )
    host.run(40)
    assert host.iops("b") == pytest.approx(800, rel=0.05)
    held = {number.minor: each for (vm, number), each in host.pool.throttler.throttles.items() if vm == "a"}
    assert held[1].iops + held[2].iops == pytest.approx(200, rel=0.1)
    assert held[1].iops == pytest.approx(3 * held[2].iops, rel=0.1)
    assert held[1].of_drive_iops == pytest.approx(200, rel=0.1)
    assert host.pool.uses_several("a")
    assert host.pool.iops_of("a") == pytest.approx(200, rel=0.2)
    # It moves all of its I/O to one namespace: its limit there is not below its entitlement there.
    host.queues["a", 1] = 0.0
    host.run(20)
    assert host.iops("a") == pytest.approx(200, rel=0.1)


def test_vm_that_cannot_be_limited_everywhere_is_not_limited() -> None:
    host = three(a=Slo(1), b=Slo(3), c=Slo(6))
    host.unlimitable = {"a"}
    host.run(30)
    assert all(vm != "a" for vm, _ in host.pool.throttler.throttles)
