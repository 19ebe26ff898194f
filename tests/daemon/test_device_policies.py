"""Settings of whole block devices, on a fake /sys and cgroup v2."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_sys import block_device
from stored_profile import DISK, FLASH, Lines, store_profile

from slo_ctl.daemon.settings import ConfiguredBlock, DevicePolicies
from slo_ctl.decide.device_use import HostState
from slo_ctl.decide.idle_waits import FIRST_TRIAL_S
from slo_ctl.decide.scheduler import SETTLE_S
from slo_ctl.drives.places import places
from slo_ctl.host.cgroup import CgroupTree
from slo_ctl.model.host import DeviceNumber, Disk, FoundBy, Vm, VmState
from slo_ctl.model.setting import Setting
from slo_ctl.model.slo import Slo

NUMBER = DeviceNumber(8, 16)
WINDOW_S = 10.0
EQUAL = {"a": Slo(1.0), "b": Slo(1.0)}
UNEQUAL = {"a": Slo(1.0), "b": Slo(3.0)}


class Host:
    def __init__(self, root: Path, queues: int = 4) -> None:
        self.places = places(root / "state")
        self.sys = root / "sys"
        self.node = block_device(self.sys, "sdx", str(NUMBER), queues, queue__rotational="0")
        self.set_scheduler("none")
        (root / "cgroup").mkdir()
        (root / "cgroup" / "io.cost.qos").write_text("")
        self.tree = CgroupTree(2, root / "cgroup")
        self.policies = DevicePolicies(self.places, self.sys)
        self.behind: tuple[str, ...] = ()

    def set_scheduler(self, scheduler: str) -> None:
        names = ("none", "mq-deadline", "kyber", "bfq")
        words = " ".join(f"[{name}]" if name == scheduler else name for name in names)
        (self.node / "queue" / "scheduler").write_text(words + "\n")

    def profile(self, lines: Lines, *, kernel: str | None = None, serial: str | None = None) -> Path:
        return store_profile(self.places, NUMBER, lines, kernel=kernel, serial=serial, sys=self.sys)

    def settings(
        self, slos: dict[str, Slo], now_s: float = 0.0, scheduler: str = "auto", path: str = "/dev/sdx"
    ) -> dict[str, str]:
        """Values by name of the knob."""
        disks = (Disk("vda", "block", path, NUMBER),)
        vms = [Vm(name, FoundBy.OPTION, VmState.RUNNING, disks=disks) for name in slos]
        host_state = HostState(vms, (), slos, set(slos))
        found: list[Setting] = self.policies.settings(
            {"fast": ConfiguredBlock(path, scheduler)},
            {"fast": NUMBER},
            self.tree,
            host_state,
            now_s,
            WINDOW_S,
            self.behind,
        )
        return {each.knob.name: str(each.value) for each in found}

    def recent_change(self, now_s: float) -> str:
        return self.policies.recent_change("fast", now_s, WINDOW_S)

    @property
    def reasons_text(self) -> str:
        return "; ".join(self.policies.reasons["fast"])


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


MINIMUM = {"a": Slo(min_iops=100.0), "b": Slo()}


def test_scheduler_unchanged_without_profile_and_weights(host: Host) -> None:
    assert host.settings(MINIMUM) == {}
    assert (
        "no valid profile: there is none (measure one with `slo-ctl device profile /dev/sdx`"
        in host.reasons_text
    )
    host.profile(FLASH, kernel="older")
    assert host.settings(EQUAL) == {}
    assert "kernel was older" in host.reasons_text
    host.profile(FLASH, serial="of another")
    assert host.settings(MINIMUM) == {}


def test_unequal_weights_get_bfq_without_a_profile_until_they_are_equal_for_a_while(host: Host) -> None:
    wanted = {"scheduler": "bfq low_latency=0 slice_idle_us=8000 max_budget=512"}
    assert host.settings(UNEQUAL) == wanted
    assert "sdx has no valid profile" in host.reasons_text
    host.set_scheduler("bfq")
    assert host.settings(EQUAL, 1.0) == wanted
    assert host.settings(EQUAL, 1.0 + SETTLE_S) == {}


def test_bfq_waits_for_requests_only_while_a_vm_misses_its_share_without(host: Host) -> None:
    def waits(now_s: float, *behind: str) -> bool:
        host.behind = behind
        return "slice_idle_us=8000" in host.settings(UNEQUAL, now_s)["scheduler"]

    assert waits(0.0)
    assert waits(1.0)
    assert waits(WINDOW_S, "fast"), "before a window has passed with it"
    assert not waits(1.0 + WINDOW_S, "fast")
    assert host.recent_change(5.0 + WINDOW_S) == "bfq stopped waiting for each VM's next request 4 s ago"
    assert not waits(2.0 + WINDOW_S, "fast"), "the window is partly one with waiting"
    needed_s = 1.0 + 2 * WINDOW_S
    assert waits(needed_s, "fast")
    assert "began to wait" in host.recent_change(needed_s)
    assert waits(needed_s + FIRST_TRIAL_S - 1.0)
    assert not waits(needed_s + FIRST_TRIAL_S)
    assert not waits(needed_s + FIRST_TRIAL_S + WINDOW_S, "other")
    assert host.recent_change(needed_s + FIRST_TRIAL_S + WINDOW_S) == ""
    assert waits(needed_s + FIRST_TRIAL_S + 2 * WINDOW_S, "fast")
    host.settings(UNEQUAL, needed_s + FIRST_TRIAL_S + 2 * WINDOW_S, scheduler="keep")
    assert host.recent_change(needed_s + FIRST_TRIAL_S + 2 * WINDOW_S) == ""


def test_bfq_waits_on_a_disk_and_for_a_p99_target(host: Host) -> None:
    host.profile(DISK)
    for now_s in (0.0, 1.0, WINDOW_S + 2.0):
        assert "slice_idle_us=8000" in host.settings(UNEQUAL, now_s)["scheduler"]
    host.profile(FLASH)
    targets = {"a": Slo(1.0, p99_latency_us=900.0), "b": Slo(3.0)}
    for now_s in (20.0, 21.0, WINDOW_S + 22.0):
        assert "slice_idle_us=8000" in host.settings(targets, now_s, scheduler="bfq")["scheduler"]
        assert host.recent_change(now_s) == ""


def test_weights_enforced_by_io_cost_need_no_bfq(host: Host) -> None:
    (host.tree.root / "io.cost.qos").write_text(f"{NUMBER} enable=1 ctrl=auto\n")
    assert host.settings(UNEQUAL) == {}
    (host.tree.root / "io.cost.qos").write_text(f"{NUMBER} enable=0 ctrl=auto\n")
    assert host.settings(UNEQUAL) != {}


def test_weights_go_through_io_cost_by_the_model_of_the_profile(host: Host) -> None:
    host.profile(FLASH)
    wanted = host.settings(UNEQUAL)
    assert wanted["scheduler"] == "none"
    assert wanted["model"].startswith("ctrl=user model=linear rbps=")
    assert wanted["qos"].startswith("enable=1 ctrl=user")
    assert "io.cost works with every scheduler" in host.reasons_text
    assert host.policies.label("fast") == "scheduler none"


def test_tighter_target_acts_at_once_and_looser_one_later(host: Host) -> None:
    host.profile(FLASH)
    tight = {"a": Slo(p99_latency_us=2000.0)}
    assert host.settings(EQUAL) == {"scheduler": "none"}
    assert host.settings(tight, 10.0)["scheduler"] == "kyber read_lat_nsec=2000000 write_lat_nsec=10000000"
    assert host.settings(EQUAL, 11.0)["scheduler"].startswith("kyber")
    assert host.settings(EQUAL, 11.0 + SETTLE_S)["scheduler"] == "none"


@pytest.mark.parametrize("lines", [DISK, FLASH])
def test_choice_does_not_depend_on_the_earlier_choice(host: Host, lines: Lines) -> None:
    host.profile(lines)
    first = host.settings(UNEQUAL)
    host.set_scheduler(first["scheduler"].split()[0])
    decided = host.policies.reasons
    assert host.settings(UNEQUAL, 1.0) == first
    assert host.policies.reasons == decided
    fresh = DevicePolicies(host.places, host.sys)
    host.policies = fresh
    assert host.settings(UNEQUAL, 2.0) == first, "nor after a restart of the daemon"


def test_damaged_profile_keeps_the_decision(host: Host) -> None:
    stored = host.profile(DISK)
    first = host.settings(UNEQUAL)
    assert first["scheduler"].startswith("bfq")
    stored.write_text("{")
    host.profile(FLASH, serial="of another")  # a change, so that the folder is read again
    assert host.settings(UNEQUAL, 1.0) == first
    assert "stored profile ignored" in host.reasons_text
    host.policies = DevicePolicies(host.places, host.sys)
    assert host.settings(UNEQUAL, 2.0) == {}
    assert "damaged" in host.reasons_text


def test_configured_scheduler_is_kept_set_or_refused(host: Host) -> None:
    host.profile(DISK)
    assert host.settings(EQUAL, scheduler="keep") == {}
    assert host.settings(EQUAL, scheduler="kyber") == {"scheduler": "kyber"}
    assert (
        host.settings(UNEQUAL, scheduler="bfq")["scheduler"]
        == "bfq low_latency=0 slice_idle_us=8000 max_budget=512"
    )
    (host.node / "sdx1").mkdir()
    (host.node / "sdx1" / "partition").write_text("1\n")
    (host.sys / "class" / "block" / "sdx1").symlink_to(host.node / "sdx1")
    assert host.settings(UNEQUAL, path="/dev/sdx1") == {}
    assert "is a partition" in host.reasons_text
    (host.node / "queue" / "scheduler").unlink()
    assert host.settings(UNEQUAL) == {}
    assert "only forwards requests" in host.reasons_text
