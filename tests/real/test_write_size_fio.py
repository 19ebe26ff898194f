"""The search for the optimal write size with real fio: a file, a loop device; interruption."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from commands import DeviceCommand
from serving import READY_S
from test_serra_profile import loop_device

SMALL = ("--bytes", "32MiB", "--sizes", "64KiB-2MiB", "--repetitions", "4", "--quiet")
OUTCOMES = {"none needed", "found", "not reached"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed"),
]


WRITE_SIZE = DeviceCommand("write-size")


def complete(found: dict[str, Any]) -> None:
    """Check that it is complete and states its confidence."""
    assert found["outcome"] in OUTCOMES
    last = found["sizes"][-1]
    assert found["sure"] == all(each["closeness"] in ("equal", "slower") for each in found["sizes"])
    assert last["low"] <= last["ratio"]
    assert last["high"] is None or last["ratio"] <= last["high"]
    if found["outcome"] == "found":
        assert found["optimal_write_bytes"] == last["size_bytes"]
    else:
        assert found["optimal_write_bytes"] is None
    assert bool(found["advice"]) == (found["outcome"] == "found" and found["sure"])
    sys.stderr.write(
        f"{found['identity']['model']}: {found['outcome']} {found['optimal_write_bytes']}, "
        f"sure: {found['sure']}, last ratio {last['ratio']:.2f}\n"
    )


def test_write_size_of_a_file_is_measured(root: Path) -> None:
    place = root / "place"
    place.mkdir()
    found = WRITE_SIZE.measure(root, str(place), *SMALL)
    complete(found)
    assert list(place.iterdir()) == []
    assert WRITE_SIZE.shown(root, str(place))["pair"] == found["pair"]


def test_loop_device_is_written_only_if_named(root: Path) -> None:
    with loop_device(root) as device:
        before = (root / "loop.img").read_bytes()
        assert "would be overwritten" in WRITE_SIZE.refused(root, device, *SMALL)
        assert (root / "loop.img").read_bytes() == before
        found = WRITE_SIZE.measure(root, device, *SMALL, "--allow-write", device)
        complete(found)
        assert found["identity"]["place"] == "block device"
        assert "128MiB" in WRITE_SIZE.refused(
            root, device, "--bytes", "128MiB", "--sizes", "8KiB-1MiB", "-q", "--allow-write", device
        )


def test_busy_mounted_or_write_protected_loop_device_is_refused(root: Path) -> None:
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed")
    with loop_device(root) as device:
        subprocess.run(["blockdev", "--setro", device], check=True)
        try:
            assert "it cannot be written" in WRITE_SIZE.refused(root, device, *SMALL, "--allow-write", device)
        finally:
            subprocess.run(["blockdev", "--setrw", device], check=True)
        subprocess.run(["mkfs.ext4", "-q", device], check=True)
        assert "it is not empty: ext4" in WRITE_SIZE.refused(root, device, *SMALL, "--allow-write", device)
        mounted = root / "mounted"
        mounted.mkdir()
        if subprocess.run(["mount", device, str(mounted)], check=False).returncode:
            pytest.skip("it cannot be mounted")
        try:
            assert "the device is busy" in WRITE_SIZE.refused(root, device, *SMALL, "--allow-write", device)
            assert "are needed" in WRITE_SIZE.refused(root, str(mounted), "--quiet")
            subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
            assert "it is not writable" in WRITE_SIZE.refused(root, str(mounted), *SMALL)
        finally:
            subprocess.run(["umount", str(mounted)], check=True)


def test_interrupted_search_keeps_completed_measurements(root: Path) -> None:
    place = root / "place"
    place.mkdir()
    # The ratio never satisfies the rule, so it continues until it is stopped.
    words = ("--bytes", "32MiB", "--sizes", "64KiB-2MiB", "--tolerance", ".01%", "--repetitions", "100", "-q")
    process = subprocess.Popen(
        WRITE_SIZE.line(root, str(place), *words, "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    kept = root / "profiles" / "write-sizes"
    deadline = time.monotonic() + READY_S
    while not list(kept.glob("*.json")) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=READY_S)
    assert "Traceback" not in err
    assert process.returncode == 130, err
    assert list(place.iterdir()) == []
    kept_pair = WRITE_SIZE.shown(root, str(place))["pair"]
    assert kept_pair == json.loads(out)["pair"]
    assert kept_pair


def test_write_cost_of_a_file_is_measured(root: Path) -> None:
    """Parses the response-time log of the installed fio version."""
    place = root / "place"
    place.mkdir()
    words = ("--bytes", "16MiB", "--size", "16KiB", "--size", "256KiB", "--quiet", "--json")
    done = subprocess.run(
        DeviceCommand("write-cost").line(root, str(place), *words),
        capture_output=True,
        text=True,
        check=False,
    )
    if "not slower" in done.stderr:
        pytest.skip("too disturbed: larger writes were faster")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [each["requests"] for each in found["sizes"]] == [2 * 1024, 2 * 64]
    assert found["bandwidth_bytes_s"]["value"] > 1e6
    assert list(place.iterdir()) == []
