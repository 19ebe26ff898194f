"""One profile from three hosts by MPI; also with a killed rank or master, and interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from serra_hosts import HOSTS, Hosts, require_mpi

sys.path.insert(0, str(Path(__file__).parents[1] / "profile"))
import fake_fio

pytestmark = pytest.mark.slow
TIMEOUT_S = 150.0
RECOVERING = ("--enable-recovery", "--mca", "odls_base_sigkill_timeout", "8")
"""Ranks get 8 s to store their results; by default mpirun kills them after one second."""
END_TIMEOUT_S = 300.0
SMALL = ("--interval", "8k-64k/8k", "--points", "3", "--file-size", "16MiB", "--json")
SLOW_TO_END = """import signal
signal.signal(signal.SIGINT, lambda *_: (time.sleep(3.0), os._exit(1)))
time.sleep(0.3)"""
"""Code of a fio that takes 3 s to end after SIGINT."""
FOUR_TIMES = (
    *(*SMALL, "--test-time", "100ms", "--min-repetitions", "4", "--repetitions", "4"),
    *("--quiet", "--mpi"),
)


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
    """The profile on its stdout, and its stderr. Kills it if it does not end."""
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
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


def test_three_hosts_give_the_same_profile_as_one(
    root: Path, tmp_path: Path, place: Path, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a fio that answers by formula, the results are identical."""
    fake_fio.install(tmp_path / "bin")
    fake_fio.put_first(monkeypatch, tmp_path / "bin")
    alone, _ = finished(start(command(root / "alone", str(place), *SMALL)))
    words = hosts.mpirun(*command(root / "mpi", str(place), *SMALL, "--mpi"), options=RECOVERING)
    together, _ = finished(start(words))
    assert times(together) == times(alone)
    assert together["ratios"] == alone["ratios"]
    assert together["curves"] == alone["curves"]
    assert together["complete"]
    assert len(together["nodes"]) == len(HOSTS)
    assert all(node["tests"] > 0 and not node["left_out"] for node in together["nodes"])
    assert list(place.iterdir()) == []


def test_killed_rank_is_lost_and_others_complete_the_profile(
    root: Path, tmp_path: Path, place: Path, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times come from a formula: on a busy machine nodes differ, and one could be excluded for that."""
    fake_fio.install(tmp_path / "bin", extra="time.sleep(0.1)")
    fake_fio.put_first(monkeypatch, tmp_path / "bin")
    process = start(hosts.mpirun(*command(root, str(place), *FOUR_TIMES), options=RECOVERING))
    with ending(process):
        os.kill(_measuring_on(3, process, root, hosts), signal.SIGKILL)
        profile, stderr = finished(process)
    assert profile["complete"]
    # Three sizes, four times, four tests each.
    assert len(times(profile)) == len(profile["measurement"]) == 3 * 4 * 4
    lost = profile["nodes"][2]
    assert "nothing was heard of it" in lost["left_out"]
    assert [node["left_out"] for node in profile["nodes"][:2]] == ["", ""]
    assert f"{lost['name']} is excluded" in stderr
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("options", [(), ("--enable-recovery",)])
def test_killing_rank_0_keeps_completed_measurements(
    root: Path,
    tmp_path: Path,
    place: Path,
    hosts: Hosts,
    options: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """mpirun kills the other ranks a second after SIGTERM, while fio takes longer to end here."""
    fake_fio.install(tmp_path / "bin", extra=SLOW_TO_END)
    fake_fio.put_first(monkeypatch, tmp_path / "bin")
    process = start(hosts.mpirun(*command(root, str(place), *FOUR_TIMES), options=options))
    with ending(process):
        os.kill(_measuring_on(1, process, root, hosts), signal.SIGKILL)
        kept = stored(root)
        assert kept["measurement"]
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    if options:
        assert "rank 0, which distributes the work, is lost" in stderr
        assert "run the same command again to continue" in stderr
    else:
        assert process.returncode != 0
        assert "exited on signal 9" in stderr
    assert stored(root)["measurement"] == kept["measurement"]
    assert_nothing_is_left(place)
    if options:
        return  # the stored results are the same in both cases
    # It continues from them, and keeps every earlier test.
    again, _ = finished(start(command(root, str(place), *FOUR_TIMES[: FOUR_TIMES.index("--mpi")])))
    assert again["complete"]
    assert times(kept).items() <= times(again).items()


def test_ctrl_c_on_mpirun_keeps_completed_measurements(root: Path, place: Path, hosts: Hosts) -> None:
    process = start(hosts.mpirun(*command(root, str(place), *FOUR_TIMES), options=RECOVERING))
    with ending(process):
        _measuring_on(1, process, root, hosts)
        process.send_signal(signal.SIGINT)
        out, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode != 0
    assert "Traceback" not in stderr
    kept = stored(root)["measurement"]
    assert kept
    # mpirun forwards the output of a rank only while mpirun itself runs: its end or all of it may be missing.
    if out.endswith("\n}\n"):
        printed = json.loads(out)
        assert (printed["stopped"], printed["complete"], printed["measurement"]) == (
            "interrupted",
            False,
            kept,
        )
    else:
        assert out == "" or out.startswith("{")
    assert_nothing_is_left(place)


def test_ctrl_c_on_mpirun_before_the_first_measurement_is_clean(
    root: Path, place: Path, hosts: Hosts
) -> None:
    process = start(hosts.mpirun(*command(root, str(place), *FOUR_TIMES), options=RECOVERING))
    with ending(process):
        time.sleep(1.2)  # ranks are about to start, or have started
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode != 0
    assert "Traceback" not in stderr
    assert_nothing_is_left(place)


def stored(root: Path) -> dict[str, Any]:
    """The only stored profile."""
    (path,) = (root / "profiles").glob("*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def assert_nothing_is_left(place: Path) -> None:
    """Files of the ranks are gone, at once or as soon as their processes detect that they are orphans."""
    deadline_s = time.monotonic() + END_TIMEOUT_S
    while (left := list(place.iterdir())) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert left == []


@contextmanager
def ending(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill mpirun if the test fails."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate()


def _measuring_on(host: int, process: subprocess.Popen[str], root: Path, hosts: Hosts) -> int:
    """PID of the rank on that host after the first measurement."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline_s:
        if list((root / "profiles").glob("*.json")) and (pid := hosts.rank_on(host)):
            return pid
        time.sleep(0.05)
    process.terminate()
    raise AssertionError(f"nothing is measured: {' '.join(process.communicate())}")
