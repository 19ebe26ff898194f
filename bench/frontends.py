"""The front ends of one served device and nbdkit's memory plugin, compared: 4 KiB, random.

    .venv/bin/python bench/frontends.py [--rounds 5] [--seconds 1] [--latency-seconds 3] [--poll]
        [--folder /dev/shm] [--json]

One server, with one namespace for each front end that is first written completely; in each round every front
end is measured once, and medians are compared. All clients are `front_end_load` (`bench/src/bin`): one thread
each, which sleeps while it has no reply. CPU is that of the server per request. Then the same with modelled
latency: the mean of the client divided by the modelled mean.

The comparison (`BARS`) is requests per second of one front end over those of another, with the same kind of
client, kind of request and queue depth, and with the data of all front ends on the file system of `--folder`;
nbdkit's memory plugin always has its data in memory. The bars apply to clients that sleep. `--poll` also
measures clients that poll and applies the same bars to them, in addition: a front end that meets a bar with
one kind of client only misses it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import checkout

from slo_ctl.base.termination import terminable
from slo_ctl.drives.control import ControlClient
from slo_ctl.drives.places import RunPlaces, places
from slo_ctl.drives.plan import plan_device
from slo_ctl.drives.store import DeviceStore

ROOT = Path(__file__).parents[1]
MEMORY_PLUGIN = "nbdkit memory"
FRONT_ENDS = ("NBD", "vhost-user", "NVMe/TCP")
DEPTHS, LATENCY_DEPTHS = (1, 32), (1, 8, 32)
CLIENTS = {"sleep": (), "poll": ("--poll",)}
"""What clients do while they have no reply, with options of `front_end_load`."""
BLOCK_BYTES = 4096
SIZE_BYTES = 128 << 20
TOLERANCE = 0.05
BARS = {("NBD", MEMORY_PLUGIN): (1, 32), ("vhost-user", "NBD"): (1, 32), ("NVMe/TCP", "NBD"): (32,)}
"""Required ratios of front ends to others, with the depths they hold at: see `BAR`."""
BAR = {("NBD", MEMORY_PLUGIN): 1.0, ("vhost-user", "NBD"): 2.5, ("NVMe/TCP", "NBD"): 1.0}
_START_S = 60


@dataclass(frozen=True)
class Target:
    """Address that `front_end_load` connects to, and the process that serves it."""

    name: str
    words: tuple[str, ...]
    pid: int


@dataclass(frozen=True)
class Speed:
    """Median results of one front end under one load."""

    front_end: str
    client: str
    """One of `CLIENTS`."""
    kind: str
    depth: int
    iops: float
    cpu_us: float
    """CPU time of the server per request."""


@dataclass(frozen=True)
class Punctuality:
    """Mean latency with the modelled drive."""

    front_end: str
    depth: int
    modelled_ms: float
    ratio: float
    """Mean latency of the client over the modelled one; the best round, because other work on the machine can
    only increase it.
    """


def load_program() -> Path:
    subprocess.run(
        ["cargo", "build", "--release", "--quiet", "-p", "slo-ctl-bench", "--bin", "front_end_load"],  # noqa: S607
        cwd=ROOT,
        check=True,
    )
    folder = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return folder / "release" / "front_end_load"


def load(
    program: Path, target: Target, kind: str, depth: int, seconds: float, client: str = "sleep"
) -> dict[str, float]:
    blocks = str(SIZE_BYTES // BLOCK_BYTES)
    command = [str(program), *CLIENTS[client], *target.words, kind, str(depth), blocks, str(seconds)]
    reply = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    measured: dict[str, float] = json.loads(reply)
    return measured


@contextmanager
def memory_plugin(folder: Path) -> Iterator[Target]:
    socket = folder / "memory.sock"
    process = subprocess.Popen(["nbdkit", "-f", "-U", str(socket), "memory", str(SIZE_BYTES)])  # noqa: S607
    try:
        _wait_until(socket.exists)
        yield Target(MEMORY_PLUGIN, ("nbd", str(socket), ""), process.pid)
    finally:
        process.terminate()
        process.wait()


@contextmanager
def device(root: Path, spec: str, *options: str) -> Iterator[tuple[RunPlaces, list[Target]]]:
    """A served device with a namespace for each front end."""
    names = ("nbd", "vhost", "nvme")
    namespaces = [f"name={name},size={SIZE_BYTES}" for name in names]
    DeviceStore(places(root)).create(plan_device(spec, namespaces))
    run = places(root).run_of("d")
    serve = (sys.executable, "-m", "slo_ctl.cli", "device", "serve", "d", "--root", str(root), "--vhost-user")
    command = [*serve, "--nvme-tcp", "127.0.0.1:0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None or not any(line.strip() == "ready" for line in process.stdout):
            sys.exit("the device is not served; see above")
        with ControlClient(run.control) as control:
            nvme = control.hello()["nvme_tcp"]
        pid = int(run.pid_file.read_text())
        yield (
            run,
            [
                Target("NBD", ("nbd", str(run.export("nbd")), "nbd"), pid),
                Target("vhost-user", ("vhost-user", str(run.vhost_user_socket("vhost"))), pid),
                Target("NVMe/TCP", ("nvme-tcp", nvme["address"], nvme["nqn"], "3"), pid),
            ],
        )
    finally:
        process.terminate()
        process.wait()


def _wait_until(ready: Any) -> None:
    deadline = time.monotonic() + _START_S
    while not ready():
        if time.monotonic() > deadline:
            sys.exit("a server did not start")
        time.sleep(0.05)


def speeds(
    program: Path, targets: list[Target], clients: list[str], rounds: int, seconds: float
) -> list[Speed]:
    for target in targets:
        load(program, target, "write", 32, 3 * seconds)
    found: dict[tuple[str, str, str, int], list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for kind, depth, client in product(("read", "write"), DEPTHS, clients):
            for target in targets:
                before = checkout.cpu_s(target.pid)
                done = load(program, target, kind, depth, seconds, client)
                used = checkout.cpu_s(target.pid) - before
                key = (target.name, client, kind, depth)
                found.setdefault(key, []).append((done["iops"], 1e6 * used / done["requests"]))
    medians = {
        key: [statistics.median(column) for column in zip(*runs, strict=True)] for key, runs in found.items()
    }
    return [Speed(*key, *both) for key, both in medians.items()]


def punctualities(program: Path, root: Path, rounds: int, seconds: float) -> list[Punctuality]:
    found: dict[tuple[str, int], list[Punctuality]] = {}
    with device(root, "name=d,size=1GiB,op=30%,program_us=1000", "--latency", "real") as (run, targets):
        for _ in range(rounds):
            for depth in LATENCY_DEPTHS:
                for number, target in enumerate(targets):
                    with ControlClient(run.control) as control:
                        before = control.statistics()["namespaces"][number]["queue"]
                        done = load(program, target, "write", depth, seconds)
                        after = control.statistics()["namespaces"][number]["queue"]
                    requests = after["completed"]["writes"] - before["completed"]["writes"]
                    modelled_us = (after["latency_ns"] - before["latency_ns"]) / requests / 1e3
                    ratio = done["mean_us"] / modelled_us
                    measured = Punctuality(target.name, depth, modelled_us / 1e3, ratio)
                    found.setdefault((target.name, depth), []).append(measured)
    return [min(rounds_, key=lambda each: abs(each.ratio - 1)) for rounds_ in found.values()]


def print_speeds(found: list[Speed], names: list[str], clients: list[str]) -> None:
    by_key = {(each.front_end, each.client, each.kind, each.depth): each for each in found}
    print(f"{'4 KiB, random, clients':24}" + "".join(f"{name:>24}" for name in names))
    for client, kind, depth in product(clients, ("read", "write"), DEPTHS):
        row = [by_key[name, client, kind, depth] for name in names]
        cells = "".join(f"{each.iops:>12,.0f}/s {each.cpu_us:>6.1f} us" for each in row)
        print(f"{kind:6} QD{depth:<3} that {client:7}{cells}")


def ratios(found: list[Speed], clients: list[str]) -> list[tuple[str, float, bool]]:
    """Description of each comparison, its ratio, and whether the ratio is sufficient."""
    by_key = {(each.front_end, each.client, each.kind, each.depth): each.iops for each in found}
    compared = []
    for client, ((faster, slower), depths) in product(clients, BARS.items()):
        for kind, depth in product(("read", "write"), depths):
            ratio = by_key[faster, client, kind, depth] / by_key[slower, client, kind, depth]
            text = f"{faster} / {slower}, {kind} QD{depth}, clients {client}"
            compared.append((text, ratio, ratio >= BAR[faster, slower]))
    return compared


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--latency-seconds", type=float, default=3, help="0: skip that part")
    parser.add_argument("--poll", action="store_true", help="also measure clients that poll")
    parser.add_argument(
        "--folder", type=Path, help="folder of the device; on tmpfs, the server maps its data"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    checkout.require("nbdkit")
    program = load_program()
    clients = list(CLIENTS) if arguments.poll else ["sleep"]
    with tempfile.TemporaryDirectory(prefix="slo-", dir=arguments.folder) as folder:
        root = Path(folder)
        with memory_plugin(root) as memory, device(root / "fast", "name=d,size=1GiB,op=15%") as (_, targets):
            found = speeds(program, [memory, *targets], clients, arguments.rounds, arguments.seconds)
        late = []
        if arguments.latency_seconds:
            late = punctualities(program, root / "timed", arguments.rounds, arguments.latency_seconds)
    compared = ratios(found, clients)
    if arguments.json:
        plain = {
            "format_version": 1,
            "speeds": [asdict(each) for each in found],
            "ratios": [{"what": what, "ratio": ratio, "enough": enough} for what, ratio, enough in compared],
            "latency": [asdict(each) for each in late],
        }
        print(json.dumps(plain, indent=2))
    else:
        print_speeds(found, [MEMORY_PLUGIN, *FRONT_ENDS], clients)
        for what, ratio, enough in compared:
            print(f"{what:52} {ratio:6.2f}{'' if enough else '  below the bar'}")
        for each in late:
            modelled = f"modelled {each.modelled_ms:6.2f} ms, client {each.ratio:.3f} of it"
            print(f"{each.front_end:12} QD{each.depth:<3} {modelled}")
    in_time = all(abs(each.ratio - 1) <= TOLERANCE for each in late)
    return 0 if in_time and all(enough for *_, enough in compared) else 1


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
