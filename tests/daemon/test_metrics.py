"""Metrics of a status."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slo_ctl.errors import UserError
from slo_ctl.model import DeviceStatus, HostStatus, Slo, Verdict, VmStatus
from slo_ctl.record.metrics import Metrics

VMS = tuple(
    VmStatus(name, "ssd0", (), Slo(weight=3, min_iops=5), "", "", "", Verdict.IDLE, "", throttle_wait_us=2e3)
    for name in ("plain", 'has "quotes"\nand\\more')
)
STATUS = HostStatus(1.0, 10.0, 1.0, 1, 1.0, "bad", (DeviceStatus("ssd0", "emulated", "", "", 10.0),), VMS)


def test_text_that_prometheus_reads() -> None:
    families = {f.name: f for f in text_string_to_metric_families(Metrics(lambda: STATUS).text().decode())}
    assert {s.labels["vm"] for s in families["slo_ctl_vm_weight"].samples} == {vm.vm for vm in VMS}
    assert families["slo_ctl_vm_throttle_wait_seconds"].samples[0].value == pytest.approx(0.002)
    assert families["slo_ctl_vm_iops"].samples == []
    assert families["slo_ctl_config_ok"].samples[0].value == 0
    assert sum(s.value for s in families["slo_ctl_vm_verdict"].samples) == len(VMS)
    assert all(f.name.startswith("slo_ctl_") for f in families.values())
    assert Metrics(lambda: None).text() == b""


def test_over_tcp_only_where_asked() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
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


@pytest.mark.parametrize("address", ["9464", "localhost:http", "localhost:99999", ":"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UserError, match="listen"):
        Metrics(lambda: STATUS).listen(address)
