"""Who sits where, and with which part of its SLO."""

from __future__ import annotations

from slo_ctl.daemon.seats import Seat, part_of, seats_on
from slo_ctl.model import Disk, Slo, Stream, Tenant

SLOS = {"web": Slo(weight=6, min_iops=100, max_iops=400, p99_latency_us=5000), "db": Slo(weight=2)}


def stream(vm: str, namespace: str, disk: str | None = "vda", device: str = "ssd0") -> Stream:
    target = None if disk is None else Disk(disk, "network", "nbd")
    return Stream(vm, target, None, None, tenant=Tenant(device, namespace))


def test_one_namespace_each() -> None:
    seats, notes = seats_on(
        "ssd0", [stream("web", "n1"), stream("db", "n2"), stream("db", "x", device="y")], SLOS
    )
    assert seats == {"n1": Seat("web", "web", "vda", SLOS["web"]), "n2": Seat("db", "db", "vda", SLOS["db"])}
    assert notes == []


def test_disks_of_one_vm_share_its_budget() -> None:
    seats, _ = seats_on("ssd0", [stream("web", "n1"), stream("web", "n2", "vdb")], SLOS)
    assert [seat.key for seat in seats.values()] == ["web:vda", "web:vdb"]
    assert {seat.slo for seat in seats.values()} == {Slo(3, 50, 200, None, 5000)}
    assert part_of(SLOS["db"], 1) is SLOS["db"]


def test_a_namespace_that_two_use() -> None:
    seats, notes = seats_on("ssd0", [stream("web", "n1"), stream("db", "n1")], SLOS)
    assert seats["n1"].vm == "web"
    assert "ssd0/n1 is used by web and db" in notes[0]


def test_who_hangs_up_keeps_the_seat_unless_its_disks_are_known() -> None:
    before, _ = seats_on("ssd0", [stream("web", "n1", None), stream("db", "n2")], SLOS)
    assert set(seats_on("ssd0", [], SLOS, before)[0]) == {"n1"}
    assert set(seats_on("ssd0", [], {"db": SLOS["db"]}, before)[0]) == set()
    assert seats_on("ssd0", [stream("db", "n1", None)], SLOS, before)[0]["n1"].vm == "db"


def test_strangers_have_no_seat() -> None:
    assert seats_on("ssd0", [stream("nobody", "n1")], SLOS)[0] == {}
