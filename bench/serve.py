"""IOPS of a served device relative to nbdkit's memory plugin: 4 KiB random over a Unix socket, in one run.

    .venv/bin/python bench/serve.py [--rounds 5] [--seconds 2] [--size 256M] [--threads N] [--json]

Served without latency, so that the path of a request through the server is measured. Both are first written
completely, runs alternate between the two, and medians are compared. Exit code 1 if a ratio is below the
bar.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import checkout

from slo_ctl.base.termination import terminable
from slo_ctl.drives.places import places
from slo_ctl.drives.plan import plan_device
from slo_ctl.drives.status import nbd_uri
from slo_ctl.drives.store import DeviceStore

BAR = 1.0
QUEUE_DEPTHS = (1, 32)
KINDS = ("randread", "randwrite")
START_S = 20


@dataclass(frozen=True)
class Comparison:
    """Median results for one kind of load."""

    rw: str
    queue_depth: int
    memory_iops: float
    served_iops: float
    ratio: float
    """Ratio of the medians."""
    memory_cpu_us: float
    """CPU time of the server per request; likewise below."""
    served_cpu_us: float
    pair_ratios: list[float]
    """Ratios of neighbouring runs."""


@contextmanager
def running(command: list[str], socket: Path) -> Iterator[int]:
    """Run nbdkit; yields its PID."""
    # In its own session, like our server: the kernel divides CPUs between sessions first.
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + START_S
        while subprocess.run(["nbdinfo", nbd_uri(socket)], capture_output=True).returncode:  # noqa: S607
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{command[0]} does not serve {socket}")
            time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def fio(socket: Path, *options: str) -> dict[str, dict[str, float]]:
    command = [
        "fio",
        "--name=x",
        "--ioengine=nbd",
        f"--uri={nbd_uri(socket)}",
        "--output-format=json",
        *options,
    ]
    reply = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    job: dict[str, dict[str, float]] = json.loads(reply[reply.index("{") :])["jobs"][0]
    return job


def iops_and_cpu(
    server: tuple[Path, int], rw: str, queue_depth: int, arguments: argparse.Namespace
) -> tuple[float, float]:
    """Requests per second, and microseconds of the server's CPU time per request."""
    socket, pid = server
    before_s = checkout.cpu_s(pid)
    job = fio(
        socket,
        f"--rw={rw}",
        "--bs=4k",
        f"--iodepth={queue_depth}",
        f"--size={arguments.size}",
        f"--runtime={arguments.seconds}",
        "--time_based",
    )
    done = job["read" if rw == "randread" else "write"]
    return done["iops"], (checkout.cpu_s(pid) - before_s) / done["total_ios"] * 1e6


def compare(
    memory: tuple[Path, int],
    served: tuple[Path, int],
    rw: str,
    depth: int,
    arguments: argparse.Namespace,
) -> Comparison:
    pairs = [
        (*iops_and_cpu(memory, rw, depth, arguments), *iops_and_cpu(served, rw, depth, arguments))
        for _ in range(arguments.rounds)
    ]
    theirs, their_cpu, ours, our_cpu = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = [ours / theirs for theirs, _, ours, _ in pairs]
    return Comparison(rw, depth, theirs, ours, ours / theirs, their_cpu, our_cpu, ratios)


def measure(folder: Path, arguments: argparse.Namespace) -> list[Comparison]:
    root = folder / "root"
    DeviceStore(places(root)).create(plan_device("name=d,size=1GiB,op=15%", []))
    run = places(root).run_of("d")
    memory, served = folder / "memory.sock", run.export("d")
    threads = ["--threads", str(arguments.threads)] if arguments.threads else []
    serve = [sys.executable, "-m", "slo_ctl.cli", "device", "serve", "d", "--root", str(root), *threads]
    with ExitStack() as servers:
        nbdkit = ["nbdkit", "-f", *threads, "-U", str(memory), "memory", "1G"]
        memory_pid = servers.enter_context(running(nbdkit, memory))
        servers.enter_context(running(serve, served))
        both = (memory, memory_pid), (served, int(run.pid_file.read_text()))
        for socket in (memory, served):
            fio(socket, "--rw=write", "--bs=1M", f"--size={arguments.size}")
        return [compare(*both, rw, depth, arguments) for depth in QUEUE_DEPTHS for rw in KINDS]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--threads", type=int, help="threads of both servers; each has its own default")
    parser.add_argument("--size", default="256M")
    parser.add_argument("--folder", type=Path, help="folder of the device (its file system matters)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    checkout.require("nbdkit", "nbdinfo", "fio")
    with tempfile.TemporaryDirectory(prefix="slo-", dir=arguments.folder) as folder:
        found = measure(Path(folder), arguments)
    if arguments.json:
        plain = {"format_version": 1, "bar": BAR, "comparisons": [asdict(each) for each in found]}
        print(json.dumps(plain, indent=2))
    else:
        for each in found:
            speeds = f"memory {each.memory_iops:8.0f}  served {each.served_iops:8.0f}"
            spread = f"{min(each.pair_ratios):.2f}..{max(each.pair_ratios):.2f}"
            cpu = f"CPU/request {each.served_cpu_us:.1f} / {each.memory_cpu_us:.1f} us"
            print(f"{each.rw:9} QD{each.queue_depth:<3} {speeds}  ratio {each.ratio:.2f} ({spread})  {cpu}")
    return 0 if all(each.ratio >= BAR for each in found) else 1


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
