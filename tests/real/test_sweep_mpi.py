"""`slo-ctl sweep --mpi`: replays on three hosts, which are network namespaces of this machine."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serra_hosts import HOSTS, Hosts, require_mpi
from waiting import until

pytestmark = pytest.mark.slow
TIMEOUT_S = 300.0
SEEDS = 6
SCENARIO = """
policy = "proportional"
duration = "4x"

[device]
preset = "fast15"
size = "64MiB"
op = "15%"

[[vm]]
name = "web"
workload = "uniform"
size = "24MiB"
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    require_mpi()
    with Hosts(tmp_path) as made:
        yield made


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    made = tmp_path / "web.toml"
    made.write_text(SCENARIO)
    return made


def sweep(scenario: Path, out: Path, *words: str) -> list[str]:
    options = ("--seeds", str(SEEDS), "--vms", "1,2", "--out", str(out), "--json", "--quiet")
    return ["sweep", str(scenario), *options, *words]


def on_hosts(hosts: Hosts, scenario: Path, out: Path) -> list[str]:
    """One rank on each host; the first hands out replays, the others do them."""
    python = (sys.executable, "-m", "mpi4py.futures", "-m", "slo_ctl.cli")
    return hosts.mpirun(*python, *sweep(scenario, out, "--mpi"))


def finished(words: list[str]) -> dict[str, Any]:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rows(out: Path) -> list[dict[str, str]]:
    """Those that are complete."""
    with out.open(newline="") as file:
        found = [row for row in csv.DictReader(file) if None not in row.values()]
    return sorted(found, key=lambda row: (int(row["vms"]), int(row["seed"])))


def test_sweep_on_three_hosts_equals_sweep_on_one(scenario: Path, tmp_path: Path, hosts: Hosts) -> None:
    local, spread = tmp_path / "local.csv", tmp_path / "spread.csv"
    alone = finished([sys.executable, "-m", "slo_ctl.cli", *sweep(scenario, local)])
    together = finished(on_hosts(hosts, scenario, spread))
    assert together["complete"]
    assert together["answers"] == alone["answers"]
    assert rows(spread) == rows(local)
    assert len(rows(spread)) == 2 * SEEDS


def test_sweep_is_resumed_after_a_host_is_lost(scenario: Path, tmp_path: Path, hosts: Hosts) -> None:
    """Open MPI ends the others with it: what was done is kept, and the same command does the rest."""
    out = tmp_path / "spread.csv"
    process = subprocess.Popen(
        on_hosts(hosts, scenario, out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        until(lambda: process.poll() is not None or (out.exists() and len(rows(out)) >= 2), "two replays")
        os.kill(hosts.rank_on(HOSTS[-1]), signal.SIGKILL)
        process.communicate(timeout=TIMEOUT_S)
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate()
    assert process.returncode != 0
    kept = rows(out)
    assert 2 <= len(kept) < 2 * SEEDS
    assert finished(on_hosts(hosts, scenario, out))["complete"]
    done = rows(out)
    assert len(done) == 2 * SEEDS
    assert all(row in done for row in kept)
