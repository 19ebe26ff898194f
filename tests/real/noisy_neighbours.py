"""A VM-like group with few requests beside two with many, on a loop device without a scheduler (v1)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from daemon_host import Cgroups

from slo_ctl.host.cgroup import CounterReader, find_tree
from slo_ctl.model.host import DeviceNumber

VMS = ("web", "noisy1", "noisy2")
COUNTED_BELOW = 1_000_000
CONFIG = """
[daemon]
epoch = "{epoch_ms:.0f}ms"
window = "{window_s:g}s"
[libvirt]
uri = "none"
[[device]]
name = "loop"
path = "{path}"
[cgroup]
latency_histograms = {measured}
[vm.web]
{slo}
cgroup = "{web}"
[vm.noisy1]
weight = {noisy_weight}
cgroup = "{noisy1}"
[vm.noisy2]
weight = {noisy_weight}
cgroup = "{noisy2}"
"""


def fio_on(path: str, vm: str) -> tuple[str, ...]:
    common = (f"--filename={path}", "--rw=randread", "--direct=1", "--time_based", "--runtime=600")
    if vm == "web":
        return (*common, "--bs=4k", "--ioengine=psync", "--iodepth=1")
    return (*common, "--bs=128k", "--ioengine=libaio", "--iodepth=64")


def let_the_kernel_count(groups: Cgroups, number: DeviceNumber, vms: Sequence[str] = VMS) -> None:
    """Set a limit far above the speed of the device: cgroup v1 counts nothing without a limit."""
    for vm in vms:
        file = groups.folder(vm) / "blkio.throttle.read_iops_device"
        if not file.exists():
            pytest.skip("this host has no v1 blkio with throttling")
        file.write_text(f"{number} {COUNTED_BELOW}")


def configure(
    root: Path,
    path: str,
    slo: str,
    groups: Cgroups,
    *,
    measured: bool = False,
    window_s: float = 5.0,
    noisy_weight: float = 1.0,
) -> None:
    """`slo` is a key of VM web, whose weight is 1; `measured` enables latencies of cgroups."""
    places = {vm: groups.path(vm) for vm in VMS}
    times = {"window_s": window_s, "epoch_ms": 100 * window_s}
    measuring = str(measured).lower()
    text = CONFIG.format(path=path, slo=slo, measured=measuring, noisy_weight=noisy_weight, **times, **places)
    (root / "slo-ctl.toml").write_text(text)


def reads(groups: Cgroups, number: DeviceNumber, vms: Sequence[str] = VMS) -> dict[str, int]:
    """Number of read requests of each VM so far."""
    tree = find_tree()
    assert tree is not None
    with closing(CounterReader(tree)) as reader:
        counters = {vm: reader.read(groups.path(vm), print).get(number) for vm in vms}
    return {vm: (c.reads or 0) if c else 0 for vm, c in counters.items()}


def rates(
    groups: Cgroups, number: DeviceNumber, seconds: float, vms: Sequence[str] = VMS
) -> dict[str, float]:
    began, before = time.monotonic(), reads(groups, number, vms)
    time.sleep(seconds)
    ended, after = time.monotonic(), reads(groups, number, vms)
    return {vm: (after[vm] - before[vm]) / (ended - began) for vm in vms}
