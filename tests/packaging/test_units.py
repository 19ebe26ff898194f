"""Units, users and directories, checked offline with systemd's own tools."""

from __future__ import annotations

import grp
import os
import re
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest
from installed_tree import TREE, Installed

from slo_ctl.config.settings import DEFAULTS
from slo_ctl.drives.places import RunPlaces

GROUP = "installed tree"
INSTANCE = "ssd0"
MOST_EXPOSURE = {"slo-ctld.service": 27, "slo-ctl-ftl@.service": 10, "slo-ctl-profile@.service": 10}
"""Tenths of 10."""
SERVICES = tuple(MOST_EXPOSURE)
WITHOUT_NVME = 24
"""The daemon's unit with the settings that it suggests for hosts without NVMe drives."""


def systemd(*command: str | Path) -> subprocess.CompletedProcess[str]:
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"{command[0]} is not installed (scripts/setup.sh --real)")
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture
def instances(installed: Installed, tmp_path: Path) -> Path:
    """The installed units, with one instance of each template."""
    for unit in installed.units.iterdir():
        shutil.copy(unit, tmp_path / unit.name.replace("@.", f"@{INSTANCE}."))
    return tmp_path


def programs(unit: str) -> list[str]:
    return re.findall(r"^Exec\w+=[-+!:@]*(\S+)", unit, re.MULTILINE)


def test_systemd_understands_every_line(instances: Path) -> None:
    """systemd only warns about an unknown key or value: there must be no warning."""
    done = systemd("systemd-analyze", "verify", "--man=no", *sorted(instances.iterdir()))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", SERVICES)
def test_security_exposure_of_units_is_below_the_threshold(instances: Path, name: str) -> None:
    unit = instances / name.replace("@.", f"@{INSTANCE}.")
    assert exposed_above(unit, MOST_EXPOSURE[name]) == ""


def test_unit_names_settings_that_lower_its_exposure(instances: Path) -> None:
    unit = instances / "slo-ctld.service"
    named = re.findall(r"^#   ((?!\[)\w+=.*)", unit.read_text(), re.MULTILINE)
    assert len(named) == 5
    unit.write_text("\n".join([unit.read_text(), "[Service]", *named[:2], ""]))
    assert exposed_above(unit, WITHOUT_NVME) == ""
    unit.write_text("\n".join([unit.read_text(), *named[2:4], ""]))
    assert exposed_above(unit, WITHOUT_NVME - 3) == ""
    unit.write_text("\n".join([unit.read_text(), *named[4:], ""]))
    assert exposed_above(unit, WITHOUT_NVME - 4) == ""


def test_drop_in_for_tracing_is_understood_and_adds_two_tenths(instances: Path, installed: Installed) -> None:
    unit = instances / "slo-ctld.service"
    (instances / "slo-ctld.service.d").mkdir()
    drop_in = installed.prefix / "share/slo-ctl/systemd/cgroup-latency.conf"
    shutil.copy(drop_in, instances / "slo-ctld.service.d")
    done = systemd("systemd-analyze", "verify", "--man=no", unit)
    assert (done.returncode, done.stderr) == (0, "")
    unit.write_text(unit.read_text() + drop_in.read_text())
    assert exposed_above(unit, MOST_EXPOSURE["slo-ctld.service"]) != ""
    assert exposed_above(unit, MOST_EXPOSURE["slo-ctld.service"] + 2) == ""


def exposed_above(unit: Path, tenths: int) -> str:
    """systemd's table of exposures, if the total exceeds the threshold."""
    done = systemd(
        "systemd-analyze", "security", "--offline=true", f"--threshold={tenths}", "--no-pager", unit
    )
    return done.stdout if done.returncode else ""


def test_unit_without_sandbox_is_above_the_threshold(instances: Path) -> None:
    """A unit without any sandbox exceeds the threshold."""
    bare = instances / "bare.service"
    bare.write_text("[Service]\nExecStart=/bin/true\n")
    assert exposed_above(bare, MOST_EXPOSURE["slo-ctld.service"]) != ""


@pytest.mark.parametrize("name", SERVICES)
def test_programs_of_units_are_installed(installed: Installed, name: str) -> None:
    found = programs((installed.units / name).read_text())
    ours = [path for path in found if path.startswith(str(installed.base))]
    assert str(installed.program) in ours
    for path in ours:
        assert installed.base.joinpath(path).stat().st_mode & stat.S_IXUSR
    assert set(found) - set(ours) <= {"/bin/sh"}


def test_every_capability_has_a_reason() -> None:
    """The reason is in the comment just above."""
    for name in SERVICES:
        comment = ""
        for line in (TREE / "systemd" / name).read_text().splitlines():
            if line.startswith("#"):
                comment += line
            elif line.startswith("CapabilityBoundingSet="):
                for capability in re.findall(r"CAP_\w+", line):
                    assert capability in comment or "give sockets" in comment, (name, capability)
            else:
                comment = ""


def test_sysusers_creates_the_group_of_the_daemon(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    done = systemd("systemd-sysusers", f"--root={tmp_path}", TREE / "systemd" / "slo-ctl.sysusers")
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in (tmp_path / "etc" / "group").read_text().splitlines()] == [
        DEFAULTS.api.group
    ]
    assert f"Group={DEFAULTS.api.group}\n" in (TREE / "systemd" / "slo-ctld.service").read_text()


def test_qemu_can_enter_the_directories(tmp_path: Path) -> None:
    done = systemd(
        "systemd-tmpfiles", "--create", f"--root={tmp_path}", TREE / "systemd" / "slo-ctl.tmpfiles"
    )
    if done.returncode != 0 and ("root" in done.stderr or os.geteuid() != 0):
        pytest.skip(f"systemd-tmpfiles: {done.stderr}")
    assert done.returncode == 0, done.stderr
    folder = RunPlaces(tmp_path / "run/slo-ctl/devices" / INSTANCE).folder.parent
    for each in (folder, folder.parent, tmp_path / "var/lib/slo-ctl"):
        assert stat.S_IMODE(each.stat().st_mode) == 0o755


def loop_device(image: Path) -> str:
    with image.open("wb") as file:
        file.truncate(64 << 20)
    made = subprocess.run(
        ["losetup", "--find", "--show", str(image)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"no loop devices: {made.stderr.strip()}")
    return made.stdout.strip()


def is_idle(device: str) -> int:
    command = [str(TREE / "systemd" / "device-is-idle"), device, "1"]
    return subprocess.run(command, capture_output=True, check=False, timeout=120).returncode


def test_idle_device_is_distinguished_from_one_in_use(tmp_path: Path) -> None:
    if shutil.which("losetup") is None or grp.getgrgid(0).gr_name != "root":
        pytest.skip("losetup is not installed")
    device = loop_device(tmp_path / "image")
    try:
        assert is_idle(device) == 0
        reader = subprocess.Popen(
            ["sh", "-c", f"while :; do dd if={device} of=/dev/null bs=4k iflag=direct 2>/dev/null; done"],
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + 60
            while is_idle(device) != 1:  # dd may not have begun to read yet
                assert time.monotonic() < deadline
        finally:
            os.killpg(reader.pid, signal.SIGKILL)
            reader.wait()
    finally:
        subprocess.run(["losetup", "--detach", device], check=False)


def test_path_that_is_not_a_block_device_fails() -> None:
    """systemd distinguishes a failure from `not now`."""
    assert is_idle("/dev/null") == 255
