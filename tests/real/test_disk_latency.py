"""p99 of a VM on a block device, from QEMU's latency histograms, under a real libvirt."""

from __future__ import annotations

import os
import re
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bare_guest import compile_writer, domain_xml
from cgroup_groups import loop_device
from daemon_host import row_of, running, with_listener
from libvirt_host import (
    LibvirtHost,
    libvirt_host,  # noqa: F401 - a fixture
)
from own_process import READY_S

from slo_ctl.cli import app
from slo_ctl.host.disk_latency import block_statistics, query_monitor
from slo_ctl.model.status import Verdict, VmStatus

pytestmark = pytest.mark.slow
libvirt = pytest.importorskip("libvirt", reason="libvirt-python is not installed (extra `host`)")

NAME = f"slo-p99-{os.getpid()}"
SIZE_BYTES = 16 << 20
WRITES_S = 500
CONFIG = """
[daemon]
epoch = "250ms"
window = "5s"
[libvirt]
uri = "{uri}"
latency_histograms = false
[[device]]
name = "fast"
path = "{path}"
[vm.{name}]
p99 = "100s"
"""


@pytest.fixture
def writer(libvirt_host: LibvirtHost, tmp_path: Path) -> Iterator[tuple[Any, str]]:  # noqa: F811
    """A VM that writes to a loop device all the time, and the device.

    The rate is limited: without a limit it uses a whole CPU.
    """
    folder = libvirt_host.folder
    shutil.copy(compile_writer(tmp_path), folder / "bare_writer")
    with loop_device(SIZE_BYTES) as (path, _):
        disk = (
            f"<disk type='block'><driver name='qemu' type='raw' cache='none'/><source dev='{path}'/>"
            "<target dev='vda' bus='virtio'/>"
            f"<iotune><write_iops_sec>{WRITES_S}</write_iops_sec></iotune></disk>"
        )
        console = folder / f"{NAME}.log"
        connection = libvirt_host.connect()
        domain = connection.createXML(domain_xml(NAME, str(folder / "bare_writer"), str(console), disk))
        try:
            yield domain, path
        finally:
            domain.destroy()
            connection.close()


def histogram(domain: Any) -> dict[str, Any] | None:
    found: dict[str, Any] | None = block_statistics(domain)["vda"]["stats"].get("wr_latency_histogram")
    return found


def samples(address: str) -> dict[str, float]:
    """Write latencies of the VM by name of the sample; a bucket by its bound."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=READY_S) as reply:
        text = reply.read().decode()
    found = re.findall(
        r'slo_ctl_vm_latency_seconds(_\w+){device="fast",kind="write",(?:le="([^"]+)",)?vm="'
        rf'{NAME}"}} (\S+)',
        text,
    )
    return {bound or name: float(value) for name, bound, value in found}


def test_p99_is_measured_by_histograms_that_are_removed_on_stop(
    libvirt_host: LibvirtHost,  # noqa: F811
    writer: tuple[Any, str],
    root: Path,
) -> None:
    domain, path = writer
    text = CONFIG.format(uri=libvirt_host.uri, path=path, name=NAME)
    daemon, address = with_listener(root, text, "metrics")
    try:
        daemon.eventually("writes", lambda _: samples(address).get("_count", 0) > 100)
        mean = samples(address)
        assert mean["_sum"] > 0
        assert mean["+Inf"] == mean["_count"]
        row = daemon.vm(NAME)
        assert (row.verdict, row.p99_write_us) == (Verdict.NO_MECHANISM, None)
        assert domain.messages(libvirt.VIR_DOMAIN_MESSAGE_TAINTING) == []

        def configure(old: str, new: str) -> None:
            file = root / "slo-ctl.toml"
            file.write_text(file.read_text().replace(old, new))
            daemon.api.post("/v1/reload")

        def judged(verdict: Verdict) -> VmStatus:
            status = daemon.eventually(
                str(verdict),
                lambda status: row_of(status, NAME).p99_write_us and row_of(status, NAME).verdict is verdict,
            )
            return row_of(status, NAME)

        configure("latency_histograms = false", "latency_histograms = true")
        assert re.fullmatch(r"p99 [\d.]+ (µs|ms|s), target 100 s", judged(Verdict.OK).reason)
        configure('p99 = "100s"', 'p99 = "1us"')
        assert judged(Verdict.INSUFFICIENT).reason.startswith("p99 of writes ")
        assert "custom monitor" in domain.messages(libvirt.VIR_DOMAIN_MESSAGE_TAINTING)[0]
        daemon.eventually("a histogram in the metrics", lambda _: len(samples(address)) == 17)
        counts = list(samples(address).values())[:15]
        assert counts == sorted(counts)
        assert daemon.stop() == 0, daemon.log()
    finally:
        daemon.stop()
    assert histogram(domain) is None


def test_existing_histogram_is_used_and_kept(
    libvirt_host: LibvirtHost,  # noqa: F811
    writer: tuple[Any, str],
    root: Path,
) -> None:
    domain, path = writer
    disk = block_statistics(domain)["vda"]["qdev"]
    mine = [10**3, 10**10]
    query_monitor(domain, "block-latency-histogram-set", id=disk, boundaries=mine)
    text = CONFIG.format(uri=libvirt_host.uri, path=path, name=NAME).replace("false", "true")
    (root / "slo-ctl.toml").write_text(text)
    with running(root) as daemon:
        daemon.eventually("a p99", lambda status: row_of(status, NAME).p99_write_us)
        daemon.kill()
        assert daemon.process.wait(READY_S)
    found = histogram(domain)
    assert found is not None
    assert found["boundaries"] == mine
    assert sum(found["bins"]) > 100


def test_undo_removes_histograms_of_a_killed_daemon(
    libvirt_host: LibvirtHost,  # noqa: F811
    writer: tuple[Any, str],
    root: Path,
) -> None:
    domain, path = writer
    text = CONFIG.format(uri=libvirt_host.uri, path=path, name=NAME).replace("false", "true")
    (root / "slo-ctl.toml").write_text(text)
    with running(root) as daemon:
        daemon.eventually("a p99", lambda status: row_of(status, NAME).p99_write_us)
        daemon.kill()
    assert histogram(domain) is not None
    assert app.run(["apply", "--undo", "--root", str(root)]) == 0
    assert histogram(domain) is None
