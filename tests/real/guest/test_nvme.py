"""NVMe drives of a real kernel, read by a real nvme-cli: what they offer, and their WAF by real writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from .drives import Fdp, Medium, Namespace, NvmeSubsystem
from .tree import PLACE, put_tree

if TYPE_CHECKING:
    from .conftest import Boot
    from .machine import Guest

_SMALL = Medium(128 << 20)
_DRIVES = (
    NvmeSubsystem(
        "MULTI0", (Namespace(1, _SMALL), Namespace(2, _SMALL), Namespace(3, _SMALL, attached=False)), ocp=True
    ),
    NvmeSubsystem(
        "FDP0",
        (Namespace(1, _SMALL, fdp_handles="0-3"), Namespace(2, _SMALL, fdp_handles="4-7")),
        fdp=Fdp(reclaim_unit_bytes=16 << 20, handles=8),
    ),
)
_WRITTEN_MIB = 64
_WATCH = """
import json, pathlib, subprocess, sys, time
from slo_ctl.daemon.nvme_watch import NvmeWatch
from slo_ctl.show.status_json import plain
watch = NvmeWatch(sys.argv[1], pathlib.Path("/sys"), 0.1)
watch.look()
seen = [plain(watch.seen)]
for mib in (0, int(sys.argv[2])):
    if mib:
        target = f"of=/dev/{sys.argv[1]}"
        subprocess.run(["dd", "if=/dev/zero", target, "bs=1M", f"count={mib}", "oflag=direct"], check=True)
    time.sleep(0.2)
    watch.look()
    seen.append(plain(watch.seen))
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def guest(boot: Boot) -> Guest:
    """With this tree's Python code."""
    booted = boot(_DRIVES)
    put_tree(booted)
    missing = booted.run("python3 -c 'import typer, rich'", check=False)
    if missing.rc:
        pytest.skip(f"no Python libraries in the guest: {missing.stderr.strip().splitlines()[-1]}")
    return booted


def controller(guest: Guest, serial: str) -> str:
    return guest.run(f"basename $(dirname $(grep -lw {serial} /sys/class/nvme/*/serial))").stdout.strip()


def slo_ctl(guest: Guest, words: str, *, check: bool = True) -> str:
    command = f"cd {PLACE} && python3 -m slo_ctl.cli {words}"
    return guest.run(command, check=check, timeout_s=180).stdout


def shown(guest: Guest, serial: str) -> dict[str, Any]:
    told = json.loads(slo_ctl(guest, f"device show /dev/{controller(guest, serial)} --json"))
    assert isinstance(told, dict)
    return told


def test_detached_namespace_is_seen(guest: Guest) -> None:
    told = shown(guest, "MULTI0")
    assert [(each["nsid"], each["attached"]) for each in told["namespaces"]] == [
        (1, True),
        (2, True),
        (3, False),
    ]
    for each in told["namespaces"]:
        assert each["size_bytes"] == _SMALL.size_bytes
        if each["attached"]:
            assert int(guest.run(f"cat /sys/block/{each['name']}/nsid").stdout) == each["nsid"]
    assert told["offers"]["isolation"] == "capacity partition"
    assert told["ocp"]
    assert told["notes"] == []


def test_attached_after_a_look_it_has_a_block_device(guest: Guest) -> None:
    name = controller(guest, "MULTI0")
    cntlid = guest.run(f"cat /sys/class/nvme/{name}/cntlid").stdout.strip()
    guest.run(f"nvme attach-ns /dev/{name} -n 3 -c {cntlid} && nvme ns-rescan /dev/{name} && udevadm settle")
    try:
        third = next(each for each in shown(guest, "MULTI0")["namespaces"] if each["nsid"] == 3)
        assert third["attached"]
        assert third["name"]
    finally:
        guest.run(f"nvme detach-ns /dev/{name} -n 3 -c {cntlid} && nvme ns-rescan /dev/{name}")


def test_fdp_is_separation(guest: Guest) -> None:
    told = shown(guest, "FDP0")
    assert told["offers"]["isolation"] == "separation"
    (group,) = told["endurance_groups"]
    assert group["fdp_enabled"]
    assert group["fdp_configs"][0]["handles"] == 8
    assert [[handle["reclaim_unit_handle"] for handle in each["handles"]] for each in told["namespaces"]] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]


def test_for_people(guest: Guest) -> None:
    text = slo_ctl(guest, f"device show /dev/{controller(guest, 'FDP0')}")
    assert "EMULATED by QEMU" in text
    assert "separation by FDP" in text


def test_fdp_statistics_become_a_waf_by_real_writes(guest: Guest) -> None:
    name = next(each["name"] for each in shown(guest, "FDP0")["namespaces"] if each["nsid"] == 1)
    guest.run("cat >/root/watch.py", stdin=_WATCH)
    done = guest.run(
        f"PYTHONPATH={PLACE} python3 /root/watch.py {name} {_WRITTEN_MIB} 2>/root/watch.err", timeout_s=180
    )
    first, idle, last = json.loads(done.stdout)
    assert first["placement"] == "separation by FDP"
    assert "nothing was written" in idle["waf"]["reason"]
    waf = last["waf"]
    assert waf["source"] == "FDP statistics"
    assert waf["host_bytes"] == _WRITTEN_MIB << 20
    # QEMU makes the counter up: it adds what is left of a reclaim unit when that is changed.
    assert 1.0 <= waf["waf"] <= 2.0
    assert waf["emulated"]


def test_doctor_tells_version_and_management(guest: Guest) -> None:
    told = json.loads(slo_ctl(guest, "doctor --json", check=False))
    found = {each["name"]: each for each in told["requirements"]}
    assert found["nvme-cli"]["satisfied"]
    assert found["nvme-cli"]["reason"].startswith("nvme-cli 2.")
    assert found["nvme-namespaces"]["satisfied"]
    assert "oacs bit 3" in found["nvme-namespaces"]["reason"]
