"""The profiler with real fio: loop device, served emulated SSD, full file system; and interruption."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import DeviceCommand
from serving import READY_S, make_device, served
from waiting import until

MIB = 1 << 20
SMALL = (
    "--interval",
    "8k-64k/8k",
    "--points",
    "2",
    "--file-size",
    "16MiB",
    "--test-time",
    "100ms",
    "--quiet",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed"),
]


PROFILE = DeviceCommand("profile")


@contextmanager
def loop_device(folder: Path, size: int = 64 * MIB) -> Iterator[str]:
    image = folder / "loop.img"
    image.write_bytes(b"")
    os.truncate(image, size)
    made = subprocess.run(
        ["losetup", "--find", "--show", "--direct-io=on", str(image)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"no loop device: {made.stderr.strip()}")
    device = made.stdout.strip()
    try:
        yield device
    finally:
        subprocess.run(["losetup", "--detach", device], check=False)


def test_a_loop_device_is_only_read_unless_named(root: Path) -> None:
    with loop_device(root) as device:
        before = (root / "loop.img").read_bytes()
        found = PROFILE.measure(root, device, *SMALL, "--repetitions", "2")
        assert set(found["ratios"]) == {"read"}
        assert found["identity"]["place"] == "block device"
        assert (root / "loop.img").read_bytes() == before
        other = PROFILE.refused(root, device, *SMALL, "--allow-write", str(root / "loop.img"))
        assert "is not a target" in other
        assert (root / "loop.img").read_bytes() == before
        written = PROFILE.measure(root, device, *SMALL, "--repetitions", "2", "--allow-write", device)
        assert set(written["ratios"]) == {"read", "write"}
        assert (root / "loop.img").read_bytes() != before


def test_loop_device_with_data_is_not_written(root: Path) -> None:
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed")
    with loop_device(root) as device:
        subprocess.run(["mkfs.ext4", "-q", device], check=True)
        subprocess.run(["sync", str(root / "loop.img")], check=True)
        before = (root / "loop.img").read_bytes()
        assert "it is not empty: ext4" in PROFILE.refused(root, device, *SMALL, "--allow-write", device)
        mounted = root / "mounted"
        mounted.mkdir()
        if subprocess.run(["mount", device, str(mounted)], check=False).returncode == 0:
            try:
                output = PROFILE.refused(root, device, *SMALL, "--allow-write", device)
            finally:
                subprocess.run(["umount", str(mounted)], check=True)
            assert "the device is busy" in output
        else:
            assert (root / "loop.img").read_bytes() == before


def test_write_protected_loop_device_is_refused(root: Path) -> None:
    with loop_device(root) as device:
        if subprocess.run(["blockdev", "--setro", device], check=False).returncode:
            pytest.skip("blockdev cannot write-protect it")
        try:
            assert "it cannot be written" in PROFILE.refused(root, device, *SMALL, "--allow-write", device)
        finally:
            # It would outlive the device and apply to the next one with that number.
            subprocess.run(["blockdev", "--setrw", device], check=True)


def test_full_file_system_is_reported(root: Path) -> None:
    with loop_device(root) as device:
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("mkfs.ext4 is not installed")
        subprocess.run(["mkfs.ext4", "-q", device], check=True)
        mounted = root / "mounted"
        mounted.mkdir()
        if subprocess.run(["mount", device, str(mounted)], check=False).returncode:
            pytest.skip("it cannot be mounted")
        try:
            assert "MiB are needed" in PROFILE.refused(root, str(mounted), "--file-size", "256MiB", "-q")
            subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
            assert "it is not writable" in PROFILE.refused(root, str(mounted), *SMALL)
        finally:
            subprocess.run(["umount", str(mounted)], check=True)


def test_served_emulated_ssd_can_be_profiled(root: Path) -> None:
    make_device(root, "name=d,size=128MiB")
    with served(root, "d", "--latency", "real") as server:
        found = PROFILE.measure(root, server.uri(), *SMALL, "--repetitions", "2")
        assert set(found["ratios"]) == {"read"}
        assert found["identity"]["model"] == "EMULATED SSD d"
        uri = server.uri()
        assert set(
            PROFILE.measure(root, uri, *SMALL, "--repetitions", "2", "--allow-write", uri)["ratios"]
        ) == {
            "read",
            "write",
        }
        # A superblock of ext4 as far as blkid checks it: magic number and size.
        import struct

        from nbd_client import NbdClient

        with NbdClient(server.run.export("d"), "d") as client:
            client.zero(0, MIB)
            superblock = bytearray(1024)
            struct.pack_into("<IIII", superblock, 0, 16, 64, 0, 40)
            struct.pack_into("<H", superblock, 56, 0xEF53)
            struct.pack_into("<I", superblock, 76, 1)
            client.write(1024, bytes(superblock))
        assert "it is not empty" in PROFILE.refused(root, uri, *SMALL, "--allow-write", uri)
    # Its profile can be shown while it is not served.
    assert PROFILE.shown(root, uri)["validity"]["stale"] is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("measuring", [False, True], ids=["at its start", "measuring"])
def test_interrupted_profile_keeps_completed_measurements(
    root: Path, number: signal.Signals, measuring: bool
) -> None:
    place = root / "place"
    place.mkdir()
    words = ("--file-size", "64MiB", "--test-time", "100ms", "--quiet", "--json")
    process = subprocess.Popen(
        PROFILE.line(root, str(place), *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    if measuring:
        until(lambda: bool(list((root / "profiles").glob("*.json"))) or process.poll() is not None, "a test")
    else:
        time.sleep(0.2)
    process.send_signal(number)
    out, err = process.communicate(timeout=READY_S)
    # Before our code runs, Python itself answers Ctrl-C with a traceback.
    assert "Traceback" not in err or (not measuring and ", in main" not in err), err
    if measuring:
        assert process.returncode == 130, err
    assert list(place.iterdir()) == []
    if out:
        measured = len(json.loads(out)["measurement"])
        assert measured == len(PROFILE.shown(root, str(place))["measurement"]) or measured == 0


def test_killed_fio_is_reported(root: Path) -> None:
    place = root / "place"
    place.mkdir()
    process = subprocess.Popen(
        PROFILE.line(root, str(place), "--file-size", "16MiB", "--test-time", "3s", "--quiet"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        child = _child(process.pid)
    finally:
        if process.poll() is not None:
            process.communicate()
    os.kill(child, signal.SIGKILL)
    _, err = process.communicate(timeout=READY_S)
    assert process.returncode == 2, err
    assert "fio was killed by SIGKILL" in err
    assert list(place.iterdir()) == []


def _child(parent: int) -> int:
    """The fio process that it has started, in its own session."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        listed = subprocess.run(
            ["ps", "-o", "pid=,comm=", "--ppid", str(parent)], capture_output=True, text=True, check=False
        )
        for line in listed.stdout.splitlines():
            pid, name = line.split(maxsplit=1)
            if name.strip() == "fio":
                return int(pid)
        time.sleep(0.05)
    raise AssertionError("no fio was started")
