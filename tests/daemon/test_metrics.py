"""Metrics of a status."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from waiting import until

from slo_ctl import tool_version
from slo_ctl.base.errors import UserError
from slo_ctl.base.termination import Waker
from slo_ctl.config.settings import Config
from slo_ctl.daemon.controller import DaemonController, Published
from slo_ctl.daemon.files import DaemonPlaces
from slo_ctl.model.host import IoCounters, LatencyCounts
from slo_ctl.model.slo import Slo
from slo_ctl.model.status import DeviceStatus, HostStatus, Verdict, VmStatus
from slo_ctl.observe.block import sum_counters
from slo_ctl.record.metrics import Counts, Metrics
from slo_ctl.record.slo_store import SloStore

VMS = tuple(
    VmStatus(name, "ssd0", (), Slo(weight=3, min_iops=5), "", "", "", Verdict.IDLE, "", throttle_wait_us=2e3)
    for name in ("plain", 'has "quotes"\nand\\more')
)
ORDER = ("lever", "hook", "result", "vm", "device", "kind")
STATUS = HostStatus(1.0, 10.0, 1.0, 1, 1.0, "bad", (DeviceStatus("ssd0", "emulated", "", "", 10.0),), VMS)


def test_text_is_valid_for_prometheus() -> None:
    families = {f.name: f for f in text_string_to_metric_families(Metrics(lambda: STATUS).text().decode())}
    assert {s.labels["vm"] for s in families["slo_ctl_vm_weight"].samples} == {vm.vm for vm in VMS}
    assert families["slo_ctl_vm_throttle_wait_seconds"].samples[0].value == pytest.approx(0.002)
    assert families["slo_ctl_vm_iops"].samples == []
    assert families["slo_ctl_config_ok"].samples[0].value == 0
    assert sum(s.value for s in families["slo_ctl_vm_verdict"].samples) == len(VMS)
    assert all(f.name.startswith(("slo_ctl_", "process_")) for f in families.values())
    assert "slo_ctl_vm_weight" not in Metrics(lambda: None).text().decode()


def test_a_name_that_is_not_text_does_not_fail_all_metrics() -> None:
    """Of a VM found by its cgroup, on QEMU's command line: no metric of the host could be read."""
    odd = replace(VMS[0], vm="web\udcff")
    counts = Counts(
        vms={("web\udcff", "ssd0"): IoCounters(reads=7, read_latency=LatencyCounts((), (1,), 0.5))},
        limits_iops={("web\udcff", "ssd0", "total"): 300.0},
    )
    text = Metrics(lambda: replace(STATUS, vms=(odd,)), lambda: counts).text().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for name in (
        "slo_ctl_vm_weight",
        "slo_ctl_vm_requests",
        "slo_ctl_vm_limit_iops",
        "slo_ctl_vm_latency_seconds",
    ):
        assert {s.labels["vm"] for s in families[name].samples} == {r"web\udcff"}


def test_upgraded_package_is_not_the_version_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = tool_version()
    places, metrics = DaemonPlaces(tmp_path), Metrics(lambda: STATUS)
    daemon = DaemonController(Published(Config()), SloStore(places.slos), places.history, Waker())
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "99.9")
    assert daemon.health().program_version == running
    assert f'version="{running}"' in metrics.text().decode()


