"""A VM of the guest's libvirt and the installed daemon: found, limited, weighted, restored."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from bare_guest import disk_line

from .commands import SLO_CTL, start_commands
from .guests import PLAIN
from .machine import Guest
from .nested import NestedVms
from .vm_scopes import VmScope, first_that, start, until

GUEST = PLAIN
_SIZE_BYTES = 64 << 20
_MAXIMUM_IOPS = 50
_WINDOW_S = 6
_IN_FORCE_S = 900.0
_NEIGHBOUR = VmScope("neighbour", 9)
"""A weight has an effect only beside another one: a single VM keeps the kernel's default."""
_CONFIGURATION = f"""
[[device]]
name = "fast"
path = "/dev/{{name}}"
scheduler = "bfq"

[vm.web]
weight = 3
max_iops = {_MAXIMUM_IOPS}

{_NEIGHBOUR.configuration(weight=1)}
"""


@dataclass(frozen=True)
class Host:
    guest: Guest
    vms: NestedVms
    disk: str
    """The VM's drive in the guest."""

    @property
    def scheduler(self) -> str:
        return f"/sys/block/{self.disk}/queue/scheduler"

    def tune(self) -> dict[str, str]:
        """Limits of the disk from libvirt."""
        return _pairs(self.guest.run("virsh blkdeviotune web vda").stdout)

    def weight(self) -> str:
        return _pairs(self.guest.run("virsh blkiotune web").stdout)["weight"]

    def bfq_weight(self) -> str:
        """The kernel's weight of the VM's scope; the file contains `default 100` or `100`."""
        file = f"/sys/fs/cgroup{self.vms.scope('web')}/io.bfq.weight"
        return self.guest.run(f"cat '{file}'").stdout.split()[-1]

    def delivered_iops(self) -> dict[str, float]:
        """Writes per second over some seconds: by libvirt's counters, and by the kernel's for the scope."""
        group = f"/sys/fs/cgroup{self.vms.scope('web')}"
        look = (
            "cut -d' ' -f1 /proc/uptime; virsh domblkstat web vda | awk '/wr_req/ {print $3}';"
            f" grep \"^$(cat /sys/block/{self.disk}/dev) \" '{group}/io.stat'"
            " | grep -o 'wios=[0-9]*' | cut -c6-"
        )
        output = self.guest.run(f"{look}; sleep {_WINDOW_S}; {look}", timeout_s=120).stdout
        began_s, libvirt, kernel, ended_s, libvirt_after, kernel_after = map(float, output.split())
        took_s = ended_s - began_s
        return {"libvirt": (libvirt_after - libvirt) / took_s, "io.stat": (kernel_after - kernel) / took_s}

    def status(self) -> dict[str, Any]:
        """The row of the VM."""
        output = json.loads(self.guest.run(f"{SLO_CTL} status --json", timeout_s=120).stdout)
        row: dict[str, Any] = next(each for each in output["vms"] if each["vm"] == "web")
        return row


def _pairs(text: str) -> dict[str, str]:
    """Parse virsh's `name : value` lines."""
    return {
        name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())
    }


@pytest.fixture(scope="module")
def host(installed: Guest, tmp_path_factory: pytest.TempPathFactory) -> Host:
    name = installed.disk("LIMITED0")
    start_commands(installed)
    vms = NestedVms(installed, tmp_path_factory.mktemp("nested"))
    installed.run(
        f"modprobe bfq; echo none >/sys/block/{name}/queue/scheduler; systemctl start slo-ctld", timeout_s=240
    )
    vms.define("web", f"/dev/{name}")
    vms.start("web")
    vms.says("web", disk_line(_SIZE_BYTES))
    return Host(installed, vms, name)


def test_vm_is_found_with_its_scope_and_its_disk(host: Host) -> None:
    found = json.loads(host.guest.run(f"{SLO_CTL} vm list --json", timeout_s=120).stdout)
    (vm,) = found["vms"]
    assert (vm["name"], vm["state"], vm["found_by"]) == ("web", "running", "libvirt")
    assert vm["cgroup"] == host.vms.scope("web")
    assert vm["cgroup"].startswith("/machine.slice/machine-qemu")
    number = host.guest.run(f"cat /sys/block/{host.disk}/dev").stdout.strip()
    assert [(disk["target"], disk["device"]) for disk in vm["disks"]] == [("vda", number)]
    (stream,) = (each for each in found["streams"] if each["disk"] == "vda")
    assert stream["vm"] == "web"
    assert vm["cgroup"] in (stream["cgroup"], f"{stream['cgroup']}/libvirt")


def _does_more(iops: dict[str, float]) -> bool:
    return iops["libvirt"] > 2 * _MAXIMUM_IOPS


def test_maximum_and_weight_are_set_through_libvirt_and_kept(host: Host) -> None:
    assert _does_more(first_that(_does_more, host.delivered_iops))  # otherwise a maximum would have no effect
    assert (host.tune()["total_iops_sec"], host.weight(), host.bfq_weight()) == ("0", "100", "100")

    few = (f"--filename=/dev/{host.disk}", "--rw=randwrite", "--bs=4k", "--rate_iops=20")
    start(host.guest, _NEIGHBOUR, *few)
    host.guest.run("cat >>/etc/slo-ctl/slo-ctl.toml", stdin=_CONFIGURATION.format(name=host.disk))
    host.guest.run("systemctl reload slo-ctld", timeout_s=120)
    wanted = f"virsh blkdeviotune web vda | grep -qE 'total_iops_sec *: {_MAXIMUM_IOPS}$'"
    log = "journalctl -u slo-ctld -n 20 --no-pager"
    until(host.guest, f"grep -qF '[bfq]' {host.scheduler} && {wanted}", _IN_FORCE_S, show=log)
    weighted = "virsh blkiotune web | grep -qE 'weight *: 300$'"
    until(host.guest, weighted, _IN_FORCE_S, show="virsh blkiotune web")
    assert host.bfq_weight() == "300"

    kept = dict.fromkeys(("libvirt", "io.stat"), pytest.approx(_MAXIMUM_IOPS, rel=0.1))
    assert first_that(lambda iops: iops == kept, host.delivered_iops) == kept
    # At first its window includes seconds before the maximum, or seconds in which the guest waited for a CPU.
    limited_iops = pytest.approx(_MAXIMUM_IOPS, rel=0.15)
    row = first_that(
        lambda row: row["iops"] == limited_iops and row["verdict"] == "capped",
        host.status,
        looks=30,
        pause_s=2.0,
    )
    assert (row["device"], row["verdict"], row["unapplied"]) == ("fast", "capped", [])
    assert row["iops"] == limited_iops


def test_settings_are_restored_when_the_daemon_stops(host: Host) -> None:
    host.guest.run("systemctl stop slo-ctld", timeout_s=120)
    assert (host.tune()["total_iops_sec"], host.weight(), host.bfq_weight()) == ("0", "100", "100")
    assert "[none]" in host.guest.run(f"cat {host.scheduler}").stdout
    assert _does_more(first_that(_does_more, host.delivered_iops))
