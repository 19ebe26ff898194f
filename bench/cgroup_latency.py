"""Overhead of measuring latencies of cgroups for clients of a block device. As root, with bpftrace.

    .venv/bin/python bench/cgroup_latency.py [--rounds 12] [--seconds 2] [--device PATH]

fio reads 4 KiB at random at queue depth 32, alternately with and without tracing, by default from a loop
device on a file in /dev/shm, which has little overhead. Prints the median of the ratios of neighbouring runs,
and the time that the kernel spent in the BPF programs per request, which other work disturbs less (the sysctl
kernel.bpf_stats_enabled is on during the run). Never writes to a device.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import checkout  # noqa: F401 - finds the packages of this checkout

from slo_ctl.base.termination import terminable
from slo_ctl.host.bio_latency import BioLatencies
from slo_ctl.model.host import DeviceNumber

_SIZE_BYTES = 256 << 20
_STARTS_S = 60.0
_OWN = Path(__file__).resolve().parents[1] / "build" / "bpftrace" / "bin"
"""Where set-up installs a bpftrace that is new enough, if that of the system is too old."""
_STATISTICS = Path("/proc/sys/kernel/bpf_stats_enabled")


def output_of(*words: str) -> str:
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout


@contextmanager
def loop_device() -> Iterator[str]:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as image:
        image.write(os.urandom(1 << 20) * (_SIZE_BYTES >> 20))
        image.flush()
        path = output_of("losetup", "--find", "--show", "--read-only", image.name).strip()
        try:
            yield path
        finally:
            output_of("losetup", "--detach", path)


@contextmanager
def given(path: str) -> Iterator[str]:
    if not Path(path).is_block_device():
        sys.exit(f"{path} is not a block device")
    yield path


@contextmanager
def statistics_of_programs() -> Iterator[None]:
    before = _STATISTICS.read_text()
    _STATISTICS.write_text("1")
    try:
        yield
    finally:
        _STATISTICS.write_text(before)


def time_in_programs_ns() -> int:
    """Time in all BPF programs that children of this process loaded."""
    ns = 0
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            for info in Path(f"/proc/{child}/fdinfo").iterdir():
                ns += sum(map(int, re.findall(r"^run_time_ns:\s*(\d+)", info.read_text(), re.MULTILINE)))
    return ns


def read_iops(path: str, seconds: float) -> float:
    words = [f"--filename={path}", "--readonly", "--rw=randread", "--bs=4k", "--direct=1", "--iodepth=32"]
    words += ["--ioengine=libaio", "--time_based", f"--runtime={seconds}", "--output-format=json"]
    return float(json.loads(output_of("fio", "--name=read", *words))["jobs"][0]["read"]["iops"])


def traced_iops(path: str, seconds: float) -> tuple[float, float]:
    """IOPS, and nanoseconds in the programs per request."""
    number = Path(path).stat().st_rdev
    latencies = BioLatencies()
    try:
        device = {DeviceNumber(os.major(number), os.minor(number))}
        latencies.latest(device)
        deadline_s = time.monotonic() + _STARTS_S
        while not latencies.running:
            if time.monotonic() > deadline_s:
                sys.exit(f"bpftrace does not measure: {latencies.problem}")
            time.sleep(0.1)
        iops = read_iops(path, seconds)
        return iops, time_in_programs_ns() / (iops * seconds)
    finally:
        latencies.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--device", help="read from this device instead of a loop device")
    options = parser.parse_args()
    os.environ["PATH"] = f"{_OWN}:{os.environ['PATH']}"
    ratios, costs_ns = [], []
    with given(options.device) if options.device else loop_device() as path, statistics_of_programs():
        read_iops(path, 1.0)
        print("   without      with  ratio  ns/request")
        for number in range(options.rounds):
            # Alternate which is first, as the machine may have other work.
            if number % 2:
                traced, cost_ns = traced_iops(path, options.seconds)
                plain = read_iops(path, options.seconds)
            else:
                plain = read_iops(path, options.seconds)
                traced, cost_ns = traced_iops(path, options.seconds)
            ratios.append(traced / plain)
            costs_ns.append(cost_ns)
            print(f"{plain:10,.0f}{traced:10,.0f}{ratios[-1]:7.2f}{cost_ns:12,.0f}", flush=True)
    ratio, cost_ns = statistics.median(ratios), statistics.median(costs_ns)
    between = f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(f"tracing: {ratio:.2f} of the IOPS ({between}), {cost_ns:,.0f} ns a request")


if __name__ == "__main__":
    with terminable():
        main()
