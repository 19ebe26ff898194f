"""`slo-ctl sweep --dask`: replays on three hosts, which are network namespaces of this machine."""

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
from dask_cluster import ADDRESS, DaskCluster
from serra_hosts import HOSTS, Hosts, require_dask
from waiting import until

pytestmark = pytest.mark.slow
TIMEOUT_S = 300.0
SEEDS = 8
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
    require_dask()
    with Hosts(tmp_path) as made:
        yield made


@pytest.fixture
def cluster(tmp_path: Path, hosts: Hosts) -> Iterator[DaskCluster]:
    with DaskCluster(hosts, tmp_path) as made:
        yield made


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    made = tmp_path / "web.toml"
    made.write_text(SCENARIO)
    return made


def sweep(scenario: Path, out: Path, *words: str) -> list[str]:
    options = ("--seeds", str(SEEDS), "--vms", "1,2", "--out", str(out), "--json", "--quiet")
    return [sys.executable, "-m", "slo_ctl.cli", "sweep", str(scenario), *options, *words]


def start(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0, stderr
    found: dict[str, Any] = json.loads(stdout)
    return found


def rows(out: Path) -> list[dict[str, str]]:
    """Complete rows of the result."""
    if not out.exists():
        return []
    with out.open(newline="") as file:
        found = [row for row in csv.DictReader(file) if None not in row.values()]
    return sorted(found, key=lambda row: (int(row["vms"]), int(row["seed"])))


def test_a_lost_host_and_a_killed_worker_cost_only_their_replays(
    scenario: Path, tmp_path: Path, hosts: Hosts, cluster: DaskCluster
) -> None:
    """One host fails and a worker of another is killed: all results are those of a single machine."""
    out, local = tmp_path / "spread.csv", tmp_path / "local.csv"
    process = start(hosts.in_the_middle(*sweep(scenario, out, "--dask", ADDRESS)))
    until(lambda: process.poll() is not None or len(rows(out)) >= 2, "two replays", TIMEOUT_S)
    cluster.lose(HOSTS[-1])
    os.kill(cluster.worker_on(HOSTS[0]), signal.SIGKILL)
    kept = rows(out)
    assert len(kept) < 2 * SEEDS, "it ended before anything was lost"
    together = finished(process)
    assert together["complete"]
    assert together["missing"] == []
    alone = finished(start(sweep(scenario, local)))
    assert rows(out) == rows(local)
    assert len(rows(out)) == 2 * SEEDS
    assert together["answers"] == alone["answers"]
    # Results that existed before are not computed again.
    lines = out.read_text().splitlines()
    assert len(lines) == len(set(lines)) == 1 + 2 * SEEDS


def test_lost_scheduler_leaves_replays_that_the_same_command_runs(
    scenario: Path, tmp_path: Path, hosts: Hosts
) -> None:
    out = tmp_path / "spread.csv"
    words = [word for word in sweep(scenario, out, "--dask", ADDRESS) if word != "--json"]
    with DaskCluster(hosts, tmp_path) as cluster:
        process = start(hosts.in_the_middle(*words))
        until(lambda: process.poll() is not None or len(rows(out)) >= 2, "two replays", TIMEOUT_S)
        cluster.lose(0)
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 1, stderr
    assert "missing: web, proportional, 1 x its VMs, seed 1: the scheduler was lost" in stdout, stderr
    assert "the same command runs what is missing" in stdout
    assert "Traceback" not in stderr
    kept = rows(out)
    assert 2 <= len(kept) < 2 * SEEDS
    with DaskCluster(hosts, tmp_path):
        assert finished(start(hosts.in_the_middle(*words, "--json")))["complete"]
    done = rows(out)
    assert len(done) == 2 * SEEDS
    assert all(row in done for row in kept)


def test_unreachable_scheduler_is_reported_with_the_fix(scenario: Path, tmp_path: Path, hosts: Hosts) -> None:
    process = start(hosts.in_the_middle(*sweep(scenario, tmp_path / "out.csv", "--dask", ADDRESS)))
    _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 2
    assert f"--dask: the scheduler {ADDRESS} does not answer" in stderr
    assert "start `dask scheduler`" in stderr
