"""Scaling of a sweep: the same replays with one process, with two, and with Dask workers on two hosts.

    .venv/bin/python bench/sweep.py [--replays 16] [--duration 40x] [--rounds 3] [--json FILE]

Hosts are network namespaces of this machine (root). Each round runs all three in sequence. "Of linear" is the
time of one process over twice that of two, so that starting processes counts; Dask's workers are started
before, as on a cluster. Each round also runs two complete sweeps of one process each in parallel, which share
nothing: their time relative to that of one is what the machine's two CPUs permit. Exit code 1 if the median
of a sweep is below 0.9.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import checkout  # noqa: F401 - finds the packages of this checkout
from dask_cluster import ADDRESS, DaskCluster
from serra_hosts import Hosts

from slo_ctl.base.termination import terminable

WANTED = 0.9
WORKERS = 2
SCENARIO = """
policy = "proportional"
duration = "{duration}"

[device]
preset = "fast15"
size = "512MiB"
op = "15%"

[[vm]]
name = "web"
workload = "uniform"
size = "64MiB"
qd = 8
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--replays", type=int, default=16, help="of each run")
    parser.add_argument("--duration", default="40x", help="duration of each replay, in drive writes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    found: dict[str, list[float]] = {"two processes": [], "two hosts, Dask": []}
    allowed: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Hosts(Path(folder)) as hosts,
        DaskCluster(hosts, Path(folder), WORKERS),
    ):
        place = Path(folder)
        (place / "web.toml").write_text(SCENARIO.format(duration=given.duration))
        for number in range(given.rounds):
            out = place / f"{number}"
            sweep = ["sweep", str(place / "web.toml"), "--vms", "4", "--seeds", str(given.replays), "--quiet"]
            local = [sys.executable, "-m", "slo_ctl.cli", *sweep]
            one_s = elapsed_s([*local, "--jobs", "1", "--out", f"{out}-one.csv"])
            two_s = elapsed_s([*local, "--jobs", str(WORKERS), "--out", f"{out}-two.csv"])
            spread = [*local, "--dask", ADDRESS, "--out", f"{out}-spread.csv"]
            spread_s = elapsed_s(hosts.in_the_middle(*spread))
            apart = [[*local, "--jobs", "1", "--out", f"{out}-apart-{n}.csv"] for n in range(WORKERS)]
            apart_s = elapsed_s(*apart)
            allowed.append(one_s / apart_s)
            found["two processes"].append(one_s / two_s / WORKERS)
            found["two hosts, Dask"].append(one_s / spread_s / WORKERS)
            print(
                f"round {number + 1}: {one_s:.1f} s by one process, {two_s:.1f} s by two, "
                f"{spread_s:.1f} s by two hosts; two complete sweeps side by side: {apart_s:.1f} s",
                flush=True,
            )
    for name, parts in found.items():
        print(
            f"{name}: {median(parts):.2f} of linear ({min(parts):.2f} to {max(parts):.2f}), EMULATED drives"
        )
    print(
        f"two sweeps side by side: {median(allowed):.2f} of linear ({min(allowed):.2f} to {max(allowed):.2f})"
    )
    if given.json is not None:
        result = {"replays": given.replays, "of_linear": found, "side_by_side": allowed}
        given.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if all(median(parts) >= WANTED for parts in found.values()) else 1


def elapsed_s(*commands: list[str]) -> float:
    """Time until all of the commands, started together, have ended."""
    start = time.monotonic()
    processes = [subprocess.Popen(words, stdout=subprocess.DEVNULL) for words in commands]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"{' '.join(commands[0])}: exit codes {codes}")
    return time.monotonic() - start


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
