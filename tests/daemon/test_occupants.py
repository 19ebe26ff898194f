"""Which VM uses which namespace, and with which part of its SLO."""

from __future__ import annotations

from slo_ctl.daemon.occupants import Occupant, emulated_occupants, nvme_occupants, split_slo
from slo_ctl.model.host import Disk, Stream, Tenant
from slo_ctl.model.slo import Slo

SLOS = {"web": Slo(weight=6, min_iops=100, max_iops=400, p99_latency_us=5000), "db": Slo(weight=2)}

NAMES = ["n1", "n2"]


def stream(vm: str, namespace: str, disk: str | None = "vda", device: str = "ssd0") -> Stream:
    target = None if disk is None else Disk(disk, "network", "nbd")
    return Stream(vm, target, None, None, tenant=Tenant(device, namespace))


def test_each_namespace_is_assigned_to_its_vm() -> None:
    occupants, notes = emulated_occupants(
        "ssd0", [stream("web", "n1"), stream("db", "n2"), stream("db", "x", device="y")], SLOS, {}, NAMES
    )
    assert occupants == {
        "n1": Occupant("web", "web", SLOS["web"], "vda"),
        "n2": Occupant("db", "db", SLOS["db"], "vda"),
    }
    assert notes == []


def test_disks_of_one_vm_share_its_budget() -> None:
    occupants, _ = emulated_occupants(
        "ssd0", [stream("web", "n1"), stream("web", "n2", "vdb")], SLOS, {}, NAMES
    )
    assert [occupant.key for occupant in occupants.values()] == ["web:vda", "web:vdb"]
    assert {occupant.slo for occupant in occupants.values()} == {Slo(3, 50, 200, None, 5000)}
    assert split_slo(SLOS["db"], 1) is SLOS["db"]


def test_namespace_that_two_vms_use_is_noted() -> None:
    occupants, notes = emulated_occupants("ssd0", [stream("web", "n1"), stream("db", "n1")], SLOS, {}, NAMES)
    assert occupants["n1"].vm == "web"
    assert "ssd0/n1 is used by web and db" in notes[0]


def test_occupant_kept_after_disconnect_unless_disks_known() -> None:
    before, _ = emulated_occupants("ssd0", [stream("web", "n1", None), stream("db", "n2")], SLOS, {}, NAMES)
    assert set(emulated_occupants("ssd0", [], SLOS, before, NAMES)[0]) == {"n1"}
    assert set(emulated_occupants("ssd0", [], {"db": SLOS["db"]}, before, NAMES)[0]) == set()
    assert emulated_occupants("ssd0", [stream("db", "n1", None)], SLOS, before, NAMES)[0]["n1"].vm == "db"


def test_vm_without_slo_gets_no_namespace() -> None:
    assert emulated_occupants("ssd0", [stream("nobody", "n1")], SLOS, {}, NAMES)[0] == {}


def test_namespace_of_several_vms_is_unassigned_and_one_vm_has_parts() -> None:
    slos = {"a": Slo(weight=4), "b": Slo(weight=2)}
    found = nvme_occupants({1: {"a"}, 2: {"a"}, 3: {"a", "b"}, 4: {"b"}, 5: set()}, slos)
    assert found == {
        1: Occupant("a", "a:n1", Slo(weight=2)),
        2: Occupant("a", "a:n2", Slo(weight=2)),
        4: Occupant("b", "b", Slo(weight=2)),
    }


def test_a_namespace_that_does_not_exist_takes_no_part_of_the_slo() -> None:
    streams = [stream("web", "n1", None), stream("web", "removed", None)]
    occupants, notes = emulated_occupants("ssd0", streams, SLOS, {}, NAMES)
    assert occupants == {"n1": Occupant("web", "web", SLOS["web"])}
    assert notes == ["VM web: ssd0 has no namespace removed"]
