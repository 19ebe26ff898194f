"""Latencies of disks: libvirt's statistics, QEMU's histograms, and percentiles of them."""

from __future__ import annotations

from bisect import bisect_right
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.host.disk_latency import (
    BOUNDARIES_NS,
    LatencyWatch,
    MonitorError,
    block_statistics,
    has_histogram,
    latencies_of_stats,
    latency_of_blockstats,
)
from slo_ctl.model.host import DiskLatency, LatencyCounts
from slo_ctl.model.sample import VmSample
from slo_ctl.observe.block import LatencyWindow, latency_increase, p99_of, sum_latencies

BOUNDS_S = tuple(boundary / 1e9 for boundary in BOUNDARIES_NS)
WINDOW_S = 10.0


def counted(latencies_s: list[float], bounds_s: tuple[float, ...] = BOUNDS_S) -> LatencyCounts:
    counts = [0] * (len(bounds_s) + 1)
    for latency_s in latencies_s:
        counts[bisect_right(bounds_s, latency_s)] += 1
    return LatencyCounts(bounds_s, tuple(counts), sum(latencies_s))


def disk(latencies_s: list[float], bounds_s: tuple[float, ...] = BOUNDS_S) -> DiskLatency:
    return DiskLatency(counted([], bounds_s), counted(latencies_s, bounds_s))


