"""Properties of units with the real systemd on cgroup v2: set, obeyed by fio, verified, restored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from .commands import PYTHON, start_commands
from .guests import GENERAL
from .machine import Guest
from .vm_scopes import VmScope, until

GUEST = GENERAL
_LIMIT_IOPS = 200
_SCOPE = VmScope("web", 1)
_WANTED = {"cost_weight": 300.0, "read_iops": float(_LIMIT_IOPS), "write_bytes_s": 1048576.0}
_ACT = r"""
import json, sys
from pathlib import Path
from slo_ctl.act.cgroup import CgroupActuator
from slo_ctl.act.journal import Journal
from slo_ctl.act.keeper import SettingKeeper
from slo_ctl.act.systemd import SystemdActuator
from slo_ctl.model.setting import Knob, Lever, Setting
from slo_ctl.host.cgroup import find_tree

what, place, number = sys.argv[1:]
# Under emulation a call may take longer than the timeout of an epoch.
actuator = SystemdActuator(CgroupActuator(find_tree()), Path("/sys"), timeout_s=30.0)
keeper = SettingKeeper([actuator], Journal(Path("/root/journal.json")))
if what == "undo":
    outcomes = keeper.undo()
else:
    wanted = json.loads(what)
    knobs = [
        Knob(Lever.SYSTEMD_PROPERTY, place, name, "" if "weight" in name else number) for name in wanted
    ]
    outcomes = keeper.apply([Setting(knob, wanted[knob.name], "web", "") for knob in knobs])
print(json.dumps([[o.setting.knob.name, o.state.value, o.before, o.after, o.reason] for o in outcomes]))
"""


@pytest.fixture(scope="module")
def guest(installed: Guest) -> Iterator[Guest]:
    """A guest with a scope named like those of libvirt.

    No unit enables the io controller, so the scope has none of its files yet.
    """
    start_commands(installed)
    installed.run("cat >/root/act.py", stdin=_ACT)
    installed.run(
        f"systemd-run --scope --slice=machine.slice --unit='{_SCOPE.unit}' sleep 3600"
        " </dev/null >/dev/null 2>&1 &"
    )
    until(installed, f"[ -d '{_SCOPE.folder}' ]", 30)
    yield installed
    installed.run(f"systemctl stop '{_SCOPE.unit}'")


def number(guest: Guest) -> str:
    return guest.number(guest.disk("PLAIN0"))


def act(guest: Guest, what: str) -> dict[str, tuple[Any, ...]]:
    """Run in a separate process, as after a crash; returns state, before, after and reason of each knob."""
    done = guest.run(f"{PYTHON} /root/act.py '{what}' '{_SCOPE.group}' {number(guest)}", timeout_s=180)
    return {name: tuple(rest) for name, *rest in json.loads(done.stdout)}


def files(guest: Guest) -> str:
    """Contents of the I/O files of the scope's cgroup; missing files are left out."""
    names = "io.weight io.bfq.weight io.max io.latency"
    return guest.run(f"cd '{_SCOPE.folder}' && grep -s . {names}", check=False).stdout


def shown(guest: Guest, *names: str) -> set[str]:
    options = " ".join(f"-p {name}" for name in names)
    return set(guest.run(f"systemctl show {options} -- '{_SCOPE.unit}'").stdout.splitlines())


