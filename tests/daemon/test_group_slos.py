"""Parts of a group's bounds from epoch to epoch."""

from __future__ import annotations

from slo_ctl.daemon.slos import Groups
from slo_ctl.model.host import FoundBy, Vm, VmState
from slo_ctl.model.slo import ResolvedSlo, Slo, SloGroup


def test_small_change_of_the_own_maximum_of_a_vm_in_a_group_takes_effect() -> None:
    shop = SloGroup("shop", {"max_iops": 10_000.0})
    vms = [Vm(name, FoundBy.OPTION, state=VmState.RUNNING) for name in ("web", "db")]
    groups, found = Groups(), []
    for most in (1000.0, 960.0, 960.0, 1000.0):
        resolved = {
            "web": ResolvedSlo(Slo(max_iops=most), "vm set", group_name="shop"),
            "db": ResolvedSlo(Slo(), "default", group_name="shop"),
        }
        found.append(groups.slos(vms, resolved, {"shop": shop})["web"].max_iops)
    assert found == [1000.0, 960.0, 960.0, 1000.0]
