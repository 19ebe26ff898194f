"""NVMe drives of a real kernel, read by a real nvme-cli: their features, and their WAF from real writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .commands import PYTHON, SLO_CTL, start_commands
from .guests import GENERAL
from .machine import Guest

GUEST = GENERAL
_NAMESPACE_BYTES = 128 << 20
_WRITTEN_MIB = 64
_WATCH = """
import json, pathlib, subprocess, sys, time
from slo_ctl.daemon.nvme import NvmeWatch
from slo_ctl.model.status_json import plain
watch = NvmeWatch(sys.argv[1], pathlib.Path("/sys"), 0.1)
watch.read()
seen = [plain(watch.state)]
for mib in (0, int(sys.argv[2])):
    if mib:
        target = f"of=/dev/{sys.argv[1]}"
        subprocess.run(["dd", "if=/dev/zero", target, "bs=1M", f"count={mib}", "oflag=direct"], check=True)
    time.sleep(0.2)
    watch.read()
    seen.append(plain(watch.state))
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def guest(installed: Guest) -> Guest:
    start_commands(installed)
    return installed


def slo_ctl(guest: Guest, words: str, *, check: bool = True) -> str:
    return guest.run(f"{SLO_CTL} {words}", check=check, timeout_s=180).stdout


def shown(guest: Guest, serial: str) -> dict[str, Any]:
    output = json.loads(slo_ctl(guest, f"device show /dev/{guest.controller(serial)} --json"))
    assert isinstance(output, dict)
    return output


def test_detached_namespace_is_seen(guest: Guest) -> None:
    output = shown(guest, "MULTI0")
    assert [(each["nsid"], each["attached"]) for each in output["namespaces"]] == [
        (1, True),
        (2, True),
        (3, False),
    ]
    for each in output["namespaces"]:
        assert each["size_bytes"] == _NAMESPACE_BYTES
        if each["attached"]:
            assert int(guest.run(f"cat /sys/block/{each['name']}/nsid").stdout) == each["nsid"]
    assert output["offers"]["isolation"] == "capacity partition"
    assert output["ocp"]
    assert output["notes"] == []


def test_namespace_attached_after_a_scan_has_a_block_device(guest: Guest) -> None:
    name = guest.controller("MULTI0")
    cntlid = guest.run(f"cat /sys/class/nvme/{name}/cntlid").stdout.strip()
    guest.run(f"nvme attach-ns /dev/{name} -n 3 -c {cntlid} && nvme ns-rescan /dev/{name} && udevadm settle")
    try:
        third = next(each for each in shown(guest, "MULTI0")["namespaces"] if each["nsid"] == 3)
        assert third["attached"]
        assert third["name"]
    finally:
        guest.run(f"nvme detach-ns /dev/{name} -n 3 -c {cntlid} && nvme ns-rescan /dev/{name}")


def test_fdp_is_separation(guest: Guest) -> None:
    output = shown(guest, "FDP0")
    assert output["offers"]["isolation"] == "separation"
    (group,) = output["endurance_groups"]
    assert group["fdp_enabled"]
    assert group["fdp_configs"][0]["handles"] == 8
    assert [
        [handle["reclaim_unit_handle"] for handle in each["handles"]] for each in output["namespaces"]
    ] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]


def test_device_show_names_emulation_and_isolation(guest: Guest) -> None:
    text = slo_ctl(guest, f"device show /dev/{guest.controller('FDP0')}")
    assert "EMULATED by QEMU" in text
    assert "separation by FDP" in text


def test_fdp_statistics_give_a_waf_of_real_writes(guest: Guest) -> None:
    name = next(each["name"] for each in shown(guest, "FDP0")["namespaces"] if each["nsid"] == 1)
    guest.run("cat >/root/watch.py", stdin=_WATCH)
    done = guest.run(
        f"{PYTHON} /root/watch.py {name} {_WRITTEN_MIB} 2>/root/watch.err",
        timeout_s=180,
    )
    first, idle, last = json.loads(done.stdout)
    assert first["placement"] == "separation by FDP"
    assert "no host writes" in idle["waf"]["reason"]
    waf = last["waf"]
    assert waf["source"] == "FDP statistics"
    assert waf["host_bytes"] == _WRITTEN_MIB << 20
    # QEMU makes up this counter: it adds the rest of a reclaim unit when the handle changes to a new one.
    assert 1.0 <= waf["waf"] <= 2.0
    assert waf["emulated"]


def test_doctor_reports_version_and_management(guest: Guest) -> None:
    output = json.loads(slo_ctl(guest, "doctor --json", check=False))
    found = {each["name"]: each for each in output["requirements"]}
    assert found["nvme-cli"]["satisfied"]
    assert found["nvme-cli"]["reason"].startswith("nvme-cli 2.")
    assert found["nvme-namespaces"]["satisfied"]
    assert "oacs bit 3" in found["nvme-namespaces"]["reason"]
