"""The loads of bench/policy_rounds.py in virtual time: `slo-ctl replay` of an SSD, a seed for each round."""

from __future__ import annotations

import json
import subprocess
import sys

from policy_rounds import NAMES, WEIGHTS, Round

_MIXED = "workload=mixed,mix=uniform:1+sequential:1,read=.7,bs=16k,qd=16"
_REPLAYED = {
    "throughput": (_MIXED,) * 3,
    "weights": (_MIXED,) * 3,
    "p99": (
        "workload=uniform,read=1,bs=4k,qd=1",
        "workload=sequential,read=.5,bs=64k,qd=8",
        "workload=mixed,mix=uniform:1+sequential:1,read=.5,bs=16k,qd=16",
    ),
}


def replayed(device: str, scheduler: str, objective: str, drive_writes: float, seed: int) -> Round:
    """One run with its last half measured; the default policy moves OPS as in the daemon."""
    vms = []
    for name, load, weight in zip(NAMES, _REPLAYED[objective], WEIGHTS, strict=True):
        vms += ["--vm", f"name={name},{load},weight={weight if objective == 'weights' else 1:g}"]
    command = [sys.executable, "-m", "slo_ctl.cli", "replay", *vms, "--device", device, "--seed", str(seed)]
    command += ["--scheduler", scheduler, "--duration", f"{drive_writes:g}x", "--no-alone", "--json"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {each["name"]: each for each in json.loads(output)["runs"][0]["vms"]}
    p99_us = found[NAMES[0]]["latency_us"]["read"]["p99"]
    return Round(tuple(found[name]["iops"] for name in NAMES), p99_us)