@given(st.lists(st.floats(1e-5, 9.0), min_size=1, max_size=300))
def test_p99_is_within_a_third_of_the_true_one(latencies_s: list[float]) -> None:
    found = p99_of(counted(latencies_s))
    rank = max(1, -(-99 * len(latencies_s) // 100))
    true_s = sorted(latencies_s)[rank - 1]
    assert found is not None
    assert true_s / 1.34 <= found <= true_s * 1.34


def test_requests_beyond_the_last_bucket_count_in_it() -> None:
    assert p99_of(counted([60.0])) == 10.0
    assert p99_of(counted([])) is None
    assert p99_of(LatencyCounts((), (5,), 1.0)) is None


def test_bounds_ascend_and_include_those_of_the_metrics() -> None:
    assert sorted(set(BOUNDARIES_NS)) == list(BOUNDARIES_NS)
    assert {50_000, 2_500_000, 10**10} <= set(BOUNDARIES_NS)


def test_disks_with_different_bounds_have_a_mean_only() -> None:
    both = sum_latencies([counted([0.5]), counted([0.25], (1.0,))])
    assert both == LatencyCounts((), (2,), 0.75)
    assert sum(sum_latencies([counted([0.5]), counted([0.25])]).counts) == 2


def test_reset_histogram_is_not_subtracted() -> None:
    assert latency_increase(counted([1.0]), counted([0.5])) is None
    assert latency_increase(counted([1.0]), counted([1.0], (1.0,))) is None
    assert latency_increase(counted([1.0]), counted([1.0, 2.0])) == counted([2.0])


def window_of(latency: LatencyWindow) -> VmSample:
    return latency.add_to(VmSample("web", WINDOW_S, iops=7.0))


def test_only_the_window_counts_for_p99_and_everything_for_the_totals() -> None:
    latency = LatencyWindow(WINDOW_S)
    slow, all_of_them = [1.0] * 100, [1.0] * 100
    latency.add(0.0, [disk(slow)])
    for second in range(1, 31):
        all_of_them = [*all_of_them, *[0.001] * 10]
        latency.add(float(second), [disk(all_of_them)])
    found = window_of(latency)
    assert found.p99_write_us == pytest.approx(1000, rel=0.34)
    assert found.p99_read_us is None
    assert found.totals.write_latency is not None
    assert sum(found.totals.write_latency.counts) == 300, "what was before the first reading is not ours"
    assert found.iops == 7.0
    assert found.guest_iops == pytest.approx(10.0)
    uncounted = latency.add_to(VmSample("web", 0.0))
    assert uncounted.iops == pytest.approx(10.0)


def test_stale_reading_is_dropped() -> None:
    latency = LatencyWindow(WINDOW_S)
    last = disk([0.1] * 9)
    latency.add(0.0, [disk([])])
    latency.add(1.0, [last])
    latency.add(2.0, [last])
    assert window_of(latency).p99_write_us is not None
    latency.add(12.0, [last])
    stale = window_of(latency)
    assert stale.p99_write_us is None
    assert stale.totals.write_latency is not None, "a counter of an idle VM does not disappear"
    assert sum(stale.totals.write_latency.counts) == 9
    latency.add(13.0, [disk([0.1] * 10)])
    latency.add(14.0, [disk([0.1] * 11)])
    assert window_of(latency).p99_write_us is not None


def test_what_a_disk_did_before_it_was_on_the_device_does_not_count() -> None:
    """A disk that libvirt had copied to the device came with all requests since the start of the VM."""
    latency = LatencyWindow(WINDOW_S)
    moved = [1.0] * 1000
    latency.add(0.0, [disk([])])
    latency.add(1.0, [disk([0.001] * 10)])
    latency.add(2.0, [disk([0.001] * 20), disk(moved)])
    latency.add(3.0, [disk([0.001] * 30), disk([*moved, 0.001])])
    found = window_of(latency)
    assert found.p99_write_us == pytest.approx(1000, rel=0.34)
    assert found.guest_iops == pytest.approx(11.0)


def stats_of(number: int, name: str, requests: int, times_ns: int) -> dict[str, Any]:
    sides = {"rd.reqs": 0, "rd.times": 0, "wr.reqs": requests, "wr.times": times_ns, "name": name}
    return {f"block.{number}.{key}": value for key, value in sides.items()}


def test_libvirt_statistics_without_histograms_give_means() -> None:
    found = latencies_of_stats({"block.count": 2, **stats_of(0, "vda", 4, 10**9), "block.1.name": "hda"})
    assert found == {"vda": DiskLatency(LatencyCounts((), (0,), 0.0), LatencyCounts((), (4,), 1.0))}
    assert not has_histogram(found["vda"])
    assert latencies_of_stats({}) == {}


def test_statistics_with_histograms_as_libvirt_12_1_documents_them() -> None:
    """That version of libvirt is not installed here."""
    stats = {"block.count": 1, **stats_of(0, "vda", 6, 10**9)}
    for number, (start, value) in enumerate([(0, 1), (1000, 2), (10**6, 3)]):
        prefix = f"block.0.latency_histogram.write.bin.{number}"
        stats |= {f"{prefix}.start": start, f"{prefix}.value": value}
    found = latencies_of_stats({**stats, "block.0.latency_histogram.write.bin.count": 3})
    assert found["vda"].writes == LatencyCounts((1e-6, 1e-3), (1, 2, 3), 1.0)
    assert has_histogram(found["vda"])


@pytest.mark.parametrize(
    "stats",
    [
        {},
        {"rd_total_time_ns": 1},
        {"rd_total_time_ns": 1, "rd_latency_histogram": 3},
        {"rd_total_time_ns": 1, "rd_latency_histogram": {"bins": ["x"], "boundaries": []}},
    ],
)
def test_statistics_that_qemu_does_not_document_are_refused(stats: dict[str, Any]) -> None:
    with pytest.raises(MonitorError, match="query-blockstats: "):
        latency_of_blockstats({"stats": stats})


@pytest.mark.parametrize(
    "reply",
    [
        "no JSON",
        "[" * 100_000,
        "9" * 5000,
        "null",
        '{"error": 1}',
        '{"return": 1}',
        '{"return": [1]}',
        '{"return": [{"qdev": "disk0", "stats": 1}]}',
        '{"return": [{"qdev": "disk0", "stats": {"rd_total_time_ns": 1, "rd_operations": Infinity}}]}',
        '{"return": [{"qdev": "disk0", "stats": {"rd_operations": 1, "rd_total_time_ns": %s}}]}'
        % ("9" * 400),
    ],
)
def test_no_reply_of_a_monitor_ends_the_reading(reply: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all VMs: of one whose QEMU had been taken over, it ended the thread, or the epoch."""

    class Disk:
        def XMLDesc(self, _flags: int) -> str:  # noqa: N802 - libvirt's name
            disk = "<disk><alias name='disk0'/><target dev='vda'/></disk>"
            return f"<domain><devices>{disk}</devices></domain>"

    module = SimpleNamespace(qemuMonitorCommand=lambda *_: reply)
    monkeypatch.setattr("slo_ctl.host.disk_latency.import_module", lambda _name: module)
    with pytest.raises(MonitorError):
        list(map(latency_of_blockstats, block_statistics(Disk()).values()))


class BusyHost:
    """libvirt's module, connection and only domain, with bulk statistics that change."""

    libvirtError = OSError  # noqa: N815 - the name in libvirt
    VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT = VIR_DOMAIN_STATS_BLOCK = 1

    def __init__(self) -> None:
        self.stats: dict[str, Any] = {}

    def lookupByUUIDString(self, _uuid: str) -> BusyHost:  # noqa: N802 - libvirt's name
        return self

    def UUIDString(self) -> str:  # noqa: N802 - libvirt's name
        return "web"

    def domainListGetStats(self, domains: list[BusyHost], *_: int) -> Any:  # noqa: N802 - libvirt's name
        return [(domain, self.stats) for domain in domains]

    def XMLDesc(self, _flags: int) -> str:  # noqa: N802 - libvirt's name
        raise OSError("busy")


@pytest.mark.parametrize("monitor", [False, True])
def test_a_vm_that_is_busy_keeps_its_last_latencies(monitor: bool) -> None:
    """libvirt then names its disks without statistics: the window and the totals of the VM began anew."""
    host, watch = BusyHost(), LatencyWatch("test:///default", monitor=monitor)
    watch._uuids = frozenset({"web"})
    named = {"block.count": 1, "block.0.name": "vda"}
    histogram = {
        f"block.0.latency_histogram.{kind}.bin.{key}": value
        for kind in ("read", "write")
        for key, value in (("count", 2), ("0.start", 0), ("0.value", 3), ("1.start", 9), ("1.value", 4))
    }
    times = {f"block.0.{kind}.{key}": 7 for kind in ("rd", "wr") for key in ("reqs", "times")}
    host.stats = named | times | histogram
    watch._latest = before = watch._read(host, host)
    assert before["web"]["vda"].reads.counts == (3, 4)
    for host.stats in (named, named | times if monitor else named):
        assert watch._read(host, host) == before
