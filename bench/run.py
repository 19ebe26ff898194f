"""Speeds as ratios: the emulated SSD against memory, trace readers in records per second.

`make bench` runs it; BENCH_ARGS="--json" prints one JSON object, BENCH_ARGS="8" only the drive of 8 GiB,
BENCH_ARGS="--plot FILE.svg 1 4 16 64 256 1024" plots speed and memory by size (3 minutes, 8 GiB of memory).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from checkout import ROOT

LEAST_RECORDS = 1_000_000
ROUNDS = 3

TEXT_LINES = {
    # A few lines of each text format (headers first), repeated to LEAST_RECORDS records.
    "spc": ("", "0,303567,3584,w,0.000000\n1,55590,3072,W,0.026214\n"),
    "msr": ("", "128166385295514663,hm,0,Write,9056014336,2048,2833\n"),
    "msr-cut": ("", "0.000 0 200626176 4096 0\n223.412 0 3159347200 36864 1\n"),
    "alibaba": ("", "0,R,126703661056,4096,1577808000000046\n1,W,19496058880,77824,1577808000000426\n"),
    "tencent": ("", "1538323199,105352008,584,1,1576\n"),
    "systor17": (
        "Timestamp,Response,IOType,LUN,Offset,Size\n",
        "1456095145.133076000,0.000806000,R,0,899056122368,131072\n",
    ),
    "fiu": ("", "0 4892 syslogd 904265560 8 W 6 0 md5\n"),
    "disksim": ("", "7961.833 0 20228336 8 0\n8346.206 0 6397360 496 1\n"),
    "ssdsim": ("", "114000 0 5056 8 1\n220000 0 9456 16 0\n"),
    "blkparse": ("", "259,2    0        1     0.000000000  4020  Q   R 282624 + 8 [java]\n"),
    "iolog": ("fio version 3 iolog\n0 /dev/sda add\n0 /dev/sda open\n", "12 /dev/sda write 4096 8192\n"),
}


def run_core(arguments: list[str], stdout: int | None = None) -> subprocess.CompletedProcess[str]:
    """Build and run the Rust benchmark."""
    build = ["cargo", "build", "--release", "--quiet", "-p", "slo-ctl-bench"]
    subprocess.run(build, cwd=ROOT, check=True)
    command = [str(ROOT / "target" / "release" / "slo-ctl-bench"), *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=stdout, text=True)


def bench_core(sizes: list[str]) -> list[dict[str, Any]]:
    """The Rust benchmark, one row for each drive size."""
    done = run_core(["--json", *sizes], stdout=subprocess.PIPE)
    return [json.loads(line) for line in done.stdout.splitlines()]


def bench_reader(name: str, folder: Path) -> dict[str, Any]:
    """Reading and summarising a trace of at least LEAST_RECORDS records, as `trace info` does."""
    from traces.reader import open_trace
    from traces.summary import summarise

    header, lines = TEXT_LINES[name]
    path = folder / name
    with path.open("w") as out:
        out.write(header)
        block = lines * 1000
        for _ in range(-(-LEAST_RECORDS // (lines.count("\n") * 1000))):
            out.write(block)
    rates = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        records = summarise(open_trace(path, format=name)).records
        rates.append(records / (time.perf_counter() - start))
    return {"format": name, "records": records, "records_per_s": statistics.median(rates)}


def plot(core: list[dict[str, Any]], path: Path) -> None:
    """Speed and memory of the core by size of the drive."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    from slo_ctl.base import numbers
    from slo_ctl.show.file_plots import colour_of, drawn_to

    sizes = [row["gib"] << 30 for row in core]
    curves = {
        "count-only": [row["count_only_per_cpu_s"] / 1e6 for row in core],
        "timed": [row["timed_per_cpu_s"] / 1e6 for row in core],
        "memory limit": [row["dram_updates_per_cpu_s"] / row["waf"] / 1e6 for row in core],
    }
    with drawn_to(path, 8.4, 3.2) as figure:
        speed, memory = figure.subplots(1, 2)
        for index, (name, values) in enumerate(curves.items()):
            style = "dashed" if name == "memory limit" else "solid"
            speed.plot(sizes, values, marker="o", color=colour_of(index), linestyle=style, label=name)
        speed.set_ylabel("page writes per CPU-second, millions")
        speed.legend()
        memory.plot(sizes, [row["drive_bytes"] for row in core], marker="o", color=colour_of(0))
        memory.set_ylabel("memory")
        for axes in (speed, memory):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(sizes)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: numbers.size(value)))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_xlabel("size of the emulated SSD")
        speed.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        memory.set_yscale("log", base=2)
        memory.yaxis.set_major_formatter(FuncFormatter(lambda value, _: numbers.size(value)))


def main() -> int:
    """Run, print, return an exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--mappings", action="store_true", help="compare the mappings instead")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="speed and memory by size of the drive")
    parser.add_argument("gib", nargs="*", help="drive sizes in GiB (default 1 8 64)")
    arguments = parser.parse_args()
    if arguments.mappings:
        return run_core(["--mappings", *(["--json"] if arguments.json else []), *arguments.gib]).returncode
    print("measuring the core ...", file=sys.stderr)
    core = bench_core(arguments.gib)
    if arguments.plot is not None:
        plot(core, arguments.plot)
    readers = []
    with tempfile.TemporaryDirectory() as folder:
        for name in TEXT_LINES:
            print(f"reading {name} ...", file=sys.stderr)
            readers.append(bench_reader(name, Path(folder)))
    if arguments.json:
        print(json.dumps({"format_version": 1, "core": core, "trace_readers": readers}, indent=2))
        return 0
    print("4 KiB uniform random writes, preconditioned EMULATED SSD, S_f .15, millions per CPU-second")
    print(f"{'GiB':>5} {'WAF':>6} {'count-only':>11} {'timed':>7} {'limit':>7} {'ratio':>6} {'memory':>11}")
    for row in core:
        limit = row["dram_updates_per_cpu_s"] / row["waf"]
        print(
            f"{row['gib']:>5} {row['waf']:>6.2f} {row['count_only_per_cpu_s'] / 1e6:>11.1f} "
            f"{row['timed_per_cpu_s'] / 1e6:>7.1f} {limit / 1e6:>7.1f} {row['ratio_of_limit']:>6.2f} "
            f"{row['drive_bytes'] >> 20:>7,} MiB"
        )
    print("\nreading and summarising text traces, millions of records per second; medians of 3")
    for row in readers:
        print(f"{row['format']:>12} {row['records_per_s'] / 1e6:>6.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
