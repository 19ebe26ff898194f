"""The Debian package in a guest that boots with it: units that are started, output, restored settings."""

from __future__ import annotations

import json
import re

import pytest

from .commands import SLO_CTL, start_commands
from .guests import AT_BOOT, GENERAL, Guests
from .installed import properties
from .machine import Guest
from .vm_scopes import first_that, until

GUEST = GENERAL
_EXPOSURE_MAX = 2.8
_TIMEOUT_S = 600
"""Includes the start of the daemon: 30 s of CPU time under emulation, on a machine that may be busy."""
_CONFIGURATION = """
[[device]]
name = "fast"
path = "/dev/{name}"
scheduler = "mq-deadline"
"""


@pytest.fixture(scope="module")
def guest(installed: Guest) -> Guest:
    start_commands(installed)
    return installed


def test_all_files_of_the_package_are_installed(guest: Guest) -> None:
    assert guest.run("dpkg-query -W -f '${Status}' slo-ctl").stdout == "install ok installed"
    assert guest.run("dpkg --verify slo-ctl").stdout == ""


def test_daemon_starts_at_boot_and_notifies_systemd(guest: Guest, guests: Guests) -> None:
    """Type=notify: active means that the daemon has notified systemd that it is ready."""
    if not guests.daemon_at_boot:  # installed in a guest that had booted without it
        guest.run("sync")
        guest.reset()
        guest.run("systemctl is-system-running --wait", timeout_s=_TIMEOUT_S)
    assert (guests.daemon_at_boot or properties(guest, *AT_BOOT)) == {
        "Type": "notify",
        "ActiveState": "active",
        "NRestarts": "0",
        "UnitFileState": "enabled",
        "WatchdogUSec": "1min",
    }


def test_configuring_the_package_starts_the_daemon(guest: Guest) -> None:
    """As apt does on a running host."""
    guest.run("systemctl stop slo-ctld", timeout_s=_TIMEOUT_S)
    guest.run("/var/lib/dpkg/info/slo-ctl.postinst configure ''", timeout_s=_TIMEOUT_S)
    assert properties(guest, "ActiveState", "UnitFileState") == {
        "ActiveState": "active",
        "UnitFileState": "enabled",
    }


def test_watchdog_is_notified(guest: Guest) -> None:
    def fed() -> int:
        return int(properties(guest, "WatchdogTimestampMonotonic")["WatchdogTimestampMonotonic"])

    first = fed()
    assert first > 0
    guest.run(
        f"until [ $(systemctl show slo-ctld -P WatchdogTimestampMonotonic) -gt {first} ]; do sleep 1; done",
        timeout_s=120,
    )


def test_security_exposure_of_the_daemon_is_low(guest: Guest) -> None:
    shown = guest.run("systemd-analyze security --no-pager slo-ctld", timeout_s=120).stdout
    exposure = re.search(r"Overall exposure level for slo-ctld\.service: ([\d.]+)", shown)
    assert exposure is not None
    assert 0.0 < float(exposure[1]) <= _EXPOSURE_MAX


def test_slices_have_limits_of_io(guest: Guest) -> None:
    """Because the unit enables I/O accounting."""
    guest.run("systemd-run --slice=machine.slice --unit=other sleep infinity")
    guest.run("ls /sys/fs/cgroup/machine.slice/io.max /sys/fs/cgroup/machine.slice/io.weight")
    guest.run("systemctl stop other")


def test_doctor_finds_only_bpftrace_missing(guest: Guest) -> None:
    """It is optional, and too large for the image."""
    shown = guest.run("slo-ctl doctor", check=False, timeout_s=_TIMEOUT_S)
    missed = [line for line in shown.stdout.splitlines() if line.startswith("missing")]
    assert ([line.split()[1] for line in missed], shown.rc) == (["bpftrace"], 0), shown.stdout


def test_status_comes_from_the_daemon(guest: Guest) -> None:
    status = json.loads(guest.run("slo-ctl status --json", timeout_s=_TIMEOUT_S).stdout)
    assert "format_version" in status


