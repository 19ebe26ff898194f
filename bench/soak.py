"""Whether daemon and server remain stable for hours: memory, descriptors, threads, files, CPU.

    .venv/bin/python bench/soak.py [--minutes 120] [--size 1GiB]

Needs root and fio. Three clients in cgroups on a served EMULATED SSD write, trim, pause, disconnect and
reconnect; bursts of `vm set` change their SLOs. For a sixth of the time, epochs and bursts come ten times as
often, so that what fills up to a bound is full. Afterwards both processes are measured every ten seconds, and
a line is fitted to the means of each minute. Exit code 1 if a figure grows: its slope is above zero with 95 %
confidence, and in a day it would grow by more than a tenth (descriptors and threads: by one).
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import checkout
import numpy as np
from daemon_host import cgroups, clients, running
from serving import make_device, served

from slo_ctl.api.client import ApiClient
from slo_ctl.base.termination import terminable

VMS = ("web", "db", "mail")
EVERY_S = 10.0
FILLING_SHARE, FILLING_SPEED = 1 / 6, 10
"""Share of the time that only fills what has a bound, and by how much faster than afterwards."""
GROWTH_OF_A_DAY = 0.1
"""Allowed growth in a day, relative to the mean; the history has its own limit and is excluded."""
_COUNTED = ("descriptors", "threads")
_PHASES = ("--rw=randwrite --bs=4k --iodepth=8", "--rw=randrw --bs=16k --iodepth=4", "--rw=randtrim --bs=64k")


def measured(pid: int) -> dict[str, float]:
    """Figures of one process, from /proc."""
    proc = Path("/proc") / str(pid)
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    return {
        "rss_mib": int(status["VmRSS"].split()[0]) / 1024,
        "threads": int(status["Threads"]),
        "descriptors": len(list((proc / "fd").iterdir())),
        "cpu_s": checkout.cpu_s(pid),
    }


def files_mib(root: Path) -> float:
    """Size of all files except the data of namespaces and the history."""
    found = 0
    for path in root.rglob("*"):
        with suppress(OSError):
            if path.is_file() and path.suffix != ".img" and not path.name.startswith("history.db"):
                found += path.stat().st_blocks * 512
    return found / (1 << 20)


def slope_of(hours: list[float], values: list[float]) -> tuple[float, float]:
    """Slope per hour, and half its 95 % confidence interval."""
    (slope, _), covariance = np.polyfit(hours, values, 1, cov=True)
    return float(slope), 1.96 * float(np.sqrt(covariance[0, 0]))


def by_minute(samples: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Hours and means of each minute."""
    groups = [list(group) for _, group in itertools.groupby(samples, key=lambda sample: int(sample[0] // 60))]
    return (
        [sum(at_s for at_s, _ in group) / len(group) / 3600 for group in groups],
        [sum(value for _, value in group) / len(group) for group in groups],
    )


def report(series: Mapping[str, list[tuple[float, float]]], from_s: float) -> int:
    grown = 0
    print(f"{'figure':24} {'mean':>10} {'slope an hour':>24}  means of each quarter")
    for name, samples in series.items():
        hours, values = by_minute([sample for sample in samples if sample[0] >= from_s])
        slope, half = slope_of(hours, values)
        mean = sum(values) / len(values)
        bound = 1.0 if name.endswith(_COUNTED) else GROWTH_OF_A_DAY * mean
        grows = slope - half > 0 and 24 * slope > bound
        grown += grows
        quarters = " ".join(f"{np.mean(part):.2f}" for part in np.array_split(values, 4))
        print(f"{name:24} {mean:10.2f} {slope:+12.4f} ± {half:8.4f}  {quarters} {'GROWS' if grows else ''}")
    return grown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--size", default="1GiB")
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    chance = random.Random(wanted.seed)  # noqa: S311 - no secret
    series: dict[str, list[tuple[float, float]]] = {}
    before: dict[str, tuple[float, float]] = {}
    filled_s = FILLING_SHARE * 60 * wanted.minutes
    with tempfile.TemporaryDirectory(prefix="slo-") as folder, cgroups(*VMS) as groups:
        root = Path(folder)
        make_device(root, f"name=ssd0,preset=fast15,size={wanted.size},op=15%", *(f"name={vm}" for vm in VMS))
        vms = [f'[vm.{vm}]\ncgroup = "{groups.path(vm)}"\nnamespaces = ["ssd0/{vm}"]\n' for vm in VMS]
        fast = f'[daemon]\nepoch = "{1000 // FILLING_SPEED}ms"\n'
        normal = "".join(['[libvirt]\nuri = "none"\n', *vms])
        config = root / "slo-ctl.toml"
        config.write_text(fast + normal)
        with (
            served(root, "ssd0", "--latency", "real") as server,
            running(root, environment=checkout.OF_UNIT) as daemon,
            clients(groups, root) as loads,
        ):
            processes = {"daemon": daemon.process.pid, "server": int(server.run.pid_file.read_text())}
            began_s = time.monotonic()
            running_until = dict.fromkeys(VMS, 0.0)
            filling = True
            while (now_s := time.monotonic() - began_s) < 60 * wanted.minutes:
                if filling and now_s >= filled_s:
                    filling = False
                    config.write_text(normal)
                    daemon.api.post("/v1/reload")
                for vm in VMS:
                    if running_until[vm] <= now_s and chance.random() < 0.5:
                        seconds = chance.choice((20, 45, 90))
                        load = (*chance.choice(_PHASES).split(), "--time_based", f"--runtime={seconds}")
                        if running_until[vm]:
                            loads.stop(vm)
                        loads.start(vm, "--ioengine=nbd", f"--uri={server.uri(vm)}", *load)
                        running_until[vm] = now_s + seconds + 10
                for _ in range(chance.choice((0, 0, 20))):
                    set_slo(daemon.api, chance)
                for name, pid in processes.items():
                    for figure, value in measured(pid).items():
                        if figure != "cpu_s":
                            series.setdefault(f"{name} {figure}", []).append((now_s, value))
                            continue
                        last_s, last = before.get(name, (now_s, value))
                        before[name] = now_s, value
                        if now_s > last_s and name == "daemon":
                            rate = 100 * (value - last) / (now_s - last_s)
                            series.setdefault(f"{name} cpu_percent", []).append((now_s, rate))
                series.setdefault("files_mib", []).append((now_s, files_mib(root)))
                print(f"\r{now_s / 60:.0f} of {wanted.minutes:.0f} min", end="", file=sys.stderr, flush=True)
                time.sleep(EVERY_S / FILLING_SPEED if filling else EVERY_S)
            print(file=sys.stderr)
    return int(report(series, filled_s) > 0)


def set_slo(api: ApiClient, chance: random.Random) -> None:
    body = {"fields": {"weight": chance.randint(1, 10), "max_iops": chance.randint(500, 5000)}}
    api.put(f"/v1/vms/{chance.choice(VMS)}/slo", body)


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
