"""io.cost and I/O schedulers of a real NVMe disk: set, verified in the root of cgroup v2, undone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from .commands import PYTHON, SLO_CTL, start_commands
from .guests import PLAIN
from .machine import Guest
from .recipe import TREE

GUEST = PLAIN
_COST = "/sys/fs/cgroup/io.cost"
_STORE = """
import sys, pathlib
from slo_ctl.drives.places import places
from slo_ctl.model.host import DeviceNumber
from stored_profile import FLASH, store_profile
major, minor = sys.argv[1].split(":")
store_profile(places(pathlib.Path("/root/slo")), DeviceNumber(int(major), int(minor)), FLASH)
"""


@pytest.fixture(scope="module")
def guest(installed: Guest) -> Iterator[Guest]:
    """A guest with the package and without libvirt."""
    start_commands(installed)
    installed.put(TREE / "tests/real/stored_profile.py")
    installed.run("cat >/root/store.py", stdin=_STORE)
    installed.run("mkdir -p /root/slo && printf '[libvirt]\\nuri = \"none\"\\n' >/root/slo/slo-ctl.toml")
    yield installed
    installed.run("rm -rf /root/slo")


def policy(guest: Guest, *words: str) -> dict[str, Any]:
    command = f"{SLO_CTL} device policy {' '.join(words)} --root /root/slo --json"
    found: dict[str, Any] = json.loads(guest.run(command, timeout_s=180).stdout)
    return found


def cost(guest: Guest, what: str, number: str) -> set[str]:
    """The kernel's io.cost settings of a device."""
    lines = guest.run(f"cat {_COST}.{what}").stdout.splitlines()
    return next((set(line.split()[1:]) for line in lines if line.split()[0] == number), set())


def test_io_cost_of_a_profile_is_set_and_restored(guest: Guest) -> None:
    name = guest.disk("PLAIN0")
    number = guest.number(name)
    before = guest.run(f"cat /sys/block/{name}/queue/scheduler").stdout
    guest.run(f"{PYTHON} /root/store.py {number}", timeout_s=180)

    choice = policy(guest, name, "--weights", "--p99", "5ms")
    assert (choice["weights"], choice["needs"]["p99_target_us"]) == ("io.cost", 5000.0)
    outcomes = policy(guest, name, "--weights", "--p99", "5ms", "--apply")["outcomes"]
    assert {each["state"] for each in outcomes} <= {"applied", "unchanged"}, outcomes
    assert set(choice["iocost_model"].split()[1:]) <= cost(guest, "model", number)
    assert {"enable=1", "ctrl=user", "rpct=99.00", "rlat=5000"} <= cost(guest, "qos", number)
    # Repeating it changes nothing.
    again = policy(guest, name, "--weights", "--p99", "5ms", "--apply")["outcomes"]
    assert {each["state"] for each in again} == {"unchanged"}

    undone = policy(guest, name, "--undo")["outcomes"]
    assert {each["state"] for each in undone} == {"restored"}
    assert "enable=1" not in cost(guest, "qos", number)
    assert "ctrl=user" not in cost(guest, "model", number)
    assert guest.run(f"cat /sys/block/{name}/queue/scheduler").stdout == before
