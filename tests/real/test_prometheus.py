"""Metrics, alerts and dashboard with a real daemon, a real Prometheus and promtool."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from daemon_host import with_listener
from own_process import READY_S
from prometheus_client.parser import text_string_to_metric_families
from prometheus_server import RULES, TREE, Prometheus, program, prometheus, promtool
from serving import Server, make_device, require, served
from waiting import until

ALERT_TESTS = Path(__file__).with_name("alert_rules.yml")
DASHBOARD = TREE / "etc" / "grafana" / "slo-ctl.json"
pytestmark = pytest.mark.slow
NAME = re.compile(r"\bslo_ctl_\w+")
CONFIG = """
[daemon]
epoch = "200ms"
window = "1s"
[libvirt]
uri = "none"
[vm.web]
namespaces = ["ssd0/web"]
min_iops = 10
[vm.db]
namespaces = ["ssd0/db"]
max_iops = 200
group = "shop"
[group.shop]
min_iops = 20
[vm.gone]
weight = 2
"""


@contextmanager
def asking(server: Server, namespace: str) -> Iterator[None]:
    """A client that reads and writes random pages continuously."""
    process = subprocess.Popen(
        [
            *("fio", "--thread", f"--name={namespace}", "--ioengine=nbd", f"--uri={server.uri(namespace)}"),
            *("--rw=randrw", "--bs=4k", "--iodepth=8", "--size=16m", "--time_based", "--runtime=600"),
        ],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The metrics address of a daemon with two VMs that write to a preconditioned SSD."""
    require("fio")
    with tempfile.TemporaryDirectory(prefix="slo-") as folder, ExitStack() as stack:
        root = Path(folder)
        make_device(
            root,
            "name=ssd0,preset=fast15,size=32MiB,op=25%,channels=1,dies=2,precondition=yes",
            "name=web",
            "name=db",
        )
        server = stack.enter_context(served(root, "ssd0", "--latency", "real"))
        for namespace in ("web", "db"):
            stack.enter_context(asking(server, namespace))
        daemon, address = with_listener(root, CONFIG, "metrics")
        stack.callback(daemon.stop)
        daemon.eventually(
            "GC", lambda s: s.devices[0].capacity_iops and all(vm.waf for vm in s.vms if vm.device)
        )
        yield address


def metrics(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=READY_S) as reply:
        return bytes(reply.read()).decode()


@pytest.fixture(scope="module")
def server(address: str) -> Iterator[Prometheus]:
    """A Prometheus that scrapes that daemon."""
    program("prometheus")
    with tempfile.TemporaryDirectory(prefix="slo-") as folder, prometheus(Path(folder), address) as server:
        yield server


def samples(address: str) -> dict[str, list[Any]]:
    """Samples by name of the series."""
    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(metrics(address)):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def test_promtool_accepts_metrics_and_rules(address: str) -> None:
    text = metrics(address)
    assert "slo_ctl_vm_latency_seconds_bucket" in text
    assert promtool("check", "metrics", stdin=text.encode()) == ""


def test_latencies_are_a_histogram(address: str) -> None:
    found = samples(address)
    for vm in ("web", "db"):
        for kind in ("read", "write"):
            labels = {"vm": vm, "device": "ssd0", "kind": kind}
            (count,) = [s for s in found["slo_ctl_vm_latency_seconds_count"] if s.labels == labels]
            (total,) = [s for s in found["slo_ctl_vm_latency_seconds_sum"] if s.labels == labels]
            buckets = [
                (float(s.labels["le"]), s.value)
                for s in found["slo_ctl_vm_latency_seconds_bucket"]
                if labels.items() <= s.labels.items()
            ]
            below = [number for _, number in buckets]
            assert below == sorted(below)
            assert (len(buckets), buckets[0][0], buckets[-1]) == (15, 50e-6, (float("inf"), count.value))
            # Between the sum of the lower and the sum of the upper bounds of the buckets.
            steps = [
                (bound, now - before) for (bound, now), before in zip(buckets, [0, *below], strict=False)
            ]
            assert 0 < total.value <= sum(bound * number for bound, number in steps if number)


def test_limit_in_force_is_exported(address: str) -> None:
    limits = {(s.labels["vm"], s.labels["kind"]): s.value for s in samples(address)["slo_ctl_vm_limit_iops"]}
    assert limits["db", "total"] <= 200


