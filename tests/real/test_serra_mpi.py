"""One profile from three hosts by MPI; with a rank killed on the way; and from processes of one machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from serra_hosts import HOSTS, Hosts, require_mpi

if TYPE_CHECKING:
    from collections.abc import Iterator

sys.path.insert(0, str(Path(__file__).parents[1] / "serra"))
import fake_fio

pytestmark = pytest.mark.slow
PATIENCE_S = 120.0
START_PATIENCE_S, START_ATTEMPTS = 30.0, 3
SMALL = ("--interval", "8k-64k/8k", "--points", "3", "--file-size", "16MiB", "--json")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    require_mpi()
    with Hosts(tmp_path) as made:
        yield made


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "place"
    made.mkdir()
    return made


def command(root: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "slo_ctl.cli", "device", "profile", *words, "--root", str(root)]


def finished(process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    """The profile it prints, and what it says. Ends it if it does not end by itself."""
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, err = process.communicate()
        raise AssertionError(f"mpirun does not end: {out}{err}") from None
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out)
    return found, err


def start(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def times(profile: dict[str, Any]) -> dict[tuple[str, int, int], float]:
    return {
        (row["access"], row["size_bytes"], row["repetition"]): row["access_time_s"]
        for row in profile["measurement"]
    }


def test_three_hosts_give_the_profile_of_one(
    root: Path, tmp_path: Path, place: Path, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a fio that answers by formula: what comes out is the same, number by number."""
    fake_fio.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    alone, _ = finished(start(command(root / "alone", str(place), *SMALL)))
    words = hosts.mpirun(*command(root / "mpi", str(place), *SMALL, "--mpi"), options=("--enable-recovery",))
    together, _ = finished(start(words))
    assert times(together) == times(alone)
    assert together["ratios"] == alone["ratios"]
    assert together["curves"] == alone["curves"]
    assert together["complete"]
    assert len(together["nodes"]) == len(HOSTS)
    assert all(node["tests"] > 0 and not node["left_out"] for node in together["nodes"])
    assert list(place.iterdir()) == []


def test_a_rank_that_is_killed_is_lost_and_the_others_complete_the_profile(
    root: Path, place: Path, hosts: Hosts
) -> None:
    options = ("--test-time", "300ms", "--min-repetitions", "6", "--repetitions", "6", "--quiet")
    process, victim = _measuring(root, hosts, str(place), *SMALL, *options, "--mpi")
    os.kill(victim, signal.SIGKILL)
    profile, said = finished(process)
    assert profile["complete"]
    # Three sizes, six times, four tests each.
    assert len(times(profile)) == len(profile["measurement"]) == 3 * 6 * 4
    lost = profile["nodes"][2]
    assert "nothing was heard of it" in lost["left_out"]
    assert [node["left_out"] for node in profile["nodes"][:2]] == ["", ""]
    assert f"{lost['name']} was left out" in said
    assert list(place.iterdir()) == []


def _measuring(root: Path, hosts: Hosts, *options: str) -> tuple[subprocess.Popen[str], int]:
    """mpirun, once something is measured, and the rank on the third host.

    It was seen to hang before any rank was up; that is not what is tested here, so it is started again.
    """
    told = ""
    for attempt in range(START_ATTEMPTS):
        kept = root / f"attempt-{attempt}"
        process = start(hosts.mpirun(*command(kept, *options), options=("--enable-recovery",)))
        try:
            deadline_s = time.monotonic() + START_PATIENCE_S
            while process.poll() is None and time.monotonic() < deadline_s:
                if list((kept / "profiles").glob("*.json")) and (pid := hosts.rank_on(3)):
                    return process, pid
                time.sleep(0.05)
        except BaseException:
            process.terminate()
            process.communicate()
            raise
        process.terminate()
        told = " ".join(process.communicate())
    raise AssertionError(f"nothing is measured: {told}")