def test_properties_take_effect_and_are_restored(guest: Guest) -> None:
    name = guest.disk("PLAIN0")
    before = files(guest)
    assert "io.max" not in before
    outcomes = act(guest, json.dumps(_WANTED))
    assert {name: (state, after) for name, (state, _, after, _) in outcomes.items()} == {
        name: ("applied", value) for name, value in _WANTED.items()
    }
    assert shown(guest, "IOWeight", "IOReadIOPSMax", "IOWriteBandwidthMax") == {
        "IOWeight=300",
        f"IOReadIOPSMax=/dev/{name} {_LIMIT_IOPS}",
        f"IOWriteBandwidthMax=/dev/{name} 1048576",
    }
    assert "default 300" in files(guest)
    # systemd writes its other properties again, and must keep those that it was asked to set.
    guest.run(f"systemctl set-property --runtime -- '{_SCOPE.unit}' CPUWeight=50")
    assert {state for state, *_ in act(guest, json.dumps(_WANTED)).values()} == {"unchanged"}

    measured = guest.run(
        f"echo $$ >'{_SCOPE.folder}/cgroup.procs' && fio --name=r --filename=/dev/{name} --rw=randread"
        " --bs=4k --direct=1 --ioengine=libaio --iodepth=8 --time_based --runtime=8 --output-format=json",
        timeout_s=90,
    )

    assert {state for state, *_ in act(guest, "undo").values()} == {"restored"}
    assert shown(guest, "IOWeight", "IOReadIOPSMax") == {"IOWeight=[not set]"}
    assert set(files(guest).splitlines()) <= {"io.weight:default 100", "io.bfq.weight:default 100"}
    # A guest that waits for a CPU does not reach its limit.
    iops = json.loads(measured.stdout)["jobs"][0]["read"]["iops"]
    assert 0.8 * _LIMIT_IOPS < iops < 1.03 * _LIMIT_IOPS


def test_latency_target_is_set_and_restored_through_systemd(guest: Guest) -> None:
    if guest.run(f"ls '{_SCOPE.folder}/io.latency'", check=False).rc:
        guest.run(f"systemctl set-property --runtime -- '{_SCOPE.unit}' IOAccounting=yes")
        if guest.run(f"ls '{_SCOPE.folder}/io.latency'", check=False).rc:
            pytest.skip("this kernel has no io.latency")
    ((state, before, after, reason),) = act(guest, '{"latency_us": 5000}').values()
    assert (state, before, after) == ("applied", None, 5000.0), reason
    assert f"{number(guest)} target=5000" in files(guest)
    assert {state for state, *_ in act(guest, "undo").values()} == {"restored"}
    assert "target=" not in files(guest)


def test_limit_written_without_systemd_is_kept(guest: Guest) -> None:
    """systemd would overwrite it with `max`, as the second half shows."""
    guest.run(f"systemctl set-property --runtime -- '{_SCOPE.unit}' IOAccounting=yes")
    guest.run(f"echo '{number(guest)} wbps=5000000' >'{_SCOPE.folder}/io.max'")
    ((state, _, _, reason),) = act(guest, '{"read_iops": 200}').values()
    assert (state, "systemd did not set (write_bytes_s 5000000)" in reason) == ("unapplied", True), reason
    assert "wbps=5000000" in files(guest)
    name = guest.disk("PLAIN0")
    guest.run(f"systemctl set-property --runtime -- '{_SCOPE.unit}' 'IOReadIOPSMax=/dev/{name} 200'")
    until(
        guest,
        f"grep -q 'wbps=max riops=200' '{_SCOPE.folder}/io.max'",
        10,
        show=f"cat '{_SCOPE.folder}/io.max'",
    )


def test_a_weight_for_one_device_is_kept(guest: Guest) -> None:
    """bfq drops it when systemd sets the weight of the unit."""
    scheduler = f"/sys/block/{guest.disk('PLAIN0')}/queue/scheduler"
    guest.run(f"systemctl set-property --runtime -- '{_SCOPE.unit}' IOAccounting=yes")
    guest.run(f"echo bfq >{scheduler}")
    guest.run(f"echo '{number(guest)} 450' >'{_SCOPE.folder}/io.bfq.weight'")
    state, _, after, reason = act(guest, '{"weight": 300}')["weight"]
    assert (state, after) == ("applied", 300.0), reason
    assert f"{number(guest)} 450" in files(guest)
    assert {state for state, *_ in act(guest, "undo").values()} == {"restored"}
    assert f"{number(guest)} 450" in files(guest)
    guest.run(f"echo none >{scheduler}")