def test_alerts_fire_only_under_their_conditions() -> None:
    promtool("test", "rules", str(ALERT_TESTS))


def test_every_alert_is_tested_silent_and_firing() -> None:
    text = ALERT_TESTS.read_text()
    alerts = re.findall(r"- alert: (\w+)", RULES.read_text())
    assert len(alerts) > 9
    assert sorted(re.findall(r"alertname: (\w+), exp_alerts: \[\]", text)) == sorted(alerts)
    assert sorted(re.findall(r"alertname: (\w+)\n +exp_alerts:\n +- exp_labels", text)) == sorted(alerts)


def test_alerts_use_existing_metrics(address: str, server: Prometheus) -> None:
    (group,) = server.ask("rules")["groups"]
    there = samples(address).keys()
    for rule in group["rules"]:
        assert set(NAME.findall(rule["query"])) <= there, rule["name"]
    until(
        lambda: all(rule["health"] == "ok" for rule in server.ask("rules")["groups"][0]["rules"]),
        "every rule was evaluated",
    )


def test_alert_becomes_pending_in_prometheus(server: Prometheus) -> None:
    """VM `gone` is in the configuration, but not on the host."""

    def pending() -> bool:
        alerts = server.ask("alerts")["alerts"]
        return any(a["labels"].get("vm") == "gone" and a["state"] == "pending" for a in alerts)

    until(pending, "the alert for a missing VM")


def expressions() -> list[tuple[str, str]]:
    """Expressions of the dashboard by title of the panel, with all variables set to "all"."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = [(panel["title"], target["expr"]) for panel in panels for target in panel["targets"]]
    return [
        (title, re.sub(r"\$(instance|device|vm)\b", ".*", text).replace("$__rate_interval", "1m"))
        for title, text in found
    ]


@pytest.mark.parametrize(("title", "text"), expressions(), ids=[title for title, _ in expressions()])
def test_every_dashboard_panel_has_data(address: str, server: Prometheus, title: str, text: str) -> None:
    assert "$" not in text, title
    assert set(NAME.findall(text)) <= samples(address).keys()
    # Settings that are not changed at present have no series, which is intended.
    if not text.endswith(" > 0"):
        until(lambda: server.query(text) != [], f"{title}: {text}")
    else:
        server.query(text)


def _unknown(written: object, read: object, where: str = "dashboard") -> Iterator[str]:
    """The parts of `written` that were lost or changed when it was read."""
    if isinstance(written, dict) and isinstance(read, dict):
        for key, value in written.items():
            if key in read:
                yield from _unknown(value, read[key], f"{where}.{key}")
            else:
                yield f"{where}.{key}"
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        for index, (one, other) in enumerate(zip(written, read, strict=True)):
            yield from _unknown(one, other, f"{where}[{index}]")
    elif written != read:
        yield f"{where}: {written!r} became {read!r}"


def test_every_field_of_the_dashboard_is_known_to_grafana() -> None:
    """Checked with Grafana's published types for release 10.1; Grafana itself is in no package index."""
    pytest.importorskip("grafana_foundation_sdk")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()

    def unknown(dashboard: dict[str, Any]) -> list[str]:
        read = json.dumps(Dashboard.from_json(dashboard), cls=JSONEncoder)
        return list(_unknown(dashboard, json.loads(read)))

    dashboard = json.loads(DASHBOARD.read_text())
    assert unknown(dashboard) == []
    dashboard["panels"][1]["options"]["orientatoin"] = "auto"
    dashboard["panels"][2]["targets"][0]["expression"] = "up"
    assert unknown(dashboard) == [
        "dashboard.panels[1].options.orientatoin",
        "dashboard.panels[2].targets[0].expression",
    ]


def test_dashboard_variables_are_existing_labels(address: str) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert dashboard["uid"] == "slo-ctl"
    there = samples(address)
    kinds = {each["name"]: each for each in dashboard["templating"]["list"]}
    assert kinds.pop("datasource")["query"] == "prometheus"
    for name, variable in kinds.items():
        query = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", variable["query"]["query"])
        assert query is not None
        assert query[2] == name
        # Prometheus itself adds the label `instance`.
        assert name == "instance" or all(name in sample.labels for sample in there[query[1]])
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