def test_unit_serves_an_emulated_ssd(guest: Guest) -> None:
    """In the sandbox of the unit; data that a client has flushed survives SIGKILL."""
    guest.run(
        f"{SLO_CTL} device create name=ssd0,preset=fast15,size=64MiB,op=15% --namespace name=web",
        timeout_s=_TIMEOUT_S,
    )
    guest.run("modprobe nbd; systemctl start slo-ctl-ftl@ssd0", timeout_s=_TIMEOUT_S)
    fio = (
        "nbd-client -unix /run/slo-ctl/devices/ssd0/exports/web.sock -N web /dev/nbd0 && fio --name=web"
        " --filename=/dev/nbd0 --rw=write --bs=64k --size=8M --direct=1 --end_fsync=1 --verify=crc32c"
        " {} && nbd-client -d /dev/nbd0"
    )
    guest.run(fio.format("--do_verify=0"), timeout_s=_TIMEOUT_S)
    guest.run("systemctl kill -s KILL slo-ctl-ftl@ssd0")
    guest.run(
        "until [ $(systemctl show slo-ctl-ftl@ssd0 -P NRestarts) = 1 ]"
        " && systemctl is-active -q slo-ctl-ftl@ssd0; do sleep 0.5; done",
        timeout_s=_TIMEOUT_S,
    )
    guest.run(fio.format("--verify_only=1"), timeout_s=_TIMEOUT_S)
    assert "EMULATED SSD, isolated OPS" in guest.run(f"{SLO_CTL} status", timeout_s=_TIMEOUT_S).stdout
    guest.run("systemctl stop slo-ctl-ftl@ssd0", timeout_s=_TIMEOUT_S)
    assert guest.run("systemctl show slo-ctl-ftl@ssd0 -P Result").stdout == "success\n"


def test_profile_unit_refines_the_profile(guest: Guest) -> None:
    """In the sandbox of the unit; the budget is some seconds instead of a minute."""
    guest.run(
        "cd /run/systemd/system && mkdir slo-ctl-profile@.service.d && cat >$_/short.conf"
        " && systemctl daemon-reload",
        stdin="[Service]\nExecStart=\nExecStart=/usr/bin/slo-ctl device profile /dev/%I --budget 10s\n",
    )

    name = guest.disk("PLAIN0")

    def one_night() -> str:
        guest.run(f"systemctl start slo-ctl-profile@{name}", timeout_s=_TIMEOUT_S)
        return guest.run(f"{SLO_CTL} device profile /dev/{name} --show", timeout_s=_TIMEOUT_S).stdout

    # Each run adds measurements; if the guest waits for a CPU, one run measures hardly anything.
    shown = first_that(lambda shown: "RANDOM READ" in shown, one_night, looks=8)
    assert "valid" in shown
    assert "RANDOM READ" in shown


def test_killed_daemon_is_restarted_by_systemd(guest: Guest) -> None:
    before = properties(guest, "MainPID")["MainPID"]
    guest.run("systemctl kill -s KILL slo-ctld")
    guest.run(
        f"until [ $(systemctl show slo-ctld -P MainPID) != {before} ] && systemctl is-active -q slo-ctld;"
        " do sleep 1; done",
        timeout_s=_TIMEOUT_S,
    )
    assert properties(guest, "NRestarts")["NRestarts"] == "1"


def scheduler(guest: Guest) -> str:
    return f"/sys/block/{guest.disk('PLAIN0')}/queue/scheduler"


def until_scheduler(guest: Guest, name: str) -> None:
    file = scheduler(guest)
    show = f"cat {file}; journalctl -u slo-ctld --no-pager -n 20"
    until(guest, f"grep -qF '[{name}]' {file}", _TIMEOUT_S, show=show)


def test_settings_are_restored_when_the_daemon_stops(guest: Guest) -> None:
    guest.run(f"echo none >{scheduler(guest)}")
    guest.run("cat >>/etc/slo-ctl/slo-ctl.toml; sync", stdin=_CONFIGURATION.format(name=guest.disk("PLAIN0")))
    guest.run("systemctl reload slo-ctld", timeout_s=_TIMEOUT_S)
    until_scheduler(guest, "mq-deadline")
    guest.run("systemctl stop slo-ctld", timeout_s=_TIMEOUT_S)
    until_scheduler(guest, "none")
    assert properties(guest, "Result")["Result"] == "success"


def test_unit_with_the_least_rights_finds_devices_and_sets_their_scheduler(guest: Guest) -> None:
    """With all settings that the unit's comment names. Counters of drives are not read then."""
    guest.run(
        "systemctl stop slo-ctld && mkdir -p /run/systemd/system/slo-ctld.service.d"
        " && grep -oP '^#   \\K(\\[Service\\]|\\w+=.*)' /usr/lib/systemd/system/slo-ctld.service"
        " >/run/systemd/system/slo-ctld.service.d/least.conf && systemctl daemon-reload",
        timeout_s=_TIMEOUT_S,
    )
    guest.run(f"echo none >{scheduler(guest)}")
    guest.run("cat >/etc/slo-ctl/slo-ctl.toml", stdin=_CONFIGURATION.format(name=guest.disk("PLAIN0")))
    guest.run("systemctl start slo-ctld", timeout_s=_TIMEOUT_S)
    until_scheduler(guest, "mq-deadline")
    assert properties(guest, "ProtectHome", "PrivateDevices") == {
        "ProtectHome": "yes",
        "PrivateDevices": "yes",
    }
    status = guest.run(f"{SLO_CTL} status", timeout_s=_TIMEOUT_S).stdout
    assert "No such file" not in status
    assert "id-ctrl" in status  # the drive could not be queried
