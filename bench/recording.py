"""Overhead of `slo-ctl trace record` for clients of a served device: with and without it, 4 KiB at random.

    .venv/bin/python bench/recording.py [--rounds 5] [--seconds 2] [--size 256M]

Served over NBD without latency, which is the worst case; runs alternate, and medians are compared. With few
CPUs a client that waits after each request gets faster while recorded, as the recorder keeps the CPUs from
going idle. Checks no bar.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import checkout  # noqa: F401 - finds the packages of this checkout
from serve import fio, iops_and_cpu, running

from slo_ctl.base.termination import terminable
from slo_ctl.drives.control import ControlClient
from slo_ctl.drives.places import places
from slo_ctl.drives.plan import plan_device
from slo_ctl.drives.store import DeviceStore

QUEUE_DEPTHS = (1, 32)
KINDS = ("randread", "randwrite")
START_S = 20.0


@contextmanager
def recorded(root: Path, control: Path, out: Path) -> Iterator[None]:
    """Record the device while the block runs."""
    command = [sys.executable, "-m", "slo_ctl.cli", "trace", "record", "--quiet", "--root", str(root)]
    recorder = subprocess.Popen(
        [*command, "--device", "d", "--out", str(out)], stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline_s = time.monotonic() + START_S
        with ControlClient(control) as client:
            while not client.statistics()["namespaces"][0]["recorded"]:
                if recorder.poll() is not None or time.monotonic() > deadline_s:
                    sys.exit("the device is not recorded")
                time.sleep(0.05)
        yield
    finally:
        recorder.terminate()
        recorder.wait()


def measure(folder: Path, arguments: argparse.Namespace) -> None:
    """Measure, and print a row for each load."""
    root = folder / "root"
    DeviceStore(places(root)).create(plan_device("name=d,size=1GiB,op=15%", []))
    run = places(root).run_of("d")
    serve = [sys.executable, "-m", "slo_ctl.cli", "device", "serve", "d", "--root", str(root)]
    with running(serve, run.export("d")):
        server = run.export("d"), int(run.pid_file.read_text())
        fio(server[0], "--rw=write", "--bs=1M", f"--size={arguments.size}")
        print(f"{'':16}{'IOPS':>9}{'recorded':>10}{'ratio':>7}{'server CPU':>13}{'recorded':>10}")
        for depth in QUEUE_DEPTHS:
            for kind in KINDS:
                rounds: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
                for number in range(2 * arguments.rounds):
                    on = bool(number % 2)
                    out = folder / f"{kind}-{depth}-{number}"
                    with recorded(root, run.control, out) if on else nullcontext():
                        rounds[on].append(iops_and_cpu(server, kind, depth, arguments))
                (iops, cpu_us), (iops_on, cpu_us_on) = (
                    map(statistics.median, zip(*rounds[on], strict=True)) for on in (False, True)
                )
                print(
                    f"{kind:10}QD{depth:<4}{iops:9,.0f}{iops_on:10,.0f}{iops_on / iops:7.2f}"
                    f"{cpu_us:10.1f} us{cpu_us_on:7.1f} us",
                    flush=True,
                )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--size", default="256M", help="part of the device that is used")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slo-", dir="/tmp") as folder:
        measure(Path(folder), arguments)
    return 0


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