def test_counters_by_vm_device_and_kind() -> None:
    counts = Counts(
        epochs=3,
        settings=Counter({("cgroup limit", "applied"): 2}),
        hooks=Counter({("program", "killed"): 1}),
        vms={
            ("web", "ssd0"): sum_counters(
                [IoCounters(3, 4, 1, 2, host_page_writes=5, gc_page_writes=6), IoCounters(30, 40, 10, 20)]
            ),
            ("db", "sda"): IoCounters(reads=7),
        },
        moved_s={"ssd0": 1.5},
        moved_blocks={"ssd0": 12},
        limits_iops={("web", "ssd0", "total"): 300.0},
        limits_bytes_s={("db", "sda", "read"): 1e6},
    )
    text = Metrics(lambda: STATUS, lambda: counts).text().decode()
    samples = {
        (s.name, *(s.labels[label] for label in ORDER if label in s.labels)): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }
    assert samples["slo_ctl_epochs_total",] == 3
    assert samples["slo_ctl_settings_total", "cgroup limit", "applied"] == 2
    assert samples["slo_ctl_hooks_total", "program", "killed"] == 1
    assert samples["slo_ctl_device_move_seconds_total", "ssd0"] == 1.5
    assert samples["slo_ctl_device_moved_ops_blocks_total", "ssd0"] == 12
    assert samples["slo_ctl_vm_limit_iops", "web", "ssd0", "total"] == 300
    assert samples["slo_ctl_vm_limit_bytes_per_second", "db", "sda", "read"] == 1e6
    assert samples["slo_ctl_vm_requests_total", "web", "ssd0", "write"] == 22
    assert samples["slo_ctl_vm_bytes_total", "web", "ssd0", "read"] == 33
    assert samples["slo_ctl_vm_page_writes_total", "web", "ssd0", "gc"] == 6
    assert samples["slo_ctl_vm_requests_total", "db", "sda", "read"] == 7
    assert ("slo_ctl_vm_requests_total", "db", "sda", "write") not in samples


def test_latencies_of_all_namespaces_of_a_vm_are_one_histogram() -> None:
    first = IoCounters(read_latency=LatencyCounts((0.001, 0.1), (5, 3, 1), 0.75))
    second = IoCounters(read_latency=LatencyCounts((0.001, 0.1), (0, 2, 0), 0.05))
    both = sum_counters([first, second])
    counts = Counts(vms={("web", "ssd0"): both, ("db", "sda"): IoCounters(reads=7)})
    text = Metrics(lambda: STATUS, lambda: counts).text().decode()
    families = {f.name: f for f in text_string_to_metric_families(text)}
    assert families["slo_ctl_vm_latency_seconds"].type == "histogram"
    labels = {"vm": "web", "device": "ssd0", "kind": "read"}
    assert [(s.name[27:], s.labels, s.value) for s in families["slo_ctl_vm_latency_seconds"].samples] == [
        ("bucket", labels | {"le": "0.001"}, 5),
        ("bucket", labels | {"le": "0.1"}, 10),
        ("bucket", labels | {"le": "+Inf"}, 11),
        ("count", labels, 11),
        ("sum", labels, pytest.approx(0.8)),
    ]


def test_every_metric_has_a_help_text_that_is_a_sentence() -> None:
    text = Metrics(lambda: STATUS).text().decode()
    helps = [line.split(" ", 3)[3] for line in text.splitlines() if line.startswith("# HELP slo_ctl_")]
    assert len(helps) > 30
    assert [each for each in helps if not each.endswith(".") or len(each.split()) < 4] == []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_tcp_metrics_only_if_configured() -> None:
    port = free_port()
    metrics = Metrics(lambda: STATUS)
    metrics.listen(None)
    metrics.listen(f"127.0.0.1:{port}")
    metrics.listen(f"127.0.0.1:{port}")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        assert b"slo_ctl_vm_weight" in reply.read()
    with pytest.raises(UserError, match="Address already in use"):
        Metrics(lambda: STATUS).listen(f"127.0.0.1:{port}")
    metrics.close()
    metrics.listen(f"127.0.0.1:{port}")
    metrics.close()


def test_metrics_stay_where_they_were_when_another_address_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        metrics, port = Metrics(lambda: STATUS), free_port()
        metrics.listen(f"127.0.0.1:{port}")
        with pytest.raises(UserError, match="listen"):
            metrics.listen(f"127.0.0.1:{taken.getsockname()[1]}")
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        metrics.close()


def test_clients_that_send_half_a_request_do_not_keep_others_from_the_metrics() -> None:
    """Each had a thread and a descriptor of the daemon for as long as it liked: 300 took 300."""
    metrics, port = Metrics(lambda: STATUS), free_port()
    metrics.listen(f"127.0.0.1:{port}")
    threads = threading.active_count()
    with ExitStack() as stack:
        for _ in range(100):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            client.sendall(b"GET /metr")
        assert client.recv(1) == b"", "the last one is refused"
        assert threading.active_count() <= threads + 32

        def served() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
                    return b"slo_ctl_vm_weight" in reply.read()
            except OSError:
                return False

        until(served, "the others were disconnected")
    metrics.close()
