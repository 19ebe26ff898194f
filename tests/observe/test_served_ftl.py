"""Samples of a served device, from replies of a control socket."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from slo_ctl.base.errors import ObserveGone
from slo_ctl.drives.plan import plan_device
from slo_ctl.drives.record import require_ssd
from slo_ctl.model.host import LatencyCounts
from slo_ctl.model.sample import TimingModel
from slo_ctl.model.slo import Slo
from slo_ctl.observe.ssd import ServedDevice

RECORD = require_ssd(
    plan_device("name=ssd0,preset=fast15,size=64MiB,op=25%", ("name=web,size=64MiB",)), "these tests"
)
HELD = RECORD.drive.held_blocks
KINDS = ("reads", "writes", "trims", "zeroes", "flushes")


class FakeServer:
    """Answers every command with `reply`, or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.output: dict[str, Any] = {}
        self.silent = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._clients: list[socket.socket] = []
        self.start()

    def start(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def stop(self) -> None:
        for one in (self._listener, *self._clients):
            one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._clients.clear()
        self.path.unlink()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self._clients.append(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client.makefile("rb") as lines:
                for _ in lines:
                    if not self.silent:
                        client.sendall(json.dumps({"ok": True, "v": 1, **self.output}).encode() + b"\n")
        except (OSError, ValueError):
            return


def stats(
    *, timed: bool = True, scale: float = 1.0, now_ns: int = 0, done: int = 0, **flash: int
) -> dict[str, Any]:
    names = ("host_page_writes", "host_page_reads", "unmapped_page_reads", "gc_page_writes", "victims")
    namespace: dict[str, Any] = {
        "name": "web",
        "size_bytes": 64 << 20,
        "weight": 3.0,
        "limit_iops": 500.0,
        "answered": {kind: {"requests": done, "bytes": done * 4096} for kind in KINDS},
        "flash": {name: flash.get(name, 0) for name in (*names, "victim_valid_pages")},
        "space": {"isolated": True, "logical_blocks": 100, "ops_blocks": 60, "min_ops_blocks": 30},
    }
    if timed:
        namespace["queue"] = {
            "completed": dict.fromkeys(KINDS, 0) | {"reads": done, "writes": done},
            "outstanding": 0,
            "read_bytes": done * 4096,
            "write_bytes": done * 4096,
            "throttled_ns": done * 1000,
            "latency_ns": done * 5000,
            "backlog_ns": now_ns // 2,
            "device_ns": now_ns // 4,
            "queued_ns": now_ns // 8,
        }
        namespace["recent"] = {"latency_us": {"read": {"p99": 300.0}, "write": {"p99": None}}}
        namespace["latency_histogram"] = {
            "read": {"counts": [done, 0, 1], "sum_us": 5000.0},
            "write": {"counts": [0, 0, 0], "sum_us": 0.0},
        }
    return {
        "scheduler": "wfq",
        "time_scale": scale if timed else None,
        "now_ns": now_ns if timed else None,
        "spare_blocks": 7,
        "latency_bounds_us": [100, 1000],
        "namespaces": [namespace],
    }


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeServer]:
    server = FakeServer(tmp_path / "control.sock")
    yield server
    server.stop()


class Clock:
    now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def device(server: FakeServer, clock: Clock | None = None) -> ServedDevice:
    return ServedDevice(server.path, RECORD, window_s=10.0, clock=clock or time.monotonic)


def test_window_of_a_timed_device_has_rates(server: FakeServer) -> None:
    served = device(server)
    server.output = stats(now_ns=10**9, done=100)
    assert served.sample({"web": "vm1"}).vms[0].window_s == 0.0
    server.output = stats(
        now_ns=3 * 10**9,
        done=300,
        host_page_writes=200,
        gc_page_writes=100,
        victims=4,
        victim_valid_pages=128,
    )
    sample = served.sample({"web": "vm1"})
    (vm,) = sample.vms
    assert (vm.vm, vm.window_s, vm.requests, vm.iops, vm.active) == ("vm1", 2.0, 400, 200.0, True)
    assert (vm.scheduler_weight, vm.limit_iops) == (3.0, 500.0)
    assert (vm.ops_blocks, vm.min_ops_blocks, vm.logical_blocks) == (60 - HELD, 30 - HELD, 100)
    assert vm.u == 128 / (4 * RECORD.drive.pages_per_block)
    assert (vm.waf, sample.spare_blocks, sample.timing.model) == (1.5, 7, TimingModel.FULL)
    window = served.windows["vm1"]
    assert (window.iops, window.waf) == (200.0, 1.5)
    assert (window.p99_read_us, window.p99_write_us, window.throttle_wait_us) == (300.0, None, 0.5)
    assert window.totals.read_latency == LatencyCounts((1e-4, 1e-3), (300, 0, 1), 5e-3)


def test_blocks_of_unallocated_capacity_are_not_spare(server: FakeServer) -> None:
    """A policy would distribute them as OPS, and no namespace could be added while the daemon runs."""
    for capacity, spare in ((1 << 20, 7), (4 << 20, 1), (100 << 20, 0)):
        output = stats()
        output["namespaces"][0]["size_bytes"] = 1 << 20
        server.output = {**output, "blocks": 8}
        served = ServedDevice(server.path, RECORD, capacity_bytes=capacity)
        assert served.sample().spare_blocks == spare


def test_log_blocks_are_clustered_and_one_is_reserved(server: FakeServer) -> None:
    hybrid = plan_device("name=h,size=64MiB,op=25%,dies=4,block=512KiB,mapping=fast,cluster=4", [])
    served = ServedDevice(server.path, hybrid)
    server.output = stats()
    served.sample()
    server.output = stats(now_ns=10**9, done=1, host_page_writes=512, victims=2, victim_valid_pages=256)
    sample = served.sample()
    assert sample.timing.pages_per_block == 512
    assert sample.vms[0].u == 256 / (2 * 512)
    assert (sample.vms[0].ops_blocks, sample.vms[0].min_ops_blocks) == (60 - 1, 30 - 1)
    assert served.windows["h/web"].ops_bytes == 59 * 2 << 20


def test_time_scale_gives_modelled_time(server: FakeServer) -> None:
    clock = Clock()
    served = device(server, clock)
    server.output = stats(scale=4.0)
    served.sample()
    clock.now_s += 8.0
    server.output = stats(scale=4.0, now_ns=2 * 10**9, done=100)
    (vm,) = served.sample().vms
    assert (vm.window_s, vm.iops, vm.limit_iops) == (2.0, 100.0, 500.0)
    window = served.windows["ssd0/web"]
    assert (window.window_s, window.iops, window.p99_read_us) == (2.0, 100.0, 75.0)


def test_window_without_latency_is_real_time(server: FakeServer) -> None:
    clock = Clock()
    served = device(server, clock)
    server.output = stats(timed=False)
    served.sample()
    clock.now_s += 2.0
    server.output = stats(timed=False, done=10)
    sample = served.sample()
    (vm,) = sample.vms
    assert sample.timing.model is TimingModel.NONE
    assert (vm.window_s, vm.requests, vm.iops, vm.outstanding) == (2.0, 50, 25.0, None)
    assert served.windows["ssd0/web"].p99_read_us is None


def test_namespace_without_vm_is_inactive(server: FakeServer) -> None:
    served = device(server)
    server.output = stats()
    served.sample()
    server.output = stats(now_ns=10**9, done=10)
    measured = served.sample()
    assert [(vm.vm, vm.active, vm.requests) for vm in measured.vms] == [("ssd0/web", True, 20)]
    assert [vm.active for vm in measured.with_slos({"other": Slo()}).vms] == [False]
    (vm,) = measured.with_slos({"ssd0/web": Slo(weight=9.0)}).vms
    assert (vm.active, vm.slo.weight) == (True, 9.0)


@pytest.mark.parametrize("reconnected", [False, True])
def test_restarted_server_gives_no_negative_window(server: FakeServer, reconnected: bool) -> None:
    served = device(server)
    server.output = stats(now_ns=9 * 10**9, done=1000, host_page_writes=1000)
    served.sample()
    if reconnected:
        server.stop()
        with pytest.raises(ObserveGone, match="does not answer"):
            served.sample()
        assert served.windows == {}
        server.start()
    server.output = stats(now_ns=10**9, done=10, host_page_writes=1010)
    (vm,) = served.sample().vms
    assert (vm.window_s, vm.requests, vm.host_page_writes) == (0.0, 0, 0)
    server.output = stats(now_ns=2 * 10**9, done=20, host_page_writes=1020)
    assert served.sample().vms[0].iops == 20.0


def test_hanging_server_is_not_queried_for_a_while(server: FakeServer) -> None:
    clock = Clock()
    served = device(server)
    served._clock = clock
    server.output, server.silent = stats(), True

    class Slow(Clock):
        def __call__(self) -> float:
            self.now_s += 1.0
            return self.now_s

    served._clock = Slow()
    with pytest.raises(ObserveGone, match="does not answer"):
        served.sample()
    clock.now_s = served._clock.now_s
    served._clock = clock
    with pytest.raises(ObserveGone, match="asked again later"):
        served.sample()
    clock.now_s += 60.0
    server.silent = False
    assert served.sample().vms[0].vm == "ssd0/web"


@pytest.mark.parametrize("lacking", ["time_scale", "namespaces", "spare_blocks"])
def test_server_of_another_version_is_refused(server: FakeServer, lacking: str) -> None:
    server.output = deepcopy(stats())
    del server.output[lacking]
    with pytest.raises(ObserveGone, match="another version"):
        device(server).sample()
